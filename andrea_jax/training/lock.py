"""One process trains a run at a time: two would mix their metrics and remove each other's checkpoints."""

import contextlib
import fcntl
from collections.abc import Iterator

from andrea_jax.errors import UserError
from andrea_jax.runs import Run
from andrea_jax.training import hosts


class Elsewhere(UserError):
    """Another process trains the run."""


@contextlib.contextmanager
def locked(run: Run) -> Iterator[None]:
    """Holds `<run>/lock`, which the system releases with the process, however it ends. Elsewhere where it is taken.

    The file stays: removing it would let a third process lock another file of that name.
    """
    if not hosts.is_first():  # the first process holds it for all
        yield
        return
    with (run.path / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Elsewhere(f"{run.path}: is being trained by another process") from None
        yield
