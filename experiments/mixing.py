"""Do heads need W_O to mix what they found (C7)?

    python experiments/mixing.py configs/ablations/w-o.toml

Trains W_O free, absent and block-diagonal, or takes the runs of that sweep, and compares their losses seed by seed.
Writes C7.json to --out, and the comparison's tables and figures beside it.
"""

from collections.abc import Sequence

import jax.numpy as jnp

from andrea_jax import claims
from andrea_jax.comparison import largest_difference
from andrea_jax.data import heldout_windows
from andrea_jax.loaded import LoadedRun
from andrea_jax.sweeps.comparing import RunsCompared, compare_runs
from andrea_jax.trace import trace

ROUNDING = 1e-5  # of the largest value
MEASURES = ("heldout_loss", "specialization", "induction")


def sum_of_heads(loaded: LoadedRun) -> float:
    """How far Σ_h z_h·W_O^h is from what the attention of each layer adds, over the largest value (no biases)."""
    tokens = heldout_windows(loaded.dataset, loaded.experiment.data.seq_len - 1, 4, 0)
    traced = trace(loaded.experiment.model, loaded.params, tokens, points=("head_output", "attention_out"))
    return largest_difference(traced["attention_out"], jnp.asarray(traced["head_output"]).sum(axis=-2))


def finding(compared: RunsCompared, apart: float) -> claims.Finding:
    losses, special, induction = (claims.against(compared, measure) for measure in MEASURES)
    worse = [name for name, one in losses.items() if one.verdict == "beyond noise" and one.value > 0]
    if apart > ROUNDING or not worse:
        verdict = claims.DOES_NOT
    else:
        verdict = claims.HOLDS if len(worse) == len(losses) else f"holds if {' and '.join(worse)}"
    parts = [f"{name}: held-out loss {claims.interval(one)} nats, specialization {claims.interval(special[name])}, "
             f"best induction score {claims.interval(induction[name])} ({one.n} seeds)"
             for name, one in losses.items()]  # fmt: skip
    sentence = f"the layer's output is the sum over heads to {apart:.0e}; {'; '.join(parts)}"
    numbers = {
        "sum_of_heads": apart,
        **{
            measure: {name: claims.as_numbers(one) for name, one in found.items()}
            for measure, found in zip(MEASURES, (losses, special, induction), strict=True)
        },
        "runs": compared.runs.to_dict("records"),
    }
    return claims.Finding("C7", verdict, sentence, numbers)


def main(argv: Sequence[str] | None = None) -> int:
    args = claims.parser(__doc__, "configs/ablations/w-o.toml").parse_args(argv)
    runs = claims.trained(args)
    compared = compare_runs(args.config, args.overrides, args.runs)  # in the order of the sweep: the first is the base
    compared.save(args.out / "C7")
    free = next(one for one in runs if one.experiment.model.w_o == "free")
    return claims.report([finding(compared, sum_of_heads(free))], args.out)


if __name__ == "__main__":
    raise SystemExit(main())
