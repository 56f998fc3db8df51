"""The figure and the verdicts of a benchmark again, from its file: after a change to either, or if it was stopped."""

import json
from pathlib import Path

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
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        name, rows = about["benchmark"], about["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: must be the JSON file of a benchmark, and cannot be read as one ({error})") from error
    if name not in FIGURES:
        raise UserError(f"{path}: holds no benchmark that can be drawn: {name}{did_you_mean(name, FIGURES)}")
    more = (about["ceiling_tflops"],) if name == "projections" else ()
    figure = FIGURES[name](rows, made_on(about), *more)
    for kind in ("png", "svg"):
        write_atomically(path.with_suffix(f".{kind}"), figure.encode(kind))
    verdicts = FINDINGS[name](rows)
    write_atomically(path, json.dumps({**about, "verdicts": verdicts}, indent=1, ensure_ascii=False) + "\n")
    return verdicts
