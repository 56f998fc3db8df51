"""What a benchmark leaves behind: rows and circumstances, on disk as soon as a group of rows is measured."""

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import jax
import pandas as pd

from andrea_jax.benchmarks.programs import Row
from andrea_jax.benchmarks.timing import limits
from andrea_jax.plots import Figure
from andrea_jax.plots.benchmark_rows import timed
from andrea_jax.runs import circumstances, now, write_atomically
from andrea_jax.training import device

PACKAGES = ("jax-cuda13-plugin", "nvidia-cudnn-cu13", "triton", "jax-triton", "torch", "tokamax", "dew-flash-attn-cu13")


class Results:
    """The rows of one benchmark, in `<folder>/<name>.json` (with when, on what and how), `.csv` and `.parquet`.

    settings: what was asked for. Every group of rows is written as it comes, so that a benchmark which is stopped
    keeps what it has; "finished" in the JSON is null until the last row, the verdicts and the figure are there.
    """

    def __init__(self, folder: Path, name: str, settings: Row, dtype: str, repeats: int):
        self.path = folder / f"{name}.json"
        self.rows: list[Row] = []
        self._about: Row = {
            "benchmark": name,
            "date": now(),
            "finished": None,
            "device": {**device(), "runtime": jax.devices()[0].client.platform_version.split("\n")[0]},
            **circumstances(),
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),  # results are shared: no paths of a machine
            "settings": {**settings, "dtype": dtype, "repeats": repeats},
            **limits(dtype, repeats),
            "verdicts": [],
        }
        self._about["versions"] |= {package: _version(package) for package in PACKAGES}

    @property
    def of(self) -> str:
        """On what, for the foot of a table or figure."""
        return made_on(self._about)

    @property
    def ceiling(self) -> float:
        """TFLOP/s of a large matrix product, measured in the same run."""
        return self._about["ceiling_tflops"]

    @property
    def verdicts(self) -> list[str]:
        return self._about["verdicts"]

    def add(self, rows: Sequence[Row]) -> None:
        self.rows += rows
        self._write()

    def finish(self, verdicts: Sequence[str], draw: Callable[[], Figure]) -> None:
        """draw: the figure; not called where no row has a time."""
        self._about |= {"finished": now(), "verdicts": list(verdicts)}
        if any(row["us"] is not None for row in self.rows):
            figure = draw()
            for kind in ("png", "svg"):
                write_atomically(self.path.with_suffix(f".{kind}"), figure.encode(kind))
        self._write()

    def as_json(self) -> Row:
        return {**self._about, "rows": self.rows}

    def _write(self) -> None:
        table = pd.DataFrame(self.rows)
        write_atomically(self.path, json.dumps(self.as_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        write_atomically(self.path.with_suffix(".csv"), table.to_csv(index=False))
        write_atomically(self.path.with_suffix(".parquet"), table.to_parquet(index=False))


def made_on(about: Row) -> str:
    """On what a benchmark ran, of its JSON file, for the foot of a table or figure."""
    device, dtype, jax_version = about["device"]["kind"], about["settings"]["dtype"], about["versions"]["jax"]
    return (
        f"{device}, {dtype}, jax {jax_version}, {about['date'][:10]}; "
        f"ceiling {about['ceiling_tflops']:.3g} TFLOP/s, a large matrix product; "
        f"least time of a short call {about['smallest_us']:.2g} µs"
    )


def relative(rows: Sequence[Row], to: Row, within: Sequence[str]) -> list[Row]:
    """The rows with "ratio": the time over that of the row with the values `to` and the same values of `within`."""
    times = {tuple(row[key] for key in within): row["us"] for row in timed(rows) if to.items() <= row.items()}

    def ratio(row: Row) -> float | None:
        base = tuple(row[key] for key in within)
        return row["us"] / times[base] if base in times and row["us"] is not None else None

    return [{**row, "ratio": ratio(row)} for row in rows]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
