"""Training runs of a sweep to their end, in whatever process: nothing that goes wrong in it may end the sweep."""

import logging
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from andrea_jax import data
from andrea_jax.config import Data, Experiment
from andrea_jax.data import Dataset
from andrea_jax.profiled import profiler
from andrea_jax.runs import Run, now, write_atomically
from andrea_jax.training import Elsewhere, Interrupted, train, train_together

# elsewhere: another process trains it. stopped: saved, and to be continued
State = Literal["waiting", "training", "finished", "failed", "stopped", "elsewhere"]
FAILURE = "failure.txt"  # in a run directory: why training it failed last time
_LOG = logging.getLogger("andrea_jax")
_OPENED: dict[tuple[Data, int], Dataset] = {}


class Outcome(NamedTuple):
    """What became of a run, and what there is to say about it, in one line."""

    state: State
    message: str = ""


class Swept(NamedTuple):
    """A run of a sweep and what became of it."""

    run: Run
    state: State
    message: str


def work(path: Path | str) -> Outcome:
    """Trains the run at `path` to its end, from where it is. An error is written to its failure.txt and returned."""
    path = Path(path)
    try:
        run = Run.open(path)
        if is_finished(run):
            return Outcome("finished")
        (path / FAILURE).unlink(missing_ok=True)
        found = dataset(run.experiment)
        train(run, found, progress=False, profile=profiler(run, found))
    except Exception as error:  # whatever it is, the other runs go on
        return _failed(path, error)
    return Outcome("finished")


def work_together(paths: Sequence[Path]) -> list[Outcome]:
    """The same of several runs in one program, see `training.train_together`. What fails for all is written to each."""
    try:
        runs = [Run.open(path) for path in paths]
        for path in paths:
            (path / FAILURE).unlink(missing_ok=True)
        found = dataset(runs[0].experiment)
        ended = train_together(runs, found, [profiler(run, found) for run in runs])
    except Exception as error:
        ended = [error] * len(paths)
    return [_failed(path, one) if isinstance(one, Exception) else Outcome("finished")
            for path, one in zip(paths, ended, strict=True)]  # fmt: skip


def _failed(path: Path, error: Exception) -> Outcome:
    if isinstance(error, Elsewhere):
        return Outcome("elsewhere", "another process trains it")
    if isinstance(error, Interrupted):
        return Outcome("stopped", f"saved at step {error.step}")
    said = str(error).removeprefix(f"{path}: ") or type(error).__name__
    return fail(path, said, "".join(traceback.format_exception(error)))


def is_finished(run: Run) -> bool:
    return bool(run.provenance.get("finished"))  # there once training began


def fail(path: Path, message: str, details: str) -> Outcome:
    """Writes <run>/failure.txt."""
    write_atomically(path / FAILURE, f"{now()}: {message}\n\n{details.strip()}\n")
    return Outcome("failed", message.splitlines()[0])


def last_outcome(run: Run) -> Outcome:
    """What the run directory says of the last time."""
    if is_finished(run):
        return Outcome("finished")
    failure = run.path / FAILURE
    if failure.exists():
        return Outcome("failed", failure.read_text(encoding="utf-8").splitlines()[0].partition(": ")[2])
    return Outcome("stopped" if run.metrics() else "waiting")


def dataset(experiment: Experiment) -> Dataset:
    """The data of an experiment, opened once a process."""
    key = (experiment.data, experiment.model.vocab_size)
    if key not in _OPENED:
        _OPENED[key] = data.prepare(experiment, progress=_LOG.info)
    return _OPENED[key]
