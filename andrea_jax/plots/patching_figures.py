"""What goes through a head from one prompt to another: a map of effects, and a table. The title says the finding.

Tables are those of `interventions.patch` and `path_patch`: a row a place, columns layer, head, position (those that the
question has), effect, low, high, share.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from rich.markup import escape
from rich.table import Table

from andrea_jax.plots.style import EXCESS, Figure, figure, ink, printable, styled
from andrea_jax.plots.tables import new_table
from andrea_jax.plots.words import head_name, interval

ROWS = 12
SMALL = 200  # cells; of more, none has a number
HEADS = 24  # rows of a map of heads by positions, those with the largest effects
NAMED = 40  # places on an axis; of more, not every one is named


def place(row: Mapping, by: str, pieces: Sequence[str]) -> str:
    """What a row of the table is about: "head 1.1", "layer 1 at “x” (3)", "head 1.1 at “x” (3)"."""
    who = f"layer {int(row['layer'])}" if by == "position" else f"head {head_name(row['layer'], row['head'])}"
    return f"{who} at {_piece(int(row['position']), pieces)}" if "position" in row else who


def finding(table: pd.DataFrame, by: str, pieces: Sequence[str], metrics: tuple[float, float]) -> str:
    """The place with the largest effect, and how much of the whole difference it is."""
    clean, corrupted = metrics
    best = _first(table)[0]
    share = "" if pd.isna(best["share"]) else f", {_percent(best['share'])} of the way"
    if by == "path":
        return (
            f"The corrupted output of {place(best, by, pieces)}, through these paths alone, moves the logit difference "
            f"by {best['effect']:+.2f}{share} from {clean:+.2f} (clean) to {corrupted:+.2f} (corrupted)"
        )
    return (
        f"The clean output of {place(best, by, pieces)} moves the logit difference by {best['effect']:+.2f}{share} "
        f"from {corrupted:+.2f} (corrupted) to {clean:+.2f} (clean)"
    )


def patching_table(table: pd.DataFrame, by: str, pieces: Sequence[str], n: int) -> Table:
    """The places with the largest effects; with an interval where there are several pairs of prompts."""
    caption = f"{n} pairs of prompts; [95% bootstrap interval]" if n > 1 else "one pair of prompts: no interval"
    made = new_table("Patching: what moves the logit difference", caption)
    made.min_width = 56  # room for the title
    made.add_column("place", no_wrap=True)
    for name in ("effect (nats)", "of the way"):
        made.add_column(name, justify="right", no_wrap=True)
    for row in _first(table):
        effect = f"{row['effect']:+.2f}".replace("-0.00", "+0.00")
        effect += f" {interval(row['low'], row['high'])}" if n > 1 else ""
        share = "–" if pd.isna(row["share"]) else _percent(row["share"])
        made.add_row(escape(place(row, by, pieces)), effect, share)
    return made


@styled
def patching(table: pd.DataFrame, by: str, pieces: Sequence[str], metrics: tuple[float, float]) -> Figure:
    """Effects as a map: layer × head, or layer (head: the HEADS with most) × position. metrics: of the clean and of the
    corrupted run."""
    rows, columns = _axes(table, by)
    cells = {key: row["effect"] for key, row in zip(_keys(table, by), table.to_dict("records"), strict=True)}
    values = np.array([[cells.get((y, x), np.nan) for x in columns] for y in rows])
    small = values.size <= SMALL
    wide = max(len(columns) * (0.55 if small else 0.22) + 2.4, 6.8)
    high = 1.9 + (1.1 if "position" in table else 0.3) + len(rows) * (0.42 if small else 0.2)
    made = figure(wide, high, finding(table, by, pieces, metrics))
    ax = made.add_subplot()
    reach = max(float(np.nanmax(np.abs(values))), 1e-6)
    _cells(ax, values, Normalize(-reach, reach), small)
    bar = made.colorbar(ScalarMappable(Normalize(-reach, reach), EXCESS), ax=ax, aspect=14, pad=0.02)
    bar.set_label("effect on the logit difference (nats)")
    by_head = by == "head_position"
    _ticks(ax, "y", [head_name(*divmod(y, 1000)) if by_head else str(y) for y in rows])
    ax.set_ylabel(f"head (the {HEADS} that do most)" if len(rows) == HEADS else "head" if by_head else "layer")
    at = [f"{printable(pieces[x])}  {x}" for x in columns] if "position" in table else [str(x) for x in columns]
    _ticks(ax, "x", at)
    ax.set_xlabel("token and position in the clean prompt" if "position" in table else "head")
    if "position" in table:
        ax.tick_params(axis="x", rotation=90)
    return made


def _first(table: pd.DataFrame) -> list[dict]:
    """The ROWS rows with the largest effects."""
    return table.iloc[np.argsort(-table["effect"].abs().to_numpy(), kind="stable")[:ROWS]].to_dict("records")


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("-0%", "0%")


def _piece(position: int, pieces: Sequence[str]) -> str:
    return f"“{pieces[position]}” ({position})"


def _keys(table: pd.DataFrame, by: str) -> list[tuple[int, int]]:
    """(row, column) of each place in the map; a row a head is 1000·layer + head."""
    y = 1000 * table["layer"] + table["head"] if by == "head_position" else table["layer"]
    return list(zip(y, table["head" if by in ("head", "path") else "position"], strict=True))


def _axes(table: pd.DataFrame, by: str) -> tuple[list[int], list[int]]:
    y, x = (np.array(keys, int) for keys in zip(*_keys(table, by), strict=True))
    names, size = np.unique(y), np.abs(table["effect"].to_numpy())
    most = np.argsort([-size[y == name].max() for name in names], kind="stable")
    return sorted(names[most[:HEADS]].tolist()), np.unique(x).tolist()


def _cells(ax: Axes, values: np.ndarray, scale: Normalize, small: bool) -> None:
    """nan, where a pruned layer has no such head, is white."""
    colours = np.array([[(1.0, 1.0, 1.0) if np.isnan(x) else to_rgb(EXCESS(scale(x))) for x in row] for row in values])
    ax.imshow(colours, aspect="auto", interpolation="nearest")
    for (y, x), value in np.ndenumerate(values):
        if small and not np.isnan(value):
            text = f"{value:+.2f}".replace("+0.00", "0").replace("-0.00", "0")
            ax.text(x, y, text, ha="center", va="center", fontsize=7, color=ink(colours[y, x]))
    ax.hlines(np.arange(0.5, len(values) - 1), -0.5, values.shape[1] - 0.5, colors="white", linewidth=0.8)
    ax.vlines(np.arange(0.5, values.shape[1] - 1), -0.5, len(values) - 0.5, colors="white", linewidth=0.8)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def _ticks(ax: Axes, axis: str, names: Sequence[str]) -> None:
    step = -(-len(names) // NAMED)
    getattr(ax, f"set_{axis}ticks")(range(0, len(names), step), names[::step])
    ax.tick_params(axis="x" if axis == "x" else "y", labelsize=7.5)
