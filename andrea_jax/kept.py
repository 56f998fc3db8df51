"""Tables about the heads of a checkpoint, kept in its run: computed once, read again, shown by the report.

heads/<name>-<step>.parquet, .csv     the table
figures/<name>.svg, .png              its figure
"""

import pandas as pd

from andrea_jax.heads import tables
from andrea_jax.plots import Figure
from andrea_jax.runs import Run, write_atomically


def keep(run: Run, name: str, step: int, table: pd.DataFrame) -> None:
    """Writes a table of the checkpoint of `step`; what had that name is replaced."""
    write_atomically(run.heads / f"{name}-{step}.csv", table.to_csv(index=False))
    write_atomically(run.heads / f"{name}-{step}.parquet", table.to_parquet(index=False))


def kept(run: Run, name: str, step: int) -> pd.DataFrame | None:
    """The table that `keep` wrote; None where there is none. UserError where its file is cut."""
    path = run.heads / f"{name}-{step}.parquet"
    return tables.read(path) if path.is_file() else None


def keep_figure(run: Run, name: str, figure: Figure) -> str:
    """Writes both formats; returns the path of the PNG."""
    write_atomically(run.figures / f"{name}.svg", figure.encode("svg"))
    return str(write_atomically(run.figures / f"{name}.png", figure.encode("png")))
