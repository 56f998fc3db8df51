"""Figures of several runs: their heads side by side, through training, and matched with each other."""

import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from andrea_jax.plots.development_figures import FOLLOWED, token_axis
from andrea_jax.plots.head_figures import profile_panel
from andrea_jax.plots.style import BLUE, EXCESS, FAINT, GREY, KINDS, Figure, figure, grid, styled
from andrea_jax.plots.words import PROBES

PANELS = 12  # profiles shown side by side
KINDS_NAMED = 3  # kinds of pairs in a title
CHANCE = 0.05  # a matching with a smaller p is closer than chance


@styled
def profiles(tables: Mapping[str, pd.DataFrame], best: Mapping[str, pd.DataFrame]) -> Figure:
    """Every head of every run, a panel a run: the number is the score, the colour score − baseline; grey: the null.

    tables, best: run -> `heads.Profile.table` and `.best`, at most `PANELS` runs.
    """
    shown = {name: table.loc[table["probe"].isin(FOLLOWED)] for name, table in tables.items()}
    tallest = max(len(table[["layer", "head"]].drop_duplicates()) for table in shown.values())
    columns = min(len(shown), 3)
    down = -(-len(shown) // columns)
    made = figure(max(3.4 * columns, 6.4), 1.5 + down * (1.25 + 0.2 * tallest), widest(best))
    axes = made.subplots(down, columns, squeeze=False).ravel()
    for ax, (name, table) in zip(axes, shown.items(), strict=False):
        profile_panel(ax, table, small=True)
        ax.set_title(name, fontsize=9)
    for ax in axes[len(shown) :]:
        ax.set_visible(False)
    scale = ScalarMappable(Normalize(-1, 1), EXCESS)
    bar = made.colorbar(scale, ax=list(axes), location="bottom", shrink=0.5, aspect=40)
    bar.set_label("score − baseline (share of attention). Grey: within the null")
    return made


def widest(best: Mapping[str, pd.DataFrame]) -> str:
    """The behaviour in which the runs' best heads differ most, and the two runs that differ."""
    ranges = []
    for probe in FOLLOWED:
        scores = {name: row["score"] for name, table in best.items() for row in table.to_dict("records")
                  if row["probe"] == probe and row["n"] > 0}  # fmt: skip
        if scores:
            low, high = (pick(scores, key=scores.__getitem__) for pick in (min, max))
            text = f"{scores[low]:.2f} ({low}) to {scores[high]:.2f} ({high})"
            ranges.append((scores[high] - scores[low], probe, text))
    if not ranges:
        return "No behaviour was found in the text of these runs"
    _, probe, text = max(ranges)
    return f"The best heads differ most in {PROBES[probe].label}: from {text}"


@styled
def specialization(table: pd.DataFrame) -> Figure:
    """Mean specialization of a run's heads against training tokens (log scale from 0 on), a line a run.

    table: columns run, setting (the colour), step, tokens, specialization; a row a run × step.
    """
    settings = list(dict.fromkeys(table["setting"]))
    last = table.loc[table["step"] == table.groupby("run")["step"].transform("max")]
    means = {name: last.loc[last["setting"] == name, "specialization"].to_numpy().mean() for name in settings}
    highest, lowest = (pick(means, key=means.__getitem__) for pick in (max, min))
    ends = [f"{means[name]:.2f} ({name})" for name in dict.fromkeys((highest, lowest))]
    title = f"Specialization ends at {' and '.join(ends)}; 0 is even attention"
    made = figure(8.2, 3.9, title)
    ax = made.add_subplot()
    for _, curve in table.groupby("run", sort=False):
        colour = KINDS[settings.index(curve["setting"].iloc[0]) % len(KINDS)]
        ax.plot(curve["tokens"], curve["specialization"], "o-", color=colour, markersize=3, linewidth=1)
    ends_at = table.loc[table["tokens"].idxmax()]
    token_axis(ax, sorted(set(table["step"])), ends_at["tokens"] / ends_at["step"])
    ax.set(xlabel="training tokens (log scale; 0: initialization)", ylabel="specialization, mean over heads")
    ax.set_ylim(bottom=0)
    keys = [Line2D([], [], color=KINDS[i % len(KINDS)], label=name) for i, name in enumerate(settings)]
    ax.legend(handles=keys, loc="center left", bbox_to_anchor=(1.0, 0.5), title="a line a run", alignment="left")
    grid(ax)
    return made


@styled
def matched_heads(table: pd.DataFrame) -> Figure:
    """How far apart the matched heads of two runs are, beside what chance would match; a dot a pair of runs.

    table: columns what (the kind of pair), distance, low, high (95% of the scrambled null), p; a row a pair.
    """
    kinds = list(dict.fromkeys(table["what"]))
    made = figure(8.2, 1.6 + 0.16 * len(table) + 0.3 * len(kinds), closer(table))
    ax = made.add_subplot()
    y, ticks = 0.0, []
    for kind in kinds:
        pairs = table.loc[table["what"] == kind].sort_values(by="distance")
        at = y + 0.5 * np.arange(len(pairs))
        _pairs(ax, pairs, at)
        ticks.append(float(at.mean()))
        y = float(at[-1]) + 1.2
    ax.set_yticks(ticks, [textwrap.fill(kind, 30) for kind in kinds])
    ax.set(xlabel="mean distance of matched heads (vectors of shares of attention)", ylim=(y - 0.6, -0.6))
    ax.set_xlim(left=0)
    keys = [Line2D([], [], marker="o", linestyle="", color=BLUE, label=f"closer than chance, p < {CHANCE}"),
            Line2D([], [], marker="o", linestyle="", color=GREY, markerfacecolor="white", label="no closer"),
            Patch(color=FAINT, label="chance: scrambled heads, 95%")]  # fmt: skip
    ax.legend(handles=keys, loc="center left", bbox_to_anchor=(1.0, 0.5))
    grid(ax, "x")
    return made


def _pairs(ax: Axes, pairs: pd.DataFrame, at: np.ndarray) -> None:
    ax.barh(at, pairs["high"] - pairs["low"], 0.34, left=pairs["low"], color=FAINT)
    close = (pairs["p"] < CHANCE).to_numpy()
    ax.plot(pairs["distance"][close], at[close], "o", color=BLUE, markersize=4.5)
    ax.plot(pairs["distance"][~close], at[~close], "o", color=GREY, markerfacecolor="white", markersize=4.5)


def closer(table: pd.DataFrame) -> str:
    """For each kind of pair, in how many of them heads match closer than chance."""
    found = []
    for kind, pairs in table.groupby("what", sort=False):
        found.append(f"{kind} ({np.count_nonzero(pairs['p'] < CHANCE)} of {len(pairs)})")
    more = f"; and {len(found) - KINDS_NAMED} more kinds" if len(found) > KINDS_NAMED else ""
    return f"Pairs of runs whose heads match closer than chance: {'; '.join(found[:KINDS_NAMED])}{more}"


def changed(differences: pd.DataFrame, measure: str, words: str) -> str:
    """The largest difference in one measure, and whether the seeds allow it to be noise.

    differences: columns measure, contrast, difference, low, high, n, verdict.
    """
    rows = differences.loc[differences["measure"] == measure].dropna(subset=["difference"])
    if rows.empty:
        return f"{words}: nothing to compare"
    row = rows.loc[rows["difference"].abs().idxmax()]
    interval = "" if np.isnan(row["low"]) else f" [{row['low']:+.3f}, {row['high']:+.3f}]"
    verdict = "too few seeds to say" if row["verdict"] == "too few seeds" else f"{row['n']} seeds, {row['verdict']}"
    return f"{words}: largest change {row['difference']:+.3f}{interval}, {row['contrast']} ({verdict})"
