"""How a question is answered: tables and the path of a figure, or one JSON object."""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from andrea_jax.loaded import LoadedRun
    from andrea_jax.plots import Figure


def say(
    args: argparse.Namespace,
    loaded: "LoadedRun",
    name: str,
    tables: "Sequence[Table]",
    figure: "Figure | None",
    found: "Mapping[str, pd.DataFrame | float | str]",
) -> int:
    """Writes the figure, where there is one, as the run's figures/<name>.svg and .png. Prints the tables and where the
    figure is; with --json the run, its step and what was found, tables as lists of records."""
    from andrea_jax.kept import keep_figure
    from andrea_jax.plots import messages

    path = None if figure is None else keep_figure(loaded.run, name, figure)
    if args.json:
        values = {
            key: x if isinstance(x, float | int | str) else json.loads(x.to_json(orient="records") or "[]")
            for key, x in found.items()
        }
        print(json.dumps({"run": str(loaded.run.path), "step": loaded.step, **values, "figure": path}))
    else:
        messages.show(*tables)
        if path is not None:
            print(path)
    return 0
