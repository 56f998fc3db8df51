"""Figures of circuits: copying and composition in the weights; who wrote a logit; why one token attends to another.

Tables are those of `circuits`: `copying`, `composition`, `Attribution.table`, `lens_table` and `Why.pairs`. Every
figure's title is computed from its data (`circuit_findings.py`).
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm, to_rgb

from andrea_jax.plots import circuit_findings as findings
from andrea_jax.plots.style import (
    ATTENTION,
    BLACK,
    BLUE,
    EXCESS,
    FAINT,
    GREY,
    NULL,
    VERMILION,
    Figure,
    figure,
    grid,
    ink,
    layer_colour,
    printable,
    styled,
)
from andrea_jax.plots.words import head_name

NAMED = 24  # heads on an axis; of more, only the layers are named
BARS = 14  # components that have a bar of their own
SIDE = 9  # components on each side of a score that have a row or a column of their own
KINDS = {"Q": "query (Q)", "K": "key (K)", "V": "value (V)"}


@styled
def circuits(copying: pd.DataFrame, composition: pd.DataFrame) -> Figure:
    """Above, every head's copying score with the band of its null; below, the composition of all pairs, as z-scores.

    A pair that does not pass the threshold is grey. Without pairs (one layer) there is nothing below.
    """
    heads = list(zip(copying["layer"], copying["head"], strict=True))
    below = not composition.empty
    side = 3.6 if len(heads) > NAMED else 2.4
    made = figure(3 * side + 1.8 if below else 7.0, 2.9 + (side + 1.0) * below, findings.circuits(copying, composition))
    grid_spec = made.add_gridspec(1 + below, 3, height_ratios=[1.7, side][: 1 + below])
    _copying_panel(made.add_subplot(grid_spec[0, :]), copying, heads)
    if below:
        high = max(composition["z"].to_numpy().max(), composition["threshold"].to_numpy()[0] + 1)
        scale = PowerNorm(0.5, vmin=0, vmax=high)  # a pair just above the threshold is still no grey one
        axes = [made.add_subplot(grid_spec[1, i]) for i in range(3)]
        for ax, (kind, words) in zip(axes, KINDS.items(), strict=True):
            _composition_panel(ax, composition.loc[composition["kind"] == kind], heads, scale)
            ax.set(title=f"by its {words}", xlabel="later head, which reads")
        axes[0].set_ylabel("earlier head, which writes")
        bar = made.colorbar(ScalarMappable(scale, ATTENTION), ax=axes, shrink=0.8, aspect=25)
        bar.set_label("z of composition\n(grey: not above the threshold)")
    return made


def _copying_panel(ax: Axes, copying: pd.DataFrame, heads: Sequence[tuple[int, int]]) -> None:
    x, n_layer = np.arange(len(heads)), 1 + heads[-1][0]
    reach = copying["null_sd"].to_numpy()[0] * copying["threshold"].to_numpy()[0]
    ax.axhspan(
        -reach, reach, color=NULL, zorder=0, label=f"null: ±{reach:.2f} for the largest of {len(heads)} random heads"
    )
    ax.axhline(0, color=GREY, linewidth=0.8)
    colours = [layer_colour(layer, n_layer) for layer, _ in heads]
    ax.vlines(x, 0, copying["copying"], colors=colours, linewidth=1.2)
    ax.scatter(x, copying["copying"], c=colours, s=26, zorder=3)
    _name_heads(ax, "x", heads)
    ax.set(xlabel="head", ylabel="copying Σλ / Σ|λ|", ylim=(-1.08, 1.08), xlim=(-0.6, len(heads) - 0.4))
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), borderpad=0)
    grid(ax)


def _composition_panel(ax: Axes, pairs: pd.DataFrame, heads: Sequence[tuple[int, int]], scale: PowerNorm) -> None:
    place = {head: i for i, head in enumerate(heads)}
    colours = np.ones((len(heads), len(heads), 3))
    for row in pairs.to_dict("records"):
        at = place[row["layer_1"], row["head_1"]], place[row["layer_2"], row["head_2"]]
        colours[at] = to_rgb(ATTENTION(scale(row["z"])) if row["beyond"] else NULL)
        if len(heads) <= NAMED // 2:
            ink_colour = ink(colours[at]) if row["beyond"] else GREY
            ax.text(at[1], at[0], f"{round(row['z'])}", ha="center", va="center", fontsize=7, color=ink_colour)
    ax.imshow(colours, interpolation="nearest", aspect="auto")
    starts = [i - 0.5 for i in range(1, len(heads)) if heads[i][0] != heads[i - 1][0]]  # of layers
    lines = starts if len(heads) > NAMED else np.arange(0.5, len(heads))
    ax.hlines(lines, -0.5, len(heads), colors="white", linewidth=1)
    ax.vlines(lines, -0.5, len(heads), colors="white", linewidth=1)
    _name_heads(ax, "x", heads)
    _name_heads(ax, "y", heads)
    ax.set(xlim=(starts[0], len(heads) - 0.5), ylim=(starts[-1], -0.5))
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def _name_heads(ax: Axes, axis: Literal["x", "y"], heads: Sequence[tuple[int, int]]) -> None:
    """A tick a head, or, where there are many, one in the middle of each layer."""
    if len(heads) <= NAMED:
        at, names = list(range(len(heads))), [head_name(*head) for head in heads]
    else:
        layers = sorted({layer for layer, _ in heads})
        at = [float(np.mean([i for i, head in enumerate(heads) if head[0] == layer])) for layer in layers]
        names = [f"layer {layer}" for layer in layers]
    turned = axis == "x" and 8 < len(heads) <= NAMED
    getattr(ax, f"set_{axis}ticks")(at, names, rotation=90 if turned else 0)
    ax.tick_params(axis=axis, labelsize=7.5)


@styled
def attribution(
    contributions: pd.DataFrame, lens: pd.DataFrame, *, text: str, token: str, against: str | None, logit: float
) -> Figure:
    """Who wrote a logit, the largest contributions first, and what each layer would have said of the same token.

    text: the pieces up to the position; token, against: pieces. lens: `circuits.lens_table` with a column top_piece.
    """
    shown = findings.largest(contributions, BARS)
    title = findings.attribution(contributions, lens, text=text, token=token, against=against, logit=logit)
    made = figure(9.8, max(0.27 * len(shown) + 1.7, 3.6), title)
    bars, line = made.subplots(1, 2, width_ratios=[1.15, 1])
    values = shown["contribution"].to_numpy()
    bars.barh(range(len(shown)), values, color=np.where(values > 0, BLUE, VERMILION), height=0.72)
    reach = max(np.abs(values).max(), 1e-6)
    for y, value in enumerate(values):
        bars.annotate(f"{value:+.2f}", (value, y), (4 if value > 0 else -4, 0), textcoords="offset points",
                      ha="left" if value > 0 else "right", va="center", fontsize=7.5)  # fmt: skip
    bars.axvline(0, color=GREY, linewidth=0.8)
    bars.set_yticks(range(len(shown)), shown["component"].tolist())
    bars.set(
        ylim=(len(shown) - 0.4, -0.6), xlim=(min(values.min(), 0) - 0.2 * reach, max(values.max(), 0) + 0.2 * reach)
    )
    bars.set(xlabel="contribution to the logit (nats)", title=f"they sum to the logit, {logit:.2f}")
    _lens_panel(line, lens, token)
    return made


def _lens_panel(ax: Axes, lens: pd.DataFrame, token: str) -> None:
    x, y = lens["layer"].to_numpy(), lens["log_prob"].to_numpy()
    ax.plot(x, y, "o-", color=BLUE, label=f"“{printable(token)}”, asked for")
    ax.plot(x, lens["top_log_prob"], "s--", color=GREY, markersize=4, linewidth=1, label="the layer's likeliest token")
    for row in lens.to_dict("records"):
        at = (row["layer"], row["top_log_prob"])
        ax.annotate(f"“{printable(row['top_piece'])}”", at, (0, 6), textcoords="offset points", ha="center", fontsize=8)
        ax.annotate(f"#{row['rank']}", (row["layer"], row["log_prob"]), (0, -11), textcoords="offset points",
                    ha="center", fontsize=7, color=BLUE)  # fmt: skip
    low = min(y.min(), lens["top_log_prob"].min())
    ax.set(ylim=(1.2 * low - 0.3, -0.12 * low + 0.3), xlim=(-0.35, len(lens) - 0.65))
    ax.set_xticks(x, [*map(str, x[:-1]), "end"])
    ax.set(xlabel="before layer", ylabel="log-probability (nats)", title="logit lens: # is the token's rank")
    ax.legend(loc="lower right")
    grid(ax)


@styled
def why(pairs: pd.DataFrame, head: str, query: str, key: str, attention: float, *, score: float, mean: float) -> Figure:
    """What each pair of components does to one score, less what it does on average to the query's keys.

    pairs: `circuits.Why.pairs`; head: "1.2"; query, key: the tokens as "x (5)". Row "all" and column "all" are sums.
    """
    table = findings.excess_table(pairs, SIDE)
    n, m = table.shape
    made = figure(max(2.6 + 0.68 * m, 6.8), 2.3 + 0.34 * n, findings.why(pairs, head, query, key, attention))
    ax = made.add_subplot()
    values = table.to_numpy(np.float64)
    reach = max(np.abs(values[:-1, :-1]).max(), 1e-6)
    colours = np.array([[to_rgb(EXCESS(0.5 + x / reach / 2)) for x in row] for row in values])
    colours[-1], colours[:, -1] = 1, 1
    ax.imshow(colours, aspect="auto", interpolation="nearest")
    for (y, x), value in np.ndenumerate(values):
        total = y == n - 1 or x == m - 1
        text = "0.0" if abs(value) < 0.05 else f"{value:+.1f}"
        ax.text(x, y, text, ha="center", va="center", fontsize=7.5, weight="bold" if total else "normal",
                color=BLACK if total else ink(colours[y, x]))  # fmt: skip
    ax.set_xticks(range(m), list(table.columns), rotation=90 if m > 9 else 0)
    ax.set_yticks(range(n), list(table.index))
    ax.hlines([*np.arange(0.5, n - 1)], -0.5, m - 0.5, colors="white", linewidth=1)
    ax.vlines([*np.arange(0.5, m - 1)], -0.5, n - 0.5, colors="white", linewidth=1)
    ax.hlines(n - 1.5, -0.5, m - 0.5, colors=FAINT, linewidth=1)
    ax.vlines(m - 1.5, -0.5, n - 0.5, colors=FAINT, linewidth=1)
    ax.set(xlabel=f"written at the key, {printable(key)}", ylabel=f"written at the query, {printable(query)}")
    ax.set_title(f"score {score:.1f}, mean over the keys seen {mean:.1f}; cells sum to the difference")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return made
