"""What a person sees of a sweep: one table, a row a run, read from the run directories whoever trains them."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from andrea_jax.plots.tables import new_table
from andrea_jax.runs import Run
from andrea_jax.sweeps.jobs import FAILURE, Outcome, State, Swept, last_outcome
from andrea_jax.sweeps.plan import label, varying

STYLES: dict[State, str] = {"waiting": "dim", "training": "bold", "finished": "green", "failed": "bold red",
                            "stopped": "yellow", "elsewhere": "yellow"}  # fmt: skip
TAIL = 65_536  # bytes of metrics.jsonl that are looked at: many lines, whatever the number of heads
HEADER = ("step", "loss", "held-out", "tokens/s", "left")


class Board:
    """`outcomes`: of every run, by path; "training" while a launcher has it."""

    def __init__(self, runs: Sequence[Run], keys: Sequence[str]):
        self.runs, self.keys = runs, keys
        self.outcomes = {run.path: last_outcome(run) for run in runs}
        self._begun: dict[Path, float] = {}
        self._live = False

    def began(self, path: Path) -> None:
        self.outcomes[path], self._begun[path] = Outcome("training"), time.monotonic()

    def ended(self, path: Path, outcome: Outcome) -> None:
        self.outcomes[path] = outcome
        if not self._live:
            run = next(run for run in self.runs if run.path == path)
            took = f"{time.monotonic() - self._begun[path]:.0f} s"
            self.say(f"{self._name(run)}: {outcome.state}, {outcome.message or took} ({self._counts()})")

    def say(self, message: str) -> None:
        if not self._live:
            print(message, file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def shown(self, wanted: bool) -> Iterator[None]:
        """The table, kept up to date, where stderr is a terminal; a line for every run that ends elsewhere."""
        console = Console(stderr=True)
        if not (wanted and console.is_terminal):
            self._live = not wanted  # nothing is to be said
            yield
            return
        self._live = True
        with Live(get_renderable=lambda: self.table(console.height - 4), console=console, refresh_per_second=2,
                  transient=True):  # fmt: skip
            yield

    def table(self, most: int | None = None) -> Table:
        """A row a run; where there are more than `most`, those that finished or wait are only counted."""
        made = new_table(f"{len(self.runs)} runs: {self._counts()}")
        made.add_column("run", no_wrap=True)
        made.add_column("state", no_wrap=True)
        for name in HEADER:
            made.add_column(name, justify="right", no_wrap=True)
        shown = [run for run in self.runs if self._matters(run)] if most and len(self.runs) > most else self.runs
        for run in shown:
            outcome = self.outcomes[run.path]
            state = Text(outcome.state, STYLES[outcome.state])
            made.add_row(self._name(run), state, *look(run, outcome.state))
        return made

    def _matters(self, run: Run) -> bool:
        return self.outcomes[run.path].state not in ("finished", "waiting")

    def _name(self, run: Run) -> str:
        return label(run.experiment, self.keys) or run.name

    def _counts(self) -> str:
        states = [outcome.state for outcome in self.outcomes.values()]
        return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def result(found: Sequence[Swept]) -> list[Table]:
    """What became of each run; where some failed or are trained elsewhere, a second table says why."""
    board = Board([one.run for one in found], varying([one.run.experiment for one in found]))
    board.outcomes = {one.run.path: Outcome(one.state, one.message) for one in found}
    open_ends = [one for one in found if one.message and one.state != "finished"]
    if not open_ends:
        return [board.table()]
    reasons = new_table("Not finished", f"the same command tries again; tracebacks are in RUN/{FAILURE}")
    for name in ("run", "why"):
        reasons.add_column(name, overflow="fold")
    for one in open_ends:
        reasons.add_row(Text(str(one.run.path)), Text(f"{one.state}: {one.message}"))
    return [board.table(), reasons]


def look(run: Run, state: State) -> list[str]:
    """The cells under `HEADER`, from the last lines of metrics.jsonl: losses in nats a token."""
    last = {key: value for line in _tail(run.path / "metrics.jsonl") for key, value in line.items()}
    steps, a_step = run.experiment.train.steps, run.experiment.train.batch_size * run.experiment.data.seq_len
    step, rate = last.pop("step", 0), last.pop("tokens_per_s", None)
    losses = [f"{last[key]:.3f}" if isinstance(last.get(key), float) else "" for key in ("loss", "eval_loss")]
    left = _duration((steps - step) * a_step / rate) if rate and state == "training" else ""
    return [f"{step}/{steps}", *losses, f"{rate:,.0f}" if rate else "", left]


def _tail(path: Path) -> list[dict]:
    """The last whole lines of a file that another process may be writing; none where there is no file yet."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - TAIL, 0))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the first and the last may be cut
            found.append(json.loads(line))
    return [line for line in found if isinstance(line, dict)]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
