"""Are several heads better than one wide head of the same size (C10)?

    python experiments/head_count.py configs/ablations/n-head.toml

Trains the sweep over n_head, or takes its runs, and compares them seed by seed with the first. The number of parameters
is the same. Writes C10.json to --out, and the comparison's tables and figures beside it.
"""

from collections.abc import Sequence

from andrea_jax import claims
from andrea_jax.sweeps.comparing import RunsCompared, compare_runs

MEASURES = ("heldout_loss", "in_context", "specialization", "previous_token", "induction")


def finding(compared: RunsCompared) -> claims.Finding:
    found = {measure: claims.against(compared, measure) for measure in MEASURES}
    losses = found["heldout_loss"]
    better = [name for name, one in losses.items() if one.verdict == "beyond noise" and one.value < 0]
    if not better:
        verdict = claims.DOES_NOT
    else:
        verdict = claims.HOLDS if len(better) == len(losses) else f"holds if {' or '.join(better)}"
    special, induction = found["specialization"], found["induction"]
    parts = [f"{name}: held-out loss {claims.interval(one)} nats, specialization {claims.interval(special[name])}, "
             f"best induction score {claims.interval(induction[name])} ({one.n} seeds)"
             for name, one in losses.items()]  # fmt: skip
    numbers = {measure: {name: claims.as_numbers(one) for name, one in rows.items()} for measure, rows in found.items()}
    return claims.Finding("C10", verdict, "; ".join(parts), {**numbers, "runs": compared.runs.to_dict("records")})


def main(argv: Sequence[str] | None = None) -> int:
    args = claims.parser(__doc__, "configs/ablations/n-head.toml").parse_args(argv)
    claims.trained(args)
    compared = compare_runs(args.config, args.overrides, args.runs)  # in the order of the sweep: the first is the base
    compared.save(args.out / "C10")
    return claims.report([finding(compared)], args.out)


if __name__ == "__main__":
    raise SystemExit(main())
