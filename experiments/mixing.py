"""Do heads need W_O to mix what they found (C7)?

    python experiments/mixing.py configs/ablations/w-o.toml

Trains W_O free, absent and block-diagonal, or takes the runs of that sweep, and compares them seed by seed. Writes
C7.json and C7.png to --out, and the comparison's tables and figures beside them.
"""

from collections.abc import Sequence

import jax.numpy as jnp

from andrea_jax import claims
from andrea_jax.comparison import largest_difference
from andrea_jax.data import heldout_windows
from andrea_jax.loaded import LoadedRun
from andrea_jax.sweeps.comparing import RunsCompared, compare_runs
from andrea_jax.sweeps.measured import MEASURES
from andrea_jax.trace import trace

ROUNDING = 1e-5  # of the largest value
SAYS = {"heldout_loss": 1, "specialization": -1, "induction": -1}  # what heads are without mixing, by the claim


def sum_of_heads(loaded: LoadedRun) -> float:
    """How far Σ_h z_h·W_O^h is from what the attention of each layer adds, over the largest value (no biases)."""
    tokens = heldout_windows(loaded.dataset, loaded.experiment.data.seq_len - 1, 4, 0)
    traced = trace(loaded.experiment.model, loaded.params, tokens, points=("head_output", "attention_out"))
    return largest_difference(traced["attention_out"], jnp.asarray(traced["head_output"]).sum(axis=-2))


def finding(compared: RunsCompared, apart: float) -> claims.Finding:
    found = claims.against(compared, SAYS)
    verdict = claims.judged(found, SAYS) if apart <= ROUNDING else claims.DOES_NOT
    sentence = f"the layer's output is the sum over heads to {apart:.0e}; {claims.contrasted(found)}"
    numbers = {"sum_of_heads": apart, **claims.all_numbers(found), "runs": compared.runs.to_dict("records")}
    columns = {measure: MEASURES[measure] for measure in SAYS}
    figure = claims.drawn(compared.runs, "model.w_o", columns, claims.title("C7", verdict))
    return claims.Finding("C7", verdict, sentence, numbers, figure=figure)


def main(argv: Sequence[str] | None = None) -> int:
    args = claims.parser(__doc__, "configs/ablations/w-o.toml").parse_args(argv)
    runs = claims.trained(args)
    compared = compare_runs(args.config, args.overrides, args.runs)  # in the order of the sweep: the first is the base
    compared.save(args.out / "C7")
    free = next(one for one in runs if one.experiment.model.w_o == "free")
    return claims.report([finding(compared, sum_of_heads(free))], args.out)


if __name__ == "__main__":
    raise SystemExit(main())
