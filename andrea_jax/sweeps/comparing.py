"""Many runs compared: tables of runs and heads, differences with intervals over seeds, matched heads, figures.

andrea_jax.compare_runs("configs/ablations/n-head.toml")
andrea_jax.compare_runs(["runs/a-1a2b3c4d", "runs/b-5e6f7a8b"])
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd
from rich.table import Table

from andrea_jax import plots
from andrea_jax.errors import UserError
from andrea_jax.plots import Figure, run_figures
from andrea_jax.plots.tables import new_table
from andrea_jax.runs import Run, write_atomically
from andrea_jax.side_by_side import matching
from andrea_jax.sweeps.differences import contrasts, differences, matches
from andrea_jax.sweeps.jobs import is_finished
from andrea_jax.sweeps.measured import (
    MEASURES,
    Measured,
    development_table,
    distinct,
    heads_table,
    measure,
    measures,
    runs_table,
)
from andrea_jax.sweeps.notes import notes
from andrea_jax.sweeps.plan import SEED, check, in_order, label, plan, varying

LONGEST = 44  # characters of a run's values that may stand for its name
Step = Literal["last", "best"] | int


@dataclass(frozen=True)
class RunsCompared:
    """keys: the dotted keys whose values differ between the runs. notes: what makes the comparison unequal.

    runs, heads: see `measured.runs_table`, `measured.heads_table` · differences, matches: see `differences` ·
    development: see `measured.development_table`, empty where no run has three scored checkpoints.
    """

    keys: tuple[str, ...]
    notes: tuple[str, ...]
    runs: pd.DataFrame
    heads: pd.DataFrame
    differences: pd.DataFrame
    matches: pd.DataFrame
    development: pd.DataFrame
    measured: tuple[Measured, ...] = dataclasses.field(repr=False)

    def save(self, folder: Path | str) -> list[Path]:
        """Writes each table (.parquet, .csv) and each figure (.png, .svg), each atomically; returns the PNGs' paths."""
        folder = Path(folder)
        for name in ("runs", "heads", "differences", "matches", "development"):
            table: pd.DataFrame = getattr(self, name)
            write_atomically(folder / f"{name}.csv", table.to_csv(index=False))
            write_atomically(folder / f"{name}.parquet", table.to_parquet(index=False))
        written = []
        for name, made in self.figures().items():
            written.append(write_atomically(folder / f"{name}.png", made.encode("png")))
            write_atomically(folder / f"{name}.svg", made.encode("svg"))
        return written

    def figures(self) -> dict[str, Figure]:
        """measures (against the settings), profiles, specialization and matched-heads: those there is something for."""
        made = {}
        if not self.differences.empty:
            title = run_figures.changed(self.differences, "heldout_loss", "Held-out loss (nats/token)")
            made["measures"] = plots.sweep(self._long(), self._key_names(), title)
        shown = {self._name(one): one.profile for one in self._shown()}
        made["profiles"] = run_figures.profiles({name: profile.table for name, profile in shown.items()},
                                                {name: profile.best for name, profile in shown.items()})  # fmt: skip
        if not self.development.empty:
            settings = {one.run.name: self._setting(one) for one in self.measured}
            table = self.development.assign(setting=[settings[name] for name in self.development["run"]])
            made["specialization"] = run_figures.specialization(table)
        if not self.matches.empty:
            made["matched-heads"] = run_figures.matched_heads(self.matches)
        return made

    def _shown(self) -> list[Measured]:
        """The runs of the first seed where there are settings to compare, else all; as many as fit a figure."""
        first = [one for one in self.measured if one.seed == self.measured[0].seed]
        return (first if len(first) > 1 else list(self.measured))[: run_figures.PANELS]

    def _key_names(self) -> str:
        return ", ".join(key for key in self.keys if key != SEED)

    def _name(self, one: Measured) -> str:
        named = label(one.experiment, self.keys)
        return named if 0 < len(named) <= LONGEST else one.run.name

    def _setting(self, one: Measured) -> str:
        return label(one.experiment, [key for key in self.keys if key != SEED]) or "all runs"

    def _taken(self, measure: str) -> bool:
        return bool(self.runs[measure].notna().to_numpy().any())

    def _long(self) -> pd.DataFrame:
        """setting, seed, measure, value, baseline: what `plots.sweep` draws."""
        rows = []
        for one, row in zip(self.measured, self.runs.to_dict("records"), strict=True):
            best = {found["probe"]: found["baseline"] for found in one.profile.best.to_dict("records")}
            for name in measures(self.keys):
                if self._taken(name):
                    about = {"setting": "\n".join(one.setting(self.keys)), "seed": one.seed, "measure": MEASURES[name]}
                    rows.append({**about, "value": row[name], "baseline": best.get(name)})
        return pd.DataFrame(rows).astype({"value": float, "baseline": float})

    def tables(self) -> list[Table]:
        """For the terminal: the runs, the differences, and how the heads of pairs of runs match."""
        return [self._runs_table(), *self._differences_table(), *self._matches_table(), *self._pair_table()]

    def _runs_table(self) -> Table:
        made = new_table(f"{len(self.runs)} runs", "\n".join(f"! {note}" for note in self.notes) or None)
        columns = [name for name in (*measures(self.keys), "peak_memory_mib") if self._taken(name)]
        made.add_column("run")
        for name in columns:
            made.add_column(name.replace("_", " "), justify="right")
        for one, row in zip(self.measured, self.runs.to_dict("records"), strict=True):
            made.add_row(self._name(one), *(_number(row[name], name) for name in columns))
        return made

    def _differences_table(self) -> list[Table]:
        if self.differences.empty:
            return []
        n = self.differences["low"].notna().to_numpy().sum()
        chance = f"; of {n} intervals, about {0.05 * n:.0f} leave 0 out by chance" if n >= 10 else ""
        made = new_table("Differences, with 95% intervals over seeds", f"seed by seed where seeds are shared{chance}")
        made.add_column("change")
        made.add_column("measure", no_wrap=True)
        for name in ("difference", "95% interval", "seeds"):
            made.add_column(name, justify="right", no_wrap=True)
        made.add_column("", no_wrap=True)
        last = None
        for row in self.differences.dropna(subset=["difference"]).to_dict("records"):
            name, style = row["measure"], "bold" if row["verdict"] == "beyond noise" else "dim"
            ends = "–" if math.isnan(row["low"]) else f"[{_signed(row['low'], name)}, {_signed(row['high'], name)}]"
            cells = [name.replace("_", " "), _signed(row["difference"], name), ends, str(row["n"]), row["verdict"]]
            made.add_row("" if row["contrast"] == last else row["contrast"], *cells, style=style)
            last = row["contrast"]
        return [made]

    def _matches_table(self) -> list[Table]:
        if self.matches.empty:
            return []
        caption = "distance of heads matched by what they do; chance: each behaviour dealt to the heads at random"
        made = new_table("Do the heads of two runs match?", caption)
        made.add_column("pairs of runs that differ in")
        for name in ("pairs", "distance", "chance", "closer than chance"):
            made.add_column(name, justify="right")
        for what, pairs in self.matches.groupby("what", sort=False):
            close = f"{(pairs['p'] < run_figures.CHANCE).sum()} of {len(pairs)}"
            means = [f"{pairs[name].mean():.2f}" for name in ("distance", "null")]
            made.add_row(str(what), str(len(pairs)), *means, close)
        return [made]

    def _pair_table(self) -> list[Table]:
        """The matched heads of two runs; of more they would be too many to read."""
        if len(self.measured) != 2:
            return []
        a, b = self.measured
        made = new_table("Matched heads", f"a: {a.run.name} · b: {b.run.name} · shares of attention above the baseline")
        for name in ("head of a", "head of b", "what a's does most", "a's share", "b's share", "distance"):
            made.add_column(name, justify="left" if "does" in name else "right")
        for row in matching(a.profile, b.profile).heads.to_dict("records"):
            numbers = (f"{row[name]:.2f}" for name in ("share_a", "share_b", "distance"))
            made.add_row(row["head_a"], row["head_b"], row["does"].replace("_", " "), *numbers)
        return [made]


def compare_runs(
    what: Path | str | Sequence[Path | str],
    overrides: Sequence[str] = (),
    root: Path | str = "runs",
    *,
    step: Step = "last",
    backend: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RunsCompared:
    """Compares run directories, by their values, or the finished runs in `root` of a sweep's config, in its order.

    Head profiles are computed, and saved in the runs, where they are missing. progress: called with (runs done, all).
    Raises UserError for fewer than two runs, where two are the same experiment, and where one cannot be read.
    """
    found, left_out = _of_sweep(what, overrides, root) if isinstance(what, Path | str) else (list(what), [])
    runs = [Run.open(path) for path in found]
    distinct(runs)
    runs = runs if isinstance(what, Path | str) else in_order(runs)
    if len(runs) < 2:
        raise UserError(f"{len(runs)} finished runs{' in ' + str(root) if left_out else ''}: it takes two to compare")
    measured = []
    for done, run in enumerate(runs):
        if progress:
            progress(done, len(runs))
        measured.append(measure(run.path, step, backend))
    keys = varying([run.experiment for run in runs])
    table = runs_table(measured, keys)
    return RunsCompared(
        keys=tuple(keys),
        notes=(*left_out, *notes(measured, contrasts(measured, keys))),
        runs=table,
        heads=heads_table(measured, keys),
        differences=differences(table, measured, keys),
        matches=matches(measured, keys),
        development=development_table(measured, keys),
        measured=tuple(measured),
    )


def _of_sweep(config: Path | str, overrides: Sequence[str], root: Path | str) -> tuple[list[Path], list[str]]:
    """The finished runs of a sweep, and a note about the others."""
    planned, found, missing = plan(config, overrides, root), [], []
    for experiment, path in zip(planned.experiments, planned.paths, strict=True):
        if path.exists():
            check(Run.open(path), experiment)
        ready = path.exists() and is_finished(Run.open(path))
        found += [path] if ready else []
        missing += [] if ready else [label(experiment, planned.keys) or path.name]
    n = f"{len(missing)} of {len(planned.paths)} runs are not finished and left out"
    return found, [f"{n}: {', '.join(missing)}"] if missing else []


def _number(value: float, name: str) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if name in ("tokens_per_s", "peak_memory_mib") else f"{value:.3f}"


def _signed(value: float, name: str) -> str:
    return f"{value:+,.0f}" if name == "tokens_per_s" else f"{value:+.3f}"
