"""The two tables of heads as text, for the terminal (`tables.py`) and for the page (`report.py`)."""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from andrea_jax.plots.words import PROBES, count, head_name, interval

BEST_HEADER = ("probe", "a head that …", "head", "score", "95% interval", "uniform", "control", "n")
BEST_CAPTION = "chosen on one half of the sequences, reported on the other; bold: above uniform attention"
ALL_CAPTION = "grey: within the null (the interval contains the baseline); bold: above uniform attention"
ROUNDING = 1e-4  # a head that attends evenly has an interval of no width, float32 rounding beside its baseline


class Score(NamedTuple):
    """One head on one probe: how it reads ("0.93@1": at its best offset, 1 back), where it lies (see `kind`), and
    score − baseline (0 where that says nothing)."""

    text: str
    kind: str
    excess: float = 0.0


def kind(row: Mapping) -> str:
    """Where a score lies: "null" (the interval contains the baseline), "above", "below"; entropy is "statistic"."""
    if row["probe"] == "entropy":
        return "statistic"
    if row["low"] - ROUNDING <= row["baseline"] <= row["high"] + ROUNDING:
        return "null"
    return "above" if row["score"] > row["baseline"] else "below"


def best_rows(best: pd.DataFrame) -> list[tuple[str, list[str]]]:
    """(kind, cells under BEST_HEADER) a probe; a probe without a target says why and is "undefined"."""
    rows = []
    for r in best.to_dict("records"):
        words = PROBES[r["probe"]]
        start = [words.label, words.seeks]
        if r["n"] == 0:
            rows.append(("undefined", [words.label, r["reason"], "–", "–", "–", "–", "–", "0"]))
            continue
        if r["probe"] == "offset":
            start[1] = f"looks {r['offset']} back"
        control = "" if pd.isna(r["control"]) else f"{r['control']:.2f}"
        figures = [f"{r['score']:.2f}", interval(r["low"], r["high"]), f"{r['baseline']:.2f}", control, count(r["n"])]
        rows.append((kind(r), [*start, head_name(r["layer"], r["head"]), *figures]))
    return rows


def probes(table: pd.DataFrame) -> list[str]:
    """The probes that the table has, in the house's order."""
    present = set(table["probe"])
    return [name for name in PROBES if name in present]


def all_rows(table: pd.DataFrame) -> list[tuple[str, list[Score]]]:
    """(head, a `Score` a probe) a head, after a first row with the baselines."""
    scored = {(r["probe"], r["layer"], r["head"]): r for r in table.to_dict("records") if not r["undefined"]}
    columns = probes(table)
    baselines = [[r["baseline"] for key, r in scored.items() if key[0] == probe] for probe in columns]
    rows = [("uniform", [Score(baseline(values), "null") for values in baselines])]
    for layer, head in sorted(set(zip(table["layer"], table["head"], strict=True))):
        found = [scored[key] if (key := (probe, layer, head)) in scored else None for probe in columns]
        rows.append((head_name(layer, head), [Score("–", "undefined") if r is None else _score(r) for r in found]))
    return rows


def _score(row: Mapping) -> Score:
    where, text = kind(row), f"{row['score']:.2f}" + (f"@{row['offset']}" if row["probe"] == "offset" else "")
    return Score(text, where, row["score"] - row["baseline"] if where in ("above", "below") else 0.0)


def baseline(values: list[float]) -> str:
    """One number, or "varies" where heads have baselines of their own (each its own best offset)."""
    if not values:
        return "–"
    return f"{values[0]:.2f}" if max(values) - min(values) < 0.005 else "varies"
