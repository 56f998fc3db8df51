"""Tables of the benchmarks for the terminal; rows are those of `andrea_jax.benchmarks`."""

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from andrea_jax.plots.benchmark_rows import Rows, by, distinct, fastest, shape_name, timed, where
from andrea_jax.plots.mesh_figures import mesh_tables
from andrea_jax.plots.scoring_figures import scoring_tables
from andrea_jax.plots.tables import new_table
from andrea_jax.plots.train_figures import train_tables


def attention_tables(rows: Rows) -> list[Table]:
    """Median µs of every contender."""
    rows = [{**row, "shape": shape_name(row).replace(" × ", "×")} for row in rows]
    return [_pivot(of, ["contender"], "shape", _us, f"Attention {passes}, µs a call", ["shape"])
            for (passes,), of in by(rows, "passes").items()]  # fmt: skip


def projections_tables(rows: Rows) -> list[Table]:
    """Median µs of every form; matrix products of the compiled program."""
    rows = [{**row, "B·T": f"{row['tokens']:,}", "merger MiB": row["threshold_mb"]} for row in rows]
    lines, title = ["passes", "d_model", "B·T", "merger MiB"], "Projections to q, k and v, µs (matmuls)"
    return [_pivot(rows, lines, "form", lambda row: f"{_us(row)} ({row['matmuls']})", title)]


def layout_tables(rows: Rows) -> list[Table]:
    """Launches at every number of heads; median µs of every arrangement with its launches."""
    counted = [row for row in where(rows, question="launches") if row["reason"] is None]
    arranged = [{**row, "shape": shape_name(row)} for row in rows if row["question"] in ("layout", "grid")]
    counts = _pivot(counted, ["backend", "variant", "passes"], "n_head", lambda row: str(row["launches"]),
                    "Launches of one compiled call, by number of heads", value="launches")  # fmt: skip
    times = _pivot(arranged, ["backend", "shape", "passes"], "variant", lambda row: f"{_us(row)} ({row['launches']})",
                   "Heads in place, contiguous, transposed: µs a call (launches)")  # fmt: skip
    return [counts, times] if counted else [times]


def head_dim_tables(rows: Rows) -> list[Table]:
    """TFLOP/s of every width, the number of heads beside it; the fastest backend of a width is bold."""
    rows = [{**row, "width": f"{row['head_dim']} × {row['n_head']}"} for row in rows]
    title = "head_dim × n_head, TFLOP/s"
    return [_pivot(rows, ["passes", "backend"], "width", lambda row: f"{row['tflops']:.3g}", title,
                   ["passes", "head_dim"])]  # fmt: skip


# subject of `andrea bench` -> its rows -> what the terminal shows
TABLES = {
    "attention": attention_tables,
    "projections": projections_tables,
    "layout": layout_tables,
    "head-dim": head_dim_tables,
    "scoring": scoring_tables,
    "mesh": mesh_tables,
    "train": train_tables,
}


def _us(row: dict) -> str:
    return f"{row['us']:.0f}" if row["us"] >= 100 else f"{row['us']:.3g}"


def _pivot(
    rows: Rows,
    lines: Sequence[str],
    columns: str,
    cell: Callable[[dict], str],
    title: str,
    fair: Sequence[str] = (),
    value: str = "us",
) -> Table:
    """A line for each combination of `lines`; "–" where `value` is missing. Among the rows that have the same values of
    `fair` (those of a line, where none is given) the fastest is bold."""
    made, names = new_table(title), distinct(rows, columns)
    for name in lines:
        made.add_column(name, no_wrap=True)
    for name in names:
        made.add_column(str(name), justify="right")
    best = [fastest(of) for of in by(timed(rows), *(fair or lines)).values()]
    for key, of in by(rows, *lines).items():
        cells = {
            row[columns]: Text(cell(row), "bold" if row in best else "") for row in of if row.get(value) is not None
        }
        made.add_row(
            *("–" if part is None else str(part) for part in key), *(cells.get(name, Text("–")) for name in names)
        )
    return made
