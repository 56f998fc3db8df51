"""What a person sees while a run trains: a bar in a terminal, a line every few seconds elsewhere."""

import sys
import time
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

SECONDS_A_LINE = 5.0


def duration(seconds: float) -> str:
    """ "42 s", "7.5 min", "3.2 h", "12.1 days"."""
    for name, length, up_to in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < up_to:
            return f"{seconds:.0f} s" if name == "s" else f"{seconds / length:.3g} {name}"
    return f"{seconds / 86_400:.3g} days"


class Display(Protocol):
    """Told after every finished step; `say` prints a message that stays."""

    def step(self, step: int, loss: float, tokens_per_s: float) -> None: ...

    def say(self, message: str) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Shows nothing."""

    def step(self, step: int, loss: float, tokens_per_s: float) -> None: ...

    def say(self, message: str) -> None: ...

    def close(self) -> None: ...


class Lines:
    """Plain lines, at most one every `SECONDS_A_LINE`: for logs, pipes and notebooks."""

    def __init__(self, steps: int, done: int):
        self._steps, self._done, self._begin = steps, done, time.monotonic()
        self._last = self._begin

    def step(self, step: int, loss: float, tokens_per_s: float) -> None:
        now = time.monotonic()
        if now - self._last < SECONDS_A_LINE and step != self._steps:
            return
        self._last = now
        if not tokens_per_s:  # the step that was compiled: it tells nothing about the others
            self._begin, self._done = now, step
            self.say(f"step {step}/{self._steps}  loss {loss:.3f}")
            return
        left = (self._steps - step) * (now - self._begin) / max(step - self._done, 1)
        speed = f"{tokens_per_s:,.0f} tokens/s  {duration(left)} left"
        self.say(f"step {step}/{self._steps}  loss {loss:.3f}  {speed}")

    def say(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    def close(self) -> None: ...


class Bar:
    """A progress bar: step, loss, tokens/s, time left."""

    def __init__(self, console: Console, steps: int, done: int):
        columns = (
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("loss {task.fields[loss]:.3f}  {task.fields[rate]:,.0f} tokens/s"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, refresh_per_second=4)
        self._task = self._bar.add_task("training", total=steps, completed=done, loss=float("nan"), rate=0.0)
        self._bar.start()

    def step(self, step: int, loss: float, tokens_per_s: float) -> None:
        self._bar.update(self._task, completed=step, loss=loss, rate=tokens_per_s)

    def say(self, message: str) -> None:
        self._bar.console.print(message, markup=False, highlight=False)

    def close(self) -> None:
        self._bar.stop()


def display(wanted: bool, steps: int, done: int) -> Display:
    """A bar where stderr is a terminal, lines where it is not, nothing where nothing is wanted."""
    if not wanted:
        return Silent()
    console = Console(stderr=True)
    return Bar(console, steps, done) if console.is_terminal else Lines(steps, done)
