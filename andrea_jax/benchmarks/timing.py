"""How long a call takes, on one device, with nothing in the time but the work (`programs` says how that is done).

Inputs are random (a matrix product of zeros runs faster), the first runs are left out, and the things that are compared
take turns, so that a change of load or of clock hits all of them.
"""

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array

from andrea_jax.benchmarks.programs import Chain, JaxCall, Row, Timed
from andrea_jax.errors import UserError

TARGET = 20e-3  # seconds of one timing, at least
PATIENCE = 0.5  # seconds of timings of one thing, where that is more than `FEWEST`
FEWEST = 3  # timings, however slow

type Tell = Callable[[int, int], None]  # (done, in all)


class Refused(str):
    """Why something cannot be done here, from whoever refuses it: trying again would not help."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median, the fastest and the slowest of `repeats` timings of `calls` calls each."""

    median: float
    fastest: float
    slowest: float
    calls: int
    repeats: int


@dataclass(frozen=True)
class Job:
    """One row of a benchmark: what it says of itself, "flops" (and, where it says something, "bytes") of a call among
    it, and what makes the thing to be timed."""

    row: Row
    make: Callable[[], Timed]


def run(
    groups: Sequence[Sequence[Job]],
    repeats: int,
    done: Callable[[list[Row]], None],
    tell: Tell = lambda done, total: None,
) -> None:
    """Times every job; `done` gets the rows of a group as soon as it is measured.

    Everything is compiled first, side by side; what fails there is tried once more, alone. What cannot be made or run
    gets a row with its "reason" and no time, and the others go on.
    """
    total = 2 * sum(map(len, groups))  # each is made and measured
    count = itertools.count(1)
    with ThreadPoolExecutor() as pool:
        futures = [[pool.submit(_attempt, job.make) for job in jobs] for jobs in groups]
        for future in itertools.chain(*futures):
            future.result()
            tell(next(count), total)
    for jobs in groups:
        done(_rows(jobs, [future.result() for future in futures.pop(0)], repeats))
        for _ in jobs:
            tell(next(count), total)


def _rows(jobs: Sequence[Job], things: list[Timed | str], repeats: int) -> list[Row]:
    """A function of its own, so that nothing of a group stays on the device when it returns."""
    for i, job in enumerate(jobs):
        if isinstance(things[i], str) and not isinstance(things[i], Refused):
            things[i] = _attempt(job.make)
    return [_row(*it) for it in zip(jobs, things, measure(things, repeats), strict=True)]


def measure(things: Sequence[Timed | str], repeats: int) -> list[tuple[Timed, Timing] | str]:
    """What each was timed as (it, or a chain of it) and the timing; or the reason why there is none, which a string in
    `things` already is."""
    warm = [thing if isinstance(thing, str) else _attempt(functools.partial(_warm, thing)) for thing in things]
    with ThreadPoolExecutor() as pool:  # what is short is compiled a second time, before anything is timed
        chains = list(
            pool.map(lambda it: None if isinstance(it, str) else _attempt(lambda: it[0].chained(TARGET)), warm)
        )
    for i, chain in enumerate(chains):
        if chain is not None:
            warm[i] = chain if isinstance(chain, str) else _attempt(functools.partial(_warm, chain))
    plans = [it if isinstance(it, str) else _Plan.of(*it, repeats) for it in warm]
    for turn in range(repeats):
        for i, plan in enumerate(plans):
            if isinstance(plan, _Plan) and turn < plan.repeats and isinstance(failed := _attempt(plan.once), str):
                plans[i] = failed
    return [plan if isinstance(plan, str) else (plan.thing, plan.timing()) for plan in plans]


@dataclass
class _Plan:
    """How one thing is timed: `times` runs a timing, `repeats` timings."""

    thing: Timed
    times: int
    repeats: int
    seconds: list[float] = field(default_factory=list)

    @staticmethod
    def of(thing: Timed, seconds: float, repeats: int) -> "_Plan":
        """seconds: what a call takes, roughly."""
        a_run = seconds * thing.calls
        times = max(1, math.ceil(TARGET / a_run))
        return _Plan(thing, times, min(repeats, max(FEWEST, int(PATIENCE / (times * a_run)))))

    def once(self) -> None:
        self.seconds.append(self.thing.run(self.times) / (self.times * self.thing.calls))

    def timing(self) -> Timing:
        s = self.seconds
        return Timing(statistics.median(s), min(s), max(s), self.times * self.thing.calls, len(s))


def _warm(thing: Timed) -> tuple[Timed, float]:
    """Runs it for the first time; returns it with the seconds that a call takes, roughly."""
    thing.run(1)
    seconds = thing.run(1)
    if seconds < 5e-3:  # waiting for the result of one call is a large part of so short a time
        seconds = thing.run(10) / 10
    return thing, seconds / thing.calls


def _attempt[T](work: Callable[[], T]) -> T | str:
    """What `work` returns, or why it does not: a benchmark goes on without a contender that fails, whatever fails."""
    try:
        return work()
    except Exception as error:
        return why(error)


def why(error: Exception) -> str:
    """The first line of an error, with its type where nobody wrote it for a reader."""
    text = str(error).strip().split("\n")[0][:300]
    return Refused(text) if isinstance(error, UserError) else f"{type(error).__name__}: {text}"


def _row(job: Job, thing: Timed | str, found: tuple[Timed, Timing] | str) -> Row:
    if isinstance(thing, str) or isinstance(found, str):
        return {**job.row, "us": None, "reason": thing if isinstance(thing, str) else found}
    timed, timing = found
    times: Row = {
        "us": 1e6 * timing.median, "fastest_us": 1e6 * timing.fastest, "slowest_us": 1e6 * timing.slowest,
        "calls": timing.calls, "repeats": timing.repeats,
    }  # fmt: skip
    for amount, rate, unit in (("flops", "tflops", 1e12), ("bytes", "gb_s", 1e9)):
        if amount in job.row:
            times[rate] = job.row[amount] / timing.median / unit
    return {**job.row, **times, **thing.facts(), "chained": timed is not thing, "reason": None}


def limits(dtype: str, repeats: int = 5) -> Row:
    """What this device and this way of timing can show: `ceiling_tflops` of a large matrix product of `dtype`, and
    `smallest_us`, the time of a chained call that does next to nothing: part of every time that is "chained"."""
    n = 1024 if jax.default_backend() == "cpu" else 8192

    def drawn(*shape: int) -> tuple[Array, Array]:
        first, second = (jax.random.normal(jax.random.key(i), shape, jnp.dtype(dtype)) for i in range(2))
        return first, second

    large, smallest = JaxCall(jnp.matmul, lambda: drawn(n, n)), Chain(jnp.add, drawn(128), (0,), 1000, {})
    product, nothing = (found[1].median for found in measure([large, smallest], repeats) if isinstance(found, tuple))
    return {"ceiling_tflops": 2 * n**3 / product / 1e12, "smallest_us": 1e6 * nothing}
