"""Figures of similar heads: distances in the order of the groups, and a map. Tables are those of `Similarity`."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from andrea_jax.plots.style import ATTENTION, VERMILION, Figure, figure, ink, layer_colour, styled
from andrea_jax.plots.words import head_name, interval

TITLED = 4  # groups that the title names
LABEL = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
NAMED = 24  # heads; of more, an axis names no single one and the map only those in groups


def finding(heads: pd.DataFrame) -> str:
    """The groups of heads that attend alike; without one, the nearest pair, and whether that is near."""
    found = groups(heads)
    if found:
        alone = len(heads) - sum(map(len, found))
        named = ["{" + _names(rows) + "}" for rows in found[:TITLED]]
        more = f" and {len(found) - TITLED} more groups" if len(found) > TITLED else ""
        return f"Heads that attend alike: {', '.join(named)}{more}; {alone} of {len(heads)} are like no other"
    best = heads.sort_values(by="js").to_dict("records")[0]
    pair = f"{head_name(best['layer'], best['head'])} and {head_name(best['like_layer'], best['like_head'])}"
    return (
        f"No two heads attend alike; the nearest, {pair}, are {distance(best)} apart (0: the same, 1: nothing shared)"
    )


def groups(heads: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each group, in their order."""
    return [heads.loc[heads["group"] == number] for number in sorted(heads["group"].dropna().unique())]


def _names(rows: pd.DataFrame) -> str:
    return ", ".join(map(head_name, rows["layer"], rows["head"]))


def distance(row: dict) -> str:
    """ "0.25 [0.24, 0.27]"."""
    return f"{row['js']:.2f} {interval(row['low'], row['high'])}"


@styled
def similarity(heads: pd.DataFrame, pairs: pd.DataFrame) -> Figure:
    """Left, the Jensen–Shannon distance of all pairs of heads, groups outlined; right, a map that keeps distances as
    well as a plane can. Tables: `Similarity.heads` and `.pairs`."""
    made = figure(10.6, 5.4, finding(heads))
    matrix, plane = made.subplots(1, 2, width_ratios=[1, 1.05])
    _matrix_panel(matrix, heads.sort_values(by="order"), pairs)
    bar = made.colorbar(ScalarMappable(Normalize(0, 1), ATTENTION.reversed()), ax=matrix, shrink=0.5, aspect=28,
                        location="bottom")  # fmt: skip
    bar.set_label("distance of patterns (0: the same, 1: no key shared)")
    _map_panel(plane, heads)
    return made


def _matrix_panel(ax: Axes, heads: pd.DataFrame, pairs: pd.DataFrame) -> None:
    names = list(map(head_name, heads["layer"], heads["head"]))
    place = {name: i for i, name in enumerate(names)}
    values = np.zeros((len(names), len(names)))
    first, second = ([place[name] for name in map(head_name, pairs[f"layer_{i}"], pairs[f"head_{i}"])] for i in (1, 2))
    values[first, second] = values[second, first] = pairs["js"]
    ax.imshow(values, cmap=ATTENTION.reversed(), vmin=0, vmax=1, interpolation="nearest")
    few = len(names) <= NAMED // 2
    for (y, x), value in np.ndenumerate(values) if few else ():
        colour = ink(np.array(ATTENTION.reversed()(value)[:3]))
        ax.text(x, y, f"{value:.2f}"[-3:] if x != y else "", ha="center", va="center", fontsize=7, color=colour)
    ticks = range(len(names)) if len(names) <= NAMED else []
    ax.set_xticks(ticks, names if ticks else [], rotation=90)
    ax.set_yticks(ticks, names if ticks else [])
    for rows in groups(heads.reset_index(drop=True)):
        start, size = rows.index.to_numpy().min() - 0.5, len(rows)
        ax.add_patch(Rectangle((start, start), size, size, fill=False, edgecolor=VERMILION, linewidth=1.4))
        if not ticks:
            ax.annotate(_names(rows), (start + size, start + size / 2), (4, 0), textcoords="offset points",
                        fontsize=7, va="center", bbox=LABEL)  # fmt: skip
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_title("all pairs, in the order of their groups")


def _map_panel(ax: Axes, heads: pd.DataFrame) -> None:
    n_layer = 1 + heads["layer"].to_numpy().max()
    for layer, rows in heads.groupby("layer"):
        ax.scatter(rows["x"], rows["y"], color=layer_colour(int(str(layer)), n_layer), s=42, label=f"layer {layer}")
    singles = heads.loc[heads["group"].isna()] if len(heads) <= NAMED else heads.head(0)
    for rows in [*groups(heads), *(singles.iloc[i : i + 1] for i in range(len(singles)))]:
        right = rows["x"].mean() > 0  # names point inwards
        ax.annotate(_names(rows), (rows["x"].mean(), rows["y"].mean()), (-7 if right else 7, 0), fontsize=8,
                    textcoords="offset points", ha="right" if right else "left", va="center")  # fmt: skip
    ax.set_aspect("equal", adjustable="datalim")
    ax.margins(0.12)
    ax.set(xlabel="first coordinate (distance)", ylabel="second coordinate (distance)", title="map of the heads")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
