"""Several runs at a time: each slot trains one run after the other, in a process of its own."""

import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from andrea_jax.sweeps.board import Board
from andrea_jax.sweeps.jobs import Outcome, fail


class Slot(Protocol):
    """`train` trains the run at a path and waits for it. `stop` has the run saved, and train return; `kill` does not
    wait for that. Both are called from another thread, at any time; `close` after the last run."""

    def train(self, path: Path) -> Outcome: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


def train_in(slots: Sequence[Slot], paths: Sequence[Path], board: Board) -> None:
    """Trains the runs, each in the first slot that is free.

    Raises KeyboardInterrupt after one, once what was training is saved; a second one does not wait.
    """
    todo, stopping, ends = iter(paths), threading.Event(), [threading.Event() for _ in slots]

    def serve(slot: Slot, end: threading.Event) -> None:
        while not stopping.is_set() and (path := next(todo, None)):
            board.began(path)
            try:
                outcome = slot.train(path)
            except Exception as error:  # no process could be started, for example
                outcome = fail(path, str(error), traceback.format_exc())
            board.ended(path, outcome)
        slot.close()
        end.set()

    try:
        for slot, end in zip(slots, ends, strict=True):
            threading.Thread(target=serve, args=(slot, end), daemon=True).start()
        _wait(ends)
    except KeyboardInterrupt:
        stopping.set()
        for slot in slots:
            slot.stop()
        _wait(ends)
        raise
    finally:
        for slot in slots:
            slot.kill()


def _wait(ends: Sequence[threading.Event]) -> None:
    """Not by Thread.join: where that is interrupted, Python 3.12 takes the thread for ended."""
    for end in ends:
        while not end.wait(0.2):  # a wait without a limit would not be interrupted
            pass
