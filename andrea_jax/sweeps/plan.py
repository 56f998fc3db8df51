"""A sweep: the experiments that a config's [sweep] describes, and the run directory of each."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from andrea_jax import config_files, runs
from andrea_jax.config import Experiment
from andrea_jax.config_keys import ANNOTATIONS, value_of
from andrea_jax.errors import UserError
from andrea_jax.runs import Run

SEED = "train.seed"


@dataclass(frozen=True)
class Sweep:
    """Run i has experiments[i] and lies in <root>/<name>-<run_id>, where `andrea train` would put it."""

    name: str
    root: Path
    experiments: tuple[Experiment, ...]

    @functools.cached_property
    def keys(self) -> list[str]:
        """The dotted keys whose values differ between the experiments."""
        return varying(self.experiments)

    @property
    def paths(self) -> list[Path]:
        return [self.root / f"{self.name}-{config_files.run_id(experiment)}" for experiment in self.experiments]


def plan(config: Path | str, overrides: Sequence[str] = (), root: Path | str = "runs") -> Sweep:
    """The sweep of a config file; nothing is written. Raises UserError as `config_files.expand` does."""
    config = Path(config)
    return Sweep(config.stem, Path(root), tuple(config_files.expand(config, overrides)))


def varying(experiments: Sequence[Experiment]) -> list[str]:
    """The dotted keys that do not have the same value in all the experiments, the seed last."""
    keys = [key for key in ANNOTATIONS if len({value_of(experiment, key) for experiment in experiments}) > 1]
    return sorted(keys, key=lambda key: key == SEED)


def in_order(runs: Sequence[Run]) -> list[Run]:
    """By the values of the keys that differ, numbers ascending, and words after them."""
    keys = varying([run.experiment for run in runs])

    def rank(value: object) -> tuple[int, float, str]:
        return (0, value, "") if isinstance(value, int | float) else (1, 0, shown(value))

    return sorted(runs, key=lambda run: [rank(value_of(run.experiment, key)) for key in keys])


def short(keys: Sequence[str]) -> dict[str, str]:
    """Each key without its section, where that names one of them only."""
    names = [key.partition(".")[2] for key in keys]
    return {key: name if names.count(name) == 1 else key for key, name in zip(keys, names, strict=True)}


def label(experiment: Experiment, keys: Sequence[str]) -> str:
    """The values of some keys: "n_head 2 · seed 1"."""
    return " · ".join(f"{name} {shown(value_of(experiment, key))}" for key, name in short(keys).items())


def shown(value: object) -> str:
    """A value as a person writes it: 2, per_head, 1e-05, 11,17."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else "default" if value is None else str(value)


def open_runs(sweep: Sweep) -> list[Run]:
    """The run of every experiment, made where it is not there yet.

    Raises UserError, a line each, where something else lies in the place of a run: a directory half written, of another
    format or of another experiment, or one with a damaged metrics file. Nothing is made then.
    """
    wrong = []
    for experiment, path in zip(sweep.experiments, sweep.paths, strict=True):
        try:
            if path.exists():
                check(Run.open(path), experiment)
        except UserError as error:
            wrong.append(str(error))
    if wrong:
        raise UserError("\n".join(wrong))
    return [_open(sweep, *pair) for pair in zip(sweep.experiments, sweep.paths, strict=True)]


def check(run: Run, experiment: Experiment) -> None:
    """Raises UserError where the run is not one of this experiment, or its metrics cannot be read."""
    found, expected = config_files.run_id(run.experiment), config_files.run_id(experiment)
    if found != expected:
        text = f"is another experiment, run {found}: it was changed since the run was made"
        raise UserError(f"{run.path / 'config.toml'}: {text}")
    run.metrics()


def _open(sweep: Sweep, experiment: Experiment, path: Path) -> Run:
    if path.exists():
        return Run.open(path)
    try:
        return runs.create(sweep.root, experiment, sweep.name)
    except UserError:
        return Run.open(path)  # another sweep made it in the meantime; else this says what is wrong
