"""The figure and the verdicts of a benchmark again, from its file: after a change to either, or if it was stopped; and
one file of several, where it was run in pieces."""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from andrea_jax.benchmarks.results import made_on
from andrea_jax.errors import UserError, did_you_mean
from andrea_jax.plots import benchmark_figures, benchmark_findings, mesh_figures, scoring_figures, train_figures
from andrea_jax.runs import write_atomically

FIGURES = {
    "attention": benchmark_figures.attention,
    "projections": benchmark_figures.projections,
    "layout": benchmark_figures.layout,
    "head-dim": benchmark_figures.head_dim,
    "scoring": scoring_figures.scoring,
    "mesh": mesh_figures.many_devices,
    "train": train_figures.train,
}
FINDINGS = {
    "attention": benchmark_findings.attention,
    "projections": benchmark_findings.projections,
    "layout": benchmark_findings.layout,
    "head-dim": benchmark_findings.head_dim,
    "scoring": scoring_figures.verdicts,
    "mesh": mesh_figures.verdicts,
    "train": train_figures.verdicts,
}


def redraw(path: Path) -> list[str]:
    """Writes the figure beside a benchmark's JSON file and the verdicts into it; returns them. Times stay as they are.

    Raises UserError for a file that is no benchmark's.
    """
    about = _read(path)
    name, rows = about["benchmark"], about["rows"]
    more = (about["ceiling_tflops"],) if name == "projections" else ()
    figure = FIGURES[name](rows, made_on(about), *more)
    for kind in ("png", "svg"):
        write_atomically(path.with_suffix(f".{kind}"), figure.encode(kind))
    verdicts = FINDINGS[name](rows)
    write_atomically(path, json.dumps({**about, "verdicts": verdicts}, indent=1, ensure_ascii=False) + "\n")
    return verdicts


def join(paths: Sequence[Path], folder: Path) -> Path:
    """The rows of several files of one benchmark as one, `<folder>/<benchmark>.json`, .csv and .parquet; returns it.

    Each row keeps its ratio to what was measured beside it. Everything else is that of the last file; "parts" has when
    and by which command each was measured. Raises UserError for files of different benchmarks, devices, dtypes or
    versions of JAX.
    """
    files = [_read(path) for path in paths]
    for path, about in zip(paths, files, strict=True):
        for what, there in _kind(files[0]).items():
            if (here := _kind(about)[what]) != there:
                raise UserError(f"{path}: {what} must be as in {paths[0]}, {there}, not {here}")
    rows = [row for about in files for row in about["rows"]]
    told = [{key: about[key] for key in ("date", "finished", "command", "commit", "ceiling_tflops")} for about in files]
    target, table = folder / f"{files[0]['benchmark']}.json", pd.DataFrame(rows)
    write_atomically(
        target, json.dumps({**files[-1], "parts": told, "rows": rows}, indent=1, ensure_ascii=False) + "\n"
    )
    write_atomically(target.with_suffix(".csv"), table.to_csv(index=False))
    write_atomically(target.with_suffix(".parquet"), table.to_parquet(index=False))
    return target


def _read(path: Path) -> dict:
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        name, _ = about["benchmark"], about["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: must be the JSON file of a benchmark, and cannot be read as one ({error})") from error
    if name not in FIGURES:
        raise UserError(f"{path}: holds no benchmark that can be drawn: {name}{did_you_mean(name, FIGURES)}")
    return about


def _kind(about: dict) -> dict[str, str]:
    return {
        "benchmark": about["benchmark"], "device": about["device"]["kind"], "dtype": about["settings"]["dtype"],
        "jax": about["versions"]["jax"],
    }  # fmt: skip
