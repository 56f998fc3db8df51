"""Are fused and per-head the same function (C1), and does fusing save matmuls (C3) and time (C4), on this machine?

    python experiments/compare_projections.py configs/quickstart.toml

Writes comparison.json, both tables and the figure to --out. Claims are those of the lesson on multi-head attention:
per-head and fused compute the same function; one BLAS call instead of twelve; per-head matmuls underuse the hardware.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from andrea_jax import config_files
from andrea_jax.compared import Comparison, compare_projections
from andrea_jax.comparison import FORMS, PASSES, form_name
from andrea_jax.plots import messages

ONE, THREE, EINSUM, LOOP = (form_name(*form) for form in FORMS)
NOISE = 1.1  # a time that is longer by less says nothing on a busy machine


def verdicts(found: Comparison) -> list[str]:
    """A sentence a claim, from the numbers."""
    return [_same_function(found.equality), _calls(found.timing), *(_speed(found.timing, passes) for passes in PASSES)]


def _same_function(equality: pd.DataFrame) -> str:
    bad = equality[~(equality["max_difference"] <= equality["tolerance"])]
    worst = max(equality.to_dict("records"), key=lambda row: row["max_difference"])
    largest = f"largest difference {worst['max_difference']:.1e}, of {worst['quantity']} ({worst['form']})"
    if bad.empty:
        return f"C1: the same function. Logits, gradients and head scores agree to rounding ({largest})"
    return f"C1: NOT the same function to rounding in {', '.join(bad['quantity'])} ({largest})"


def _calls(timing: pd.DataFrame) -> str:
    counts = {(row["passes"], row["form"]): row["matmuls"] for row in timing.to_dict("records")}
    forward, both = ({form: counts[passes, form] for form in (ONE, THREE, EINSUM, LOOP)} for passes in PASSES)
    numbers = "; ".join(f"{form}: {n} ({both[form]})" for form, n in forward.items())
    fewer = "fewer" if forward[ONE] < forward[LOOP] else "NO fewer"
    return f"C3: fused has {fewer} matmuls. A compiled layer runs, forward (and with backward): {numbers}"


def _speed(timing: pd.DataFrame, passes: str) -> str:
    rows = [row for row in timing.to_dict("records") if row["passes"] == passes]
    ratio = {row["form"]: row["min_ms"] / rows[0]["min_ms"] for row in rows}  # to fused, one matrix
    slower = " and ".join(form for form in (EINSUM, LOOP) if ratio[form] > NOISE)
    verdict = f"true of {slower}" if slower else "true of neither per-head form"
    numbers = "; ".join(f"{form}: {times:.2f}" for form, times in ratio.items())
    return f"C4, {passes}: {verdict}. Time relative to {ONE}: {numbers}. Fastest: {min(ratio, key=ratio.__getitem__)}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path, help="default: results/compare_projections/<config>")
    args = parser.parse_args(argv)
    experiment = config_files.load(args.config, args.overrides)
    with messages.progress("timing projections") as tell:
        found = compare_projections(experiment, args.repeats, tell)
    out = args.out or Path("results", "compare_projections", args.config.stem)
    found.save(out)
    messages.show(*found.tables())
    print(*verdicts(found), f"written to {out}", sep="\n")
    return 0 if found.equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
