"""What the command line shows: tables on stdout, progress and the package's log on stderr."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import Progress
from rich.table import Table


def show(*tables: Table) -> None:
    """Prints tables; where stdout is no terminal, wide enough for whole rows."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    for table in tables:
        console.print(table)


def show_log() -> None:
    """Shows what was chosen automatically (the "andrea_jax" logger at INFO) on stderr."""
    logger = logging.getLogger("andrea_jax")
    if not logger.handlers:
        logger.addHandler(_ToStderr())
        logger.setLevel(logging.INFO)
        logger.propagate = False  # libraries put a handler of their own on the root logger


class _ToStderr(logging.Handler):
    """Writes to what stderr is at the time: a live table stands in for it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(what: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, where that is a terminal, gone when done; yields a function to be told (done, total)."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        def tell(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield tell
