"""Tables for the terminal (rich). Each function returns a `rich.table.Table`; the caller prints it."""

from collections.abc import Mapping, Sequence

import pandas as pd
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from andrea_jax.plots import rows
from andrea_jax.plots.words import PROBES
from andrea_jax.runs import Run

_STYLES = {"null": "dim", "undefined": "dim", "above": "bold", "below": "", "statistic": ""}


def heads_table(best: pd.DataFrame) -> Table:
    """One row a probe: the head chosen on one half of the sequences, its figures from the other half.

    best: columns probe, layer, head, score, low, high, baseline, control, n.
    """
    table = new_table("Heads", rows.BEST_CAPTION)
    table.add_column("probe: a head that …")
    for name in rows.BEST_HEADER[2:]:
        table.add_column(name, justify="right", no_wrap=True)
    for kind, (label, seeks, *cells) in rows.best_rows(best):
        probe = Text.assemble(label, (f"\n  {seeks}", "not bold dim"))
        table.add_row(probe, *(escape(cell) for cell in cells), style=_STYLES[kind])
    return table


def all_heads_table(table: pd.DataFrame) -> Table:
    """All heads × all probes, scores only; the first row holds the baselines.

    table: columns probe, layer, head, score, low, high, baseline, undefined.
    """
    made = new_table("All heads", rows.ALL_CAPTION)
    made.padding = 0  # one space between columns: thirteen probes in 80
    made.add_column("head", no_wrap=True)
    for probe in rows.probes(table):
        made.add_column(PROBES[probe].short, justify="right", no_wrap=True)
    for i, (name, cells) in enumerate(rows.all_rows(table)):
        made.add_row(name, *(Text(cell.text, _STYLES[cell.kind]) for cell in cells), end_section=i == 0)
    return made


def params_table(parts: Mapping[str, int], caption: str | None = None) -> Table:
    """Parameters by part, with their share of the total."""
    table, total = new_table("Parameters", caption), sum(parts.values())
    table.add_column("part")
    for name in ("parameters", "share"):
        table.add_column(name, justify="right")
    for i, (name, n) in enumerate(parts.items()):
        table.add_row(escape(name), f"{n:,}", f"{n / max(total, 1):.1%}", end_section=i == len(parts) - 1)
    table.add_row("total", f"{total:,}", "100.0%", style="bold")
    return table


def memory_table(memory: Mapping[str, int], caption: str) -> Table:
    """Bytes on each device by part, with their share of the total, in GB (10^9)."""
    table, total = new_table("Memory", caption), sum(memory.values())
    table.add_column("part")
    for name in ("GB", "share"):
        table.add_column(name, justify="right")
    for i, (name, n) in enumerate(memory.items()):
        table.add_row(escape(name), f"{n / 1e9:.3f}", f"{n / total:.1%}", end_section=i == len(memory) - 1)
    table.add_row("total", f"{total / 1e9:.3f}", "100.0%", style="bold")
    return table


def work_table(rows_of: Mapping[str, str]) -> Table:
    """What a run computes: name -> number and unit."""
    table = new_table("Work")
    table.add_column("what")
    table.add_column("how much", justify="right")
    for row in rows_of.items():
        table.add_row(*row)
    return table


def equality_table(checks: pd.DataFrame, caption: str) -> Table:
    """How far the other projection forms are from a model's own.

    checks: columns form, quantity, max_difference, tolerance. A difference beyond its tolerance is red.
    """
    table = new_table("The same function?", caption)
    for name in ("converted to", "quantity"):
        table.add_column(name, no_wrap=True)
    for name in ("largest difference", "tolerance"):
        table.add_column(name, justify="right")
    form = None
    for row in checks.to_dict("records"):
        difference, within = row["max_difference"], row["max_difference"] <= row["tolerance"]
        text = "0, bit-equal" if difference == 0 else f"{difference:.1e}"
        tolerance = f"{row['tolerance']:.0e}" if row["tolerance"] else "0"
        cells = [row["quantity"], Text(text, "" if within else "bold red"), tolerance]
        table.add_row("" if row["form"] == form else row["form"], *cells)
        form = row["form"]
    return table


def timing_table(timing: pd.DataFrame, caption: str) -> Table:
    """What each projection form costs; × is the fastest call over that of the first form, the same passes.

    timing: columns form, passes, matmuls, min_ms, median_ms, gflop_s, temp_mib.
    """
    table = new_table("What does it cost?", f"{caption}; ×: fastest call over that of the first form")
    for name in ("passes", "form"):
        table.add_column(name, no_wrap=True)
    for name in ("matmuls", "fastest ms", "median ms", "×", "GFLOP/s", "memory MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    for passes, rows_of in timing.groupby("passes", sort=False):
        first = rows_of["min_ms"].iloc[0]
        for i, row in enumerate(rows_of.to_dict("records")):
            numbers = [f"{row['min_ms']:.3g}", f"{row['median_ms']:.3g}", f"{row['min_ms'] / first:.2f}"]
            numbers += [f"{row['gflop_s']:.3g}", f"{row['temp_mib']:.2f}"]
            last = i == len(rows_of) - 1
            table.add_row("" if i else str(passes), row["form"], str(row["matmuls"]), *numbers, end_section=last)
    return table


def runs_table(runs: Sequence[Run]) -> Table:
    """One row a run: name, projection, shape, steps done and asked for, last held-out loss."""
    table = new_table("Runs")
    for name in ("run", "projection", "layers × heads"):
        table.add_column(name)
    for name in ("steps", "held-out loss (nats/token)"):
        table.add_column(name, justify="right")
    for run in runs:
        metrics, e = run.metrics(), run.experiment
        losses = [f"{row['eval_loss']:.3f}" for row in metrics if "eval_loss" in row]
        steps = f"{metrics[-1]['step'] if metrics else 0} of {e.train.steps}"
        shape = f"{e.model.n_layer} × {e.model.n_head}"
        table.add_row(escape(run.name), e.model.projection, shape, steps, losses[-1] if losses else "–")
    return table


def new_table(title: str, caption: str | None = None) -> Table:
    """An empty table in the house's style."""
    made = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    made.title_justify = made.caption_justify = "left"
    made.title_style, made.caption_style, made.collapse_padding = "bold", "dim", True
    return made
