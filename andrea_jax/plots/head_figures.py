"""Figures of heads: profiles against the null, patterns on a text, brackets against their rules, offsets.

Tables are those of `heads.Profile`: `table` (a row a probe, layer and head), `best` (a row a probe), `brackets`,
`offsets`. Every figure's title is computed from its data (`findings.py`).
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize, to_rgb
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from andrea_jax.plots import findings, rows
from andrea_jax.plots.pattern import Pattern
from andrea_jax.plots.style import (
    ATTENTION,
    BLACK,
    BLUE,
    EXCESS,
    GREEN,
    GREY,
    KINDS,
    NULL,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Figure,
    figure,
    grid,
    ink,
    printable,
    styled,
)
from andrea_jax.plots.words import PROBES, head_name

ONE_PANEL = 40  # heads; more are drawn in one panel a layer
CURVES = 4  # offset profiles shown
PAIRS = ("all", "hard", "hardest")
HEADS, RULES = (BLUE, SKY), (VERMILION, GREEN, ORANGE, PURPLE, GREY, "#B5B5B5")


@styled
def head_profile(table: pd.DataFrame, best: pd.DataFrame) -> Figure:
    """Every head on every probe: the number is the score, the colour score − baseline; grey is within the null.

    table: columns probe, layer, head, score, low, high, baseline, undefined. best: the table the title speaks of.
    Entropy is no share and stays uncoloured. A dash: the probe found no query with a
    target. "0.93@1": at its best offset, 1 back.
    """
    n_probe, n_heads = len(rows.probes(table)), _n_heads(table)
    panels = [table] if n_heads <= ONE_PANEL else [panel for _, panel in table.groupby("layer")]
    columns, tallest = min(len(panels), 2), max(_n_heads(panel) for panel in panels)
    down = math.ceil(len(panels) / columns)
    width, height = (1.3 + 0.78 * n_probe, 0.27) if columns == 1 else (0.8 + 0.42 * n_probe, 0.2)
    size = (max(columns * width, 6.4), 1.9 + down * ((tallest + 1) * height + (0.95 if columns > 1 else 0.5)))
    made = figure(*size, findings.profile(best))
    axes = made.subplots(down, columns, squeeze=False).ravel()
    for ax, panel in zip(axes, panels, strict=False):
        profile_panel(ax, panel, small=columns > 1)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    scale, side = ScalarMappable(Normalize(-1, 1), EXCESS), "top" if columns > 1 else "bottom"
    bar = made.colorbar(scale, ax=list(axes), location=side, shrink=0.5, aspect=40)
    bar.set_label("score − baseline (share of attention). Grey: within the null. Entropy has no colour")
    return made


def profile_panel(ax: Axes, table: pd.DataFrame, small: bool) -> None:
    """Row 0 holds the baselines, then one row a head; one column a probe."""
    size = 7 if small else 8.5
    heads, labels = rows.all_rows(table), [PROBES[probe].label.replace(" ", "\n", 1) for probe in rows.probes(table)]
    colours = np.array([[to_rgb(_colour(cell, y)) for cell in cells] for y, (_, cells) in enumerate(heads)])
    ax.imshow(colours, aspect="auto", interpolation="nearest")
    ax.hlines(np.arange(0.5, len(heads) - 1), -0.5, len(labels) - 0.5, colors="white", linewidth=1)
    ax.vlines(np.arange(0.5, len(labels) - 1), -0.5, len(heads) - 0.5, colors="white", linewidth=1)
    for y, (_, cells) in enumerate(heads):
        for x, cell in enumerate(cells):
            colour = GREY if cell.kind in ("null", "undefined") else ink(colours[y, x])
            ax.text(
                x,
                y,
                cell.text.split("@")[0] if small else cell.text,
                ha="center",
                va="center",
                fontsize=size,
                color=colour,
            )
    ax.set(xlim=(-0.5, len(labels) - 0.5), ylim=(len(heads) - 0.5, -0.5))
    ax.set_yticks(range(len(heads)), [name for name, _ in heads])
    ax.set_xticks(range(len(labels)), labels, rotation=90 if small else 0)
    ax.xaxis.tick_top()
    ax.tick_params(length=0, labelsize=size)
    ax.spines[:].set_visible(False)


def _colour(cell: rows.Score, y: int) -> str | tuple[float, float, float, float]:
    """Of a cell of row y: white for baselines, statistics and no target, grey for the null."""
    if y == 0 or cell.kind in ("undefined", "statistic"):
        return "white"
    return NULL if cell.kind == "null" else EXCESS((np.clip(cell.excess, -1, 1) + 1) / 2)


def _n_heads(table: pd.DataFrame) -> int:
    return len(table[["layer", "head"]].drop_duplicates())


@styled
def patterns(panels: Sequence[Pattern]) -> Figure:
    """Small multiples of patterns [query, key] with their tokens; the probe's targets are outlined.

    Raises `UserError` where tokens and pattern disagree in size or there are more than 64 tokens.
    """
    for panel in panels:
        panel.check()
    side = max(0.118 * max(len(panel.tokens) for panel in panels), 2.6)
    columns = 1 if len(panels) == 1 or side > 5.2 else 2
    down = math.ceil(len(panels) / columns)
    made = figure(columns * (side + 0.9) + 0.9, down * (side + 1.3) + 0.8, findings.patterns(panels))
    axes = made.subplots(down, columns, squeeze=False).ravel()
    for ax, panel in zip(axes, panels, strict=False):
        _pattern_panel(ax, panel)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    bar = made.colorbar(ScalarMappable(Normalize(0, 1), ATTENTION), ax=list(axes), shrink=0.5, aspect=30)
    bar.set_label("attention (each row sums to 1)")
    return made


def _pattern_panel(ax: Axes, panel: Pattern) -> None:
    shown = np.ma.masked_array(panel.pattern, mask=np.triu(np.ones_like(panel.targets, bool), 1))
    ax.set_facecolor(NULL)  # the future, which no query sees
    ax.imshow(shown, cmap=ATTENTION, vmin=0, vmax=1, interpolation="nearest")
    squares = [Rectangle((k - 0.5, q - 0.5), 1, 1) for q, k in np.argwhere(panel.targets)]
    ax.add_collection(PatchCollection(squares, facecolor="none", edgecolor=VERMILION, linewidth=0.9))
    labels = [printable(token) for token in panel.tokens]
    size = 6.8 if len(labels) > 24 else 8
    ax.set_xticks(range(len(labels)), labels, rotation=90, fontsize=size, family="DejaVu Sans Mono")
    ax.set_yticks(range(len(labels)), labels, fontsize=size, family="DejaVu Sans Mono")
    ax.tick_params(length=0, pad=2)
    ax.set(xlabel="key: the token attended to", ylabel="query: the token that attends")
    words = PROBES[panel.probe]
    name = f"head {head_name(panel.layer, panel.head)}, {words.label}"
    ax.set_title(f"{name}\n{panel.score:.2f} on the corpus (uniform: {panel.baseline:.2f})", fontsize=9.5)


@styled
def bracket_rules(scores: pd.DataFrame) -> Figure:
    """The best head beside simple rules, on all, hard and hardest pairs, asked before the closer; 95% intervals.

    scores: columns probe, pairs, name, is_head, score, low, high, n. A head has two bars: its mass on the match, and
    the share of its mass on openers that is on the match.
    """
    scores = scores.loc[(scores["probe"] == "bracket") & scores["pairs"].isin(PAIRS)]
    made = figure(9.4, 4.2, findings.brackets(scores))
    ax = made.add_subplot()
    heads, rules = (list(dict.fromkeys(scores.loc[scores["is_head"] == is_head, "name"])) for is_head in (True, False))
    width = 0.86 / (len(heads) + len(rules))
    for i, (name, colour) in enumerate(zip([*heads, *rules], [*HEADS[: len(heads)], *RULES], strict=False)):
        bars = scores.loc[(scores["name"] == name) & scores["score"].notna()]
        x = np.array([PAIRS.index(pairs) for pairs in bars["pairs"]]) - 0.43 + (i + 0.5) * width
        error = np.array([bars["score"] - bars["low"], bars["high"] - bars["score"]], np.float64).clip(0)
        ax.bar(x, bars["score"], 0.92 * width, yerr=error, color=colour, label=name,
               error_kw={"elinewidth": 1, "ecolor": BLACK, "capsize": 2})  # fmt: skip
        for at, score, high in zip(x, bars["score"], bars["high"], strict=True):
            ax.annotate(f"{score:.2f}", (at, high), (0, 3), textcoords="offset points", ha="center", fontsize=6.8)
    counts = [scores.loc[scores["pairs"] == pairs, "n"].max() for pairs in PAIRS]
    ax.set_xticks(range(len(PAIRS)), [f"{pairs}\nn = {n:.0f}" for pairs, n in zip(PAIRS, counts, strict=True)])
    ax.set(ylabel="share on the matching opener", xlabel="bracket pairs, asked before the closer", ylim=(0, 1.08))
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    grid(ax)
    return made


@styled
def offset_profiles(curves: pd.DataFrame) -> Figure:
    """Mass at each distance back, with 95% intervals, for the heads with the highest peaks; dashed: causal uniform.

    curves: columns layer, head, offset (tokens), mass, low, high, baseline; every head at every distance.
    """
    made = figure(8.2, 3.7, findings.offsets(curves))
    ax = made.add_subplot()
    excess = curves.assign(excess=curves["mass"] - curves["baseline"])
    peaks = excess.sort_values(by="excess", ascending=False).drop_duplicates(["layer", "head"]).head(CURVES)
    for i, (layer, head) in enumerate(zip(peaks["layer"], peaks["head"], strict=True)):
        curve = curves.loc[(curves["layer"] == layer) & (curves["head"] == head)].sort_values(by="offset")
        x, y = curve["offset"].to_numpy(), curve["mass"].to_numpy()
        ax.plot(x, y, marker="osD^"[i % 4], markersize=4, color=KINDS[i], label=f"head {head_name(layer, head)}")
        ax.fill_between(x, curve["low"].to_numpy(), curve["high"].to_numpy(), color=KINDS[i], alpha=0.2, linewidth=0)
    uniform = curves.drop_duplicates("offset").sort_values("offset")
    ax.plot(uniform["offset"], uniform["baseline"], "--", color=GREY, label="uniform")
    ax.set(xlabel="offset (tokens back; 0 is the token itself)", ylabel="share of attention", ylim=(0, None))
    ax.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    ax.legend(loc="upper right")
    grid(ax)
    return made
