"""Tables for the terminal of heads against annotated text, and of closing brackets without their head."""

from collections.abc import Mapping

import pandas as pd
from rich.table import Table

from andrea_jax.plots.annotation_figures import PAIRS, probe_words
from andrea_jax.plots.intervention_figures import KINDS, number
from andrea_jax.plots.tables import new_table
from andrea_jax.plots.words import count, head_name, interval

HEADER = ("looks at", "head", "score", "uniform", "fixed offset", "own offsets", "control", "n")


def annotated_table(best: pd.DataFrame, named_by: str) -> Table:
    """The best head of each probe; bold: beats the best fixed offset. best: `heads.annotated.Annotated.best`."""
    untyped = ", untyped" if named_by == "runs of PROPN" else ""
    halves = "head and offset chosen on one half of the windows, reported on the other"
    bold = "bold: 10 points above the best fixed offset, and above uniform; control: in brackets its uniform"
    caption = f"{halves};\n{bold}\nnames: {named_by}{untyped}"
    made = new_table("Names, tags and syntax", caption)
    for i, name in enumerate(HEADER):
        made.add_column(name, justify="left" if i < 2 else "right", no_wrap=True)
    for r in best.to_dict("records"):
        made.add_row(*_cells(r), style="bold" if r["beats_offset"] else "dim" if pd.isna(r["layer"]) else "")
    return made


def _cells(row: Mapping) -> list[str]:
    if pd.isna(row["layer"]):
        return [probe_words(row["probe"]), "–", row["reason"] or "too few", *["–"] * 4, count(row["n"])]
    control = ""
    if pd.notna(row["control"]) and pd.notna(row["control_baseline"]):
        control = f"{row['control']:.2f} ({row['control_baseline']:.2f})"
    numbers = [f"{row['score']:.2f} {interval(row['low'], row['high'])}", f"{row['baseline']:.2f}"]
    numbers += [f"{row['offset_score']:.2f}@{row['offset']}", f"{row['own_offsets']:.2f}", control]
    return [probe_words(row["probe"]), head_name(row["layer"], row["head"]), *numbers, count(row["n"])]


def bracket_scores(scores: pd.DataFrame) -> Table:
    """The best head and the rules on all, hard and hardest pairs, before the closer. scores: `heads.brackets.table`."""
    made = new_table("Attention on the matching opener, before the closer", "mean mass, or how often the rule is right")
    made.add_column("", no_wrap=True)
    kinds = ("all", "hard", "hardest")
    shown = scores.loc[(scores["probe"] == "bracket") & scores["pairs"].isin(kinds)].to_dict("records")
    found = {(r["name"], r["pairs"]): r for r in shown}
    for pairs in kinds:
        n = next((r["n"] for r in shown if r["pairs"] == pairs), 0)
        made.add_column(f"{pairs} (n = {count(n)})", justify="right", no_wrap=True)
    for name in dict.fromkeys(r["name"] for r in shown):
        cells = [_share(found[name, pairs]) for pairs in kinds]
        made.add_row(name, *cells, style="bold" if found[name, "all"]["is_head"] else "")
    return made


def _share(row: Mapping) -> str:
    return "–" if pd.isna(row["score"]) else f"{row['score']:.2f} {interval(row['low'], row['high'])}"


def bracket_damage(damage: pd.DataFrame) -> Table:
    """Loss on closers without each head of a layer. damage: `annotations.Brackets.damage`."""
    first = damage.loc[damage["intact"].notna()].drop_duplicates("measure").to_dict("records")
    words = ", ".join(f"{PAIRS[r['measure']]} {number(r['intact'])}" for r in first if r["measure"] in PAIRS)
    made = new_table("Loss on closers without a head (nats): how much higher", f"intact: {words}")
    made.add_column("without", no_wrap=True)
    made.add_column("", no_wrap=True)
    for name in PAIRS.values():
        made.add_column(name, justify="right", no_wrap=True)
    found = {(r["kind"], r["heads"], r["measure"]): r for r in damage.to_dict("records")}
    for kind, heads, is_best in damage[["kind", "heads", "is_best"]].drop_duplicates().itertuples(index=False):
        cells = [_damage(found[kind, heads, name]) for name in PAIRS]
        made.add_row(heads, KINDS[kind], *cells, style="bold" if is_best else "")
    return made


def _damage(row: Mapping) -> str:
    return "–" if pd.isna(row["damage"]) else f"{number(row['damage'])} {interval(row['low'], row['high'])}"
