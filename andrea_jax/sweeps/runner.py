"""Running a sweep: what is finished is skipped, what was interrupted goes on, what fails is written down."""

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Literal

from andrea_jax.runs import Run
from andrea_jax.sweeps.board import Board
from andrea_jax.sweeps.jobs import Swept, dataset
from andrea_jax.sweeps.local import train_here, workers
from andrea_jax.sweeps.on_ray import connected, tasks
from andrea_jax.sweeps.plan import open_runs, plan
from andrea_jax.sweeps.slots import train_in
from andrea_jax.sweeps.together import groups, refuse

Launcher = Literal["local", "ray"]


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: what was training is saved, and the same sweep goes on from there."""

    def __init__(self, found: list[Swept]):
        self.found = found
        super().__init__(f"stopped with {sum(one.state == 'finished' for one in found)} of {len(found)} runs finished")


def sweep(
    config: Path | str,
    overrides: Sequence[str] = (),
    root: Path | str = "runs",
    *,
    workers: int = 1,
    launcher: Launcher = "local",
    vmap_seeds: bool = False,
    progress: bool = True,
) -> list[Swept]:
    """Trains every run of a config's [sweep], in <root>/<config name>-<run_id> each, `workers` at a time.

    launcher "local": in this process, or in worker processes where workers > 1; "ray": as tasks on a Ray cluster.
    vmap_seeds: runs that differ in their seed alone, and stand at the same step, train in one program (`together`).
    A run that fails leaves its traceback in its failure.txt; one that another process trains is left to it. Both are
    tried again by the next call, which otherwise goes on where this one ended, however it ended.

    Raises UserError before anything is trained where the config is wrong, its data cannot be made, or what lies in
    `root` is not what this sweep would write; Stopped on Ctrl-C or SIGTERM.
    """
    planned = plan(config, overrides, root)
    if vmap_seeds:
        refuse(planned.experiments, workers, launcher)
    if launcher == "ray":
        connected()  # first of all: Ray may be missing, and it changes what signals do
    runs = open_runs(planned)
    board = Board(runs, planned.keys)
    todo = [run for run in runs if board.outcomes[run.path].state != "finished"]
    with _interrupted_by_signals(), board.shown(progress):
        try:
            for run in todo:
                dataset(run.experiment)  # built here, so that workers find it in the cache
            _launch(groups(todo) if vmap_seeds else _each(todo), board, workers, launcher)
            left = [run for run in todo if board.outcomes[run.path].state == "elsewhere"]
            _launch(_each(left), board, workers, launcher)  # who trained them may be done, or gone
        except KeyboardInterrupt:
            raise Stopped(_found(board)) from None
    return _found(board)


def _each(runs: Sequence[Run]) -> list[list[Run]]:
    return [[run] for run in runs]


def _launch(groups: Sequence[Sequence[Run]], board: Board, n: int, launcher: Launcher) -> None:
    """Several runs in a group train here."""
    n, paths = min(n, len(groups)), [[run.path for run in group] for group in groups]
    if launcher == "ray":
        train_in(tasks(n), [path for (path,) in paths], board)
    elif n > 1:
        train_in(workers(n), [path for (path,) in paths], board)
    else:
        train_here(paths, board)


def _found(board: Board) -> list[Swept]:
    return [Swept(run, *board.outcomes[run.path]) for run in board.runs]


@contextlib.contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt, where this is the main thread; a shell's background jobs ignore
    SIGINT otherwise."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
