"""Several slots share the runs of a sweep; no process is started here."""

import os
import signal
import threading
from pathlib import Path

import pytest

from andrea_jax.sweeps.jobs import FAILURE, Outcome
from andrea_jax.sweeps.slots import train_in


@pytest.fixture(autouse=True)
def _an_interrupt_interrupts():
    """Also where the tests were started in the background, which ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Board:
    """Stands for the real one; collects what it is told."""

    def __init__(self):
        self.begun: list[Path] = []
        self.outcomes: dict[Path, Outcome] = {}

    def began(self, path: Path) -> None:
        self.begun.append(path)

    def ended(self, path: Path, outcome: Outcome) -> None:
        self.outcomes[path] = outcome


class Slot:
    def __init__(self, everyone: threading.Barrier | None = None, error: Exception | None = None):
        self.everyone, self.error = everyone, error
        self.trained: list[Path] = []
        self.said: list[str] = []
        self.stopped = threading.Event()

    def train(self, path: Path) -> Outcome:
        self.trained.append(path)
        if self.error and len(self.trained) == 1:
            raise self.error
        if self.everyone and len(self.trained) == 1:
            self.everyone.wait(10)  # both slots have a run before one has its second
        return Outcome("finished")

    def stop(self) -> None:
        self.said.append("stop")
        self.stopped.set()

    def kill(self) -> None:
        self.said.append("kill")

    def close(self) -> None:
        self.said.append("close")


class Stubborn(Slot):
    """Trains until it is told to stop; interrupts the main thread once it trains."""

    def train(self, path: Path) -> Outcome:
        self.trained.append(path)
        os.kill(os.getpid(), signal.SIGINT)
        assert self.stopped.wait(10)
        return Outcome("stopped", "saved at step 3")


def paths(root: Path, n: int) -> list[Path]:
    made = [root / str(i) for i in range(n)]
    for path in made:
        path.mkdir()
    return made


def test_every_run_is_trained_once_by_whichever_slot_is_free(tmp_path):
    both, board, todo = threading.Barrier(2), Board(), paths(tmp_path, 7)
    slots = [Slot(both), Slot(both)]
    train_in(slots, todo, board)  # pyright: ignore[reportArgumentType]
    assert sorted(slots[0].trained + slots[1].trained) == todo == sorted(board.begun)
    assert all(slot.trained for slot in slots)
    assert set(board.outcomes.values()) == {Outcome("finished")}
    assert [slot.said for slot in slots] == [["close", "kill"]] * 2


def test_a_slot_that_fails_costs_one_run_and_not_the_others(tmp_path):
    board, todo = Board(), paths(tmp_path, 3)
    train_in([Slot(error=OSError("no memory for a process"))], todo, board)  # pyright: ignore[reportArgumentType]
    assert [board.outcomes[path].state for path in todo] == ["failed", "finished", "finished"]
    assert "OSError: no memory for a process" in (todo[0] / FAILURE).read_text()


def test_an_interrupt_has_what_trains_saved_and_begins_no_other(tmp_path):
    board, todo, slot = Board(), paths(tmp_path, 3), Stubborn()
    with pytest.raises(KeyboardInterrupt):
        train_in([slot], todo, board)  # pyright: ignore[reportArgumentType]
    assert board.outcomes == {todo[0]: Outcome("stopped", "saved at step 3")}
    assert slot.said == ["stop", "close", "kill"]
