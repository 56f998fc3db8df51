"""Are fused and per-head the same function (C1, C6), and does fusing save matmuls (C3) and time (C4), on this machine?

    python experiments/compare_projections.py configs/quickstart.toml

Writes comparison.json, both tables and the figure to --out, and C1, C3, C4 and C6.json to --claims. The lesson says:
per-head and fused compute the same function; one BLAS call instead of twelve; per-head matmuls underuse the hardware.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from andrea_jax import claims, config_files
from andrea_jax.compared import Comparison, compare_projections
from andrea_jax.comparison import FORMS, PASSES, form_name
from andrea_jax.plots import messages

ONE, THREE, EINSUM, LOOP = (form_name(*form) for form in FORMS)
NOISE = 1.1  # a time that is longer by less says nothing on a busy machine


def findings(found: Comparison) -> list[claims.Finding]:
    """A finding a claim, from the numbers."""
    equality, timing = found.as_json()["equality"], found.as_json()["timing"]
    return [_same_function(found.equality, equality), *_costs(found.timing, found.about["timing_of"], timing),
            _there_and_back(equality)]  # fmt: skip


def _same_function(equality: pd.DataFrame, rows: list) -> claims.Finding:
    bad = equality[~(equality["max_difference"] <= equality["tolerance"])]
    worst = max(equality.to_dict("records"), key=lambda row: row["max_difference"])
    largest = f"largest difference {worst['max_difference']:.1e}, of {worst['quantity']} ({worst['form']})"
    if bad.empty:
        sentence = f"logits, gradients and head scores agree to rounding ({largest})"
        return claims.Finding("C1", claims.HOLDS, sentence, {"equality": rows})
    sentence = f"not the same to rounding in {', '.join(bad['quantity'])} ({largest})"
    return claims.Finding("C1", claims.DOES_NOT, sentence, {"equality": rows})


def _there_and_back(rows: list) -> claims.Finding:
    back = max(row["max_difference"] for row in rows if row["quantity"] == "weights there and back")
    verdict = claims.HOLDS if back == 0 else claims.DOES_NOT
    return claims.Finding("C6", verdict, f"weights there and back differ by {back:g}", {"equality": rows})


def _costs(timing: pd.DataFrame, of: str, rows: list) -> list[claims.Finding]:
    counts = {(row["passes"], row["form"]): row["matmuls"] for row in timing.to_dict("records")}
    forward, both = ({form: counts[passes, form] for form in (ONE, THREE, EINSUM, LOOP)} for passes in PASSES)
    numbers = "; ".join(f"{form}: {n} ({both[form]})" for form, n in forward.items())
    sentence = f"a compiled layer runs, forward (and with backward): {numbers}"
    true_of = [form for form in (EINSUM, LOOP) if forward[form] > forward[THREE]]
    made = claims.Finding("C3", _if(true_of), sentence, {"matmuls": rows})
    slower, parts = {EINSUM: True, LOOP: True}, []
    for passes in PASSES:
        mine = {row["form"]: row for row in timing.to_dict("records") if row["passes"] == passes}
        ratio = {form: mine[form]["min_ms"] / mine[ONE]["min_ms"] for form in mine}
        slower = {form: known and ratio[form] > NOISE for form, known in slower.items()}
        parts.append(f"{passes}: " + "; ".join(f"{form} {times:.2f}" for form, times in ratio.items()))
    sentence = f"time relative to {ONE}, {', and '.join(parts)}. {of}"
    return [made, claims.Finding("C4", _if([form for form in slower if slower[form]]), sentence, {"timing": rows})]


def _if(forms: list[str]) -> str:
    """Of which per-head forms a claim about per-head is true."""
    if len(forms) == 2:
        return claims.HOLDS
    return f"holds if per-head is computed as {forms[0].split(', ')[1]}" if forms else claims.DOES_NOT


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path, help="default: results/compare_projections/<config>")
    parser.add_argument("--claims", type=Path, default=Path("results", "claims"), help="where findings go")
    args = parser.parse_args(argv)
    experiment = config_files.load(args.config, args.overrides)
    with messages.progress("timing projections") as tell:
        found = compare_projections(experiment, args.repeats, tell)
    out = args.out or Path("results", "compare_projections", args.config.stem)
    found.save(out)
    messages.show(*found.tables())
    claims.report(findings(found), args.claims)
    print(f"written to {out}")
    return 0 if found.equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
