"""Figures of heads against annotated text, and of closing brackets without their head. Titles say what was found."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from andrea_jax.plots.intervention_figures import KINDS, number
from andrea_jax.plots.style import BLUE, GREEN, GREY, ORANGE, VERMILION, Figure, figure, grid, styled
from andrea_jax.plots.words import head_name, interval

PROBES = {
    "recent_name_before": "before a name: the latest",
    "earlier_name_before": "before a name: any earlier",
    "recent_name_inside": "at a name: the latest before",
    "earlier_name_inside": "at a name: any earlier",
    "same_name": "in a name: its earlier copies",
    "to_head": "its syntactic head",
    "to_dependent": "its dependents",
}
MARKS = (
    ("baseline", "|", GREY, "uniform attention"),
    ("offset_score", "D", ORANGE, "best fixed offset"),
    ("own_offsets", "x", GREEN, "the head's own offset profile"),
    ("control", "s", VERMILION, "control: capitalised, no name"),
)
PAIRS = {"bracket": "all closers", "bracket_hard": "hard closers", "bracket_hardest": "hardest closers"}
NAMED = 4  # probes that the title names


def probe_words(probe: str) -> str:
    """ "tag NOUN" -> "earlier NOUN tokens"; "to_head obj" -> "its syntactic head (obj)"."""
    if probe in PROBES:
        return PROBES[probe]
    kind, _, value = probe.partition(" ")
    return f"earlier {value} tokens" if kind == "tag" else f"{PROBES[kind]} ({value})"


def annotated_finding(best: pd.DataFrame) -> str:
    """Which probes a head passes: above uniform attention, and 10 points above the best fixed offset."""
    asked = best.loc[best["layer"].notna()]
    found = asked.loc[asked["beats_offset"]].sort_values(by="score", ascending=False).to_dict("records")
    if not found:
        return f"On none of {len(asked)} annotations does a head beat both even attention and the best fixed offset"
    said = "; ".join(map(_passed, found[:NAMED]))
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return f"Beyond the best fixed offset by 10 points on {len(found)} of {len(asked)} annotations: {said}{more}"


def _passed(row: Mapping) -> str:
    text = f"{head_name(row['layer'], row['head'])} {probe_words(row['probe'])}, {row['score']:.2f}"
    return text if pd.isna(row["control"]) else f"{text} (capitalised non-names {row['control']:.2f})"


@styled
def annotated(best: pd.DataFrame) -> Figure:
    """The best head of each probe with its 95% interval, beside what explains it without syntax.

    best: `heads.annotated.Annotated.best`.
    """
    rows = best.loc[best["layer"].notna()].to_dict("records")
    made = figure(9.6, 1.7 + 0.27 * max(len(rows), 3), annotated_finding(best))
    ax = made.add_subplot()
    for y, r in enumerate(rows):
        error = np.array([[r["score"] - r["low"]], [r["high"] - r["score"]]]).clip(0)
        ax.errorbar(r["score"], y, xerr=error, fmt="o", color=BLUE, markersize=5, elinewidth=1.2, zorder=3,
                    label="best head" if y == 0 else None)  # fmt: skip
    for name, marker, colour, label in MARKS:
        shown = [(r[name], y) for y, r in enumerate(rows) if pd.notna(r[name])]
        if shown:
            ax.scatter(
                *zip(*shown, strict=True), marker=marker, s=70 if marker == "|" else 22, color=colour, label=label
            )
    names = [f"{probe_words(r['probe'])}  ·  {head_name(r['layer'], r['head'])}" for r in rows]
    ax.set_yticks(range(len(rows)), names)
    ax.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, None), xlabel="share of attention on the targets (95% interval)")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    grid(ax, "x")
    return made


def bracket_finding(damage: pd.DataFrame) -> str:
    """What all closers cost without the bracket head and without the others of its layer, mean-ablated."""
    rows = damage.loc[(damage["measure"] == "bracket") & (damage["kind"] == "mean")]
    best = rows.loc[rows["is_best"]].to_dict("records")[0]
    others = rows.loc[~rows["is_best"]].to_dict("records")
    said = f"Without bracket head {best['heads']}, closers cost {nll(best)} (mean-ablation)"
    if not others:
        return f"{said}; its layer has no other head to compare with"
    worst = max(others, key=lambda r: r["damage"])
    verdict = (
        "more" if best["low"] > worst["high"] else "no less" if best["low"] > worst["damage"] else "not clearly more"
    )
    return (
        f"{said}, {verdict} than without any other of its layer (at most {number(worst['ablated'])}, {worst['heads']})"
    )


def nll(row: Mapping) -> str:
    """ "0.41 → 1.03 nats, +0.62 [0.55, 0.70]"."""
    change = f"{row['damage']:+.2f} {interval(row['low'], row['high'])}"
    return f"{number(row['intact'])} → {number(row['ablated'])} nats, {change}"


@styled
def bracket_damage(damage: pd.DataFrame) -> Figure:
    """Loss on closers without each head of the bracket head's layer, zero beside mean: all, hard, hardest.

    damage: `annotations.Brackets.damage`; bars: 95% intervals of the damage, at the intact loss plus it.
    """
    made = figure(10.2, 3.9, bracket_finding(damage))
    axes = made.subplots(1, len(PAIRS), sharey=True)
    for ax, (measure, words) in zip(axes, PAIRS.items(), strict=True):
        rows = damage.loc[(damage["measure"] == measure) & damage["damage"].notna()]
        _bracket_panel(ax, rows)
        n = int(rows["n"].max()) if len(rows) else 0
        ax.set(title=f"{words}, n = {n:,}", xlabel="head taken away")
    axes[0].set_ylabel("loss on closers (nats)")
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return made


def _bracket_panel(ax: Axes, rows: pd.DataFrame) -> None:
    heads = list(dict.fromkeys(rows["heads"]))
    for shift, kind, marker in ((-0.12, "zero", "s"), (0.12, "mean", "o")):
        for is_best, colour in ((True, VERMILION), (False, BLUE)):
            of = rows.loc[(rows["kind"] == kind) & (rows["is_best"] == is_best)]
            x = np.array([heads.index(head) for head in of["heads"]]) + shift
            error = np.array([of["damage"] - of["low"], of["high"] - of["damage"]], float).clip(0)
            label = f"{'bracket head' if is_best else 'others'}, {KINDS[kind]}"
            ax.errorbar(
                x, of["ablated"], yerr=error, fmt=marker, color=colour, markersize=5, elinewidth=1.2, label=label
            )
    if len(rows):
        ax.axhline(rows["intact"].iloc[0], color=GREY, linewidth=1, linestyle="--", label="intact")
    ax.set_xticks(range(len(heads)), heads)
    ax.margins(x=0.12)
    grid(ax)
