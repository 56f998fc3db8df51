"""Turns the metrics that steps leave on the device into lines of metrics.jsonl."""

import math
import time
from collections import deque

import numpy as np

from andrea_jax.errors import UserError
from andrea_jax.runs import Json, Run
from andrea_jax.training.progress import Display
from andrea_jax.training.step import Metrics

LOG_EVERY = 10  # steps a line
LAG = 2  # steps whose metrics are not asked for yet, so that the device never waits for Python
FETCHED = ("loss", "grad_norm", "learning_rate")  # of every step


class Recorder:
    """Fetches each step's metrics `LAG` steps later, checks them, and writes a line every `LOG_EVERY` steps.

    A line: step, tokens (seen so far), loss (nats a token, mean over the steps since the last line), grad_norm and
    learning_rate of that step, tokens_per_s (since the last line; compiling, evaluating and saving do not count; of a
    run that steps together with others its own tokens, over the time of all).
    """

    def __init__(self, run: Run, display: Display, unlogged: list[float]):
        train, data = run.experiment.train, run.experiment.data
        self._run, self._display = run, display
        self._tokens_a_step, self._steps = train.batch_size * data.seq_len, train.steps
        self._waiting: deque[tuple[int, Metrics]] = deque()
        self.unlogged = list(unlogged)
        self.head_grad_norm: list[list[float]] = []  # of the last step after `drain`
        self._clock: float | None = None  # when the timed stretch began; None: not timing
        self._timed_steps = self._line_steps = 0
        self._timed_s = self._line_s = 0.0

    def add(self, step: int, metrics: Metrics) -> None:
        """Takes the metrics of a step just dispatched."""
        for name in FETCHED:
            metrics[name].copy_to_host_async()  # asked for only when needed, each would wait for its own way from a GPU
        self._waiting.append((step, metrics))
        while len(self._waiting) > LAG:
            self._finish(*self._waiting.popleft())

    def drain(self) -> None:
        """Waits for all steps dispatched so far and stops the clock: what follows is not training time."""
        last = self._waiting[-1][1] if self._waiting else None
        while self._waiting:
            self._finish(*self._waiting.popleft())
        if last is not None:
            self.head_grad_norm = np.asarray(last["head_grad_norm"], np.float64).tolist()
        self._clock = None

    @property
    def tokens_per_s(self) -> float:
        """Over all timed steps; 0.0 before there is one."""
        return self._timed_steps * self._tokens_a_step / self._timed_s if self._timed_s else 0.0

    @property
    def run_s(self) -> float:
        """What all steps of the run take at this speed, seconds; 0.0 before it is known."""
        return self._steps * self._timed_s / self._timed_steps if self._timed_steps else 0.0

    def _finish(self, step: int, metrics: Metrics) -> None:
        loss, grad_norm = float(metrics["loss"]), float(metrics["grad_norm"])
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise NotFinite(f"step {step}: the loss is {loss} and the gradient norm {grad_norm}")
        self._time_step()
        self.unlogged.append(loss)
        self._display.step(step, loss, self.tokens_per_s)
        if step % LOG_EVERY == 0 or step == self._steps:
            self._write(step, grad_norm, float(metrics["learning_rate"]))

    def _time_step(self) -> None:
        now = time.perf_counter()
        if self._clock is not None:  # the first step of a stretch compiles or follows an evaluation: not timed
            self._timed_s, self._timed_steps = self._timed_s + now - self._clock, self._timed_steps + 1
            self._line_s, self._line_steps = self._line_s + now - self._clock, self._line_steps + 1
        self._clock = now

    def _write(self, step: int, grad_norm: float, learning_rate: float) -> None:
        line: dict[str, Json] = {
            "step": step,
            "tokens": step * self._tokens_a_step,
            "loss": math.fsum(self.unlogged) / len(self.unlogged),
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
            "tokens_per_s": self._line_steps * self._tokens_a_step / self._line_s if self._line_s else None,
        }
        self._run.append_metrics(line)
        self.unlogged.clear()
        self._line_s, self._line_steps = 0.0, 0


class NotFinite(UserError):
    """The loss or the gradient stopped being a number."""
