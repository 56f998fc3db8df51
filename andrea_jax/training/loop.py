"""Training runs from their first or their last saved step to their end: one, or several in one program."""

import contextlib
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import jax
from jax import Array

from andrea_jax import data
from andrea_jax.model import Params
from andrea_jax.runs import Run
from andrea_jax.training import hosts
from andrea_jax.training.bookkeeping import Bookkeeping, Profile, begun
from andrea_jax.training.evaluation import heldout_set
from andrea_jax.training.lanes import Alone, Lanes, SideBySide
from andrea_jax.training.lock import Elsewhere
from andrea_jax.training.placement import Placement

BATCHES_AHEAD = 4


class Interrupted(Exception):
    """Ctrl-C or SIGTERM: `run` is saved at `step`, and `train` continues it. The command line exits with code 130."""

    def __init__(self, run: Run, step: int):
        self.run, self.step = run, step
        total = run.experiment.train.steps
        super().__init__(f"stopped after step {step} of {total}; `andrea train {run.path}` continues from there")


def train(
    run: Run,
    dataset: data.Dataset,
    *,
    until: int | None = None,
    progress: bool = True,
    profile: Profile | None = None,
) -> Params:
    """Trains `run` up to step `until` (None: train.steps), from its last checkpoint where it has one.

    Returns the parameters. Evaluates on held-out windows every train.eval_every steps and after the last one, saves a
    checkpoint each time (and at steps 0, 1, 2, 4, ... where train.log_spaced_checkpoints), and at `until`. Stopping and
    continuing gives the same numbers as not stopping, bit for bit on a CPU. `profile` makes what train.profile_every
    asks for: scoring heads is no part of training.

    Raises Interrupted (with everything saved) on Ctrl-C or SIGTERM, and UserError where `dataset` is not the data the
    run began with, where another process trains the run, where its last checkpoint is damaged, or where the loss stops
    being finite.
    """
    (ended,) = _train([run], dataset, [profile], until, progress)
    if isinstance(ended, Exception):
        raise ended
    return ended


def train_together(
    runs: Sequence[Run], dataset: data.Dataset, profiles: Sequence[Profile | None], *, until: int | None = None
) -> list[Params | Exception]:
    """Trains runs whose experiments differ in train.seed alone, and that stand at one step, in one program (`lanes`).

    Each is left as `train` would leave it, its numbers equal to rounding, and goes on alone or together. Returns what
    became of each: its parameters, or what `train` would raise; a run that fails does not stop the others. One that no
    longer stands where the first does is Elsewhere. In its metrics, tokens_per_s are its own tokens over the time that
    all took; `sessions` in its provenance says how many they were.
    """
    return _train(runs, dataset, profiles, until, progress=False)


def _train(
    runs: Sequence[Run], dataset: data.Dataset, profiles: Sequence[Profile | None], until: int | None, progress: bool
) -> list[Params | Exception]:
    experiment = runs[0].experiment
    last = min(experiment.train.steps, experiment.train.steps if until is None else until)
    heldout = heldout_set(dataset, experiment.data.seq_len)  # fails here where there are none, not after a while
    placement, opened = Placement.of(experiment.compute.mesh), []
    with contextlib.ExitStack() as stack:
        for run, profile in zip(runs, profiles, strict=True):
            try:
                opened.append(stack.enter_context(begun(run, dataset, heldout, placement, profile, progress)))
            except Exception as error:
                opened.append(error)
        books = [book for book in opened if isinstance(book, Bookkeeping)]
        for book in books:
            if book.began.step != books[0].began.step:
                book.ended = Elsewhere(f"{book.run.path}: another process has trained it since")
        books = [book for book in books if book.ended is None]
        if books:
            _step_to(last, books, _lanes(books, dataset, placement))
    return [one if isinstance(one, Exception) else one.ended for one in opened]


def _lanes(books: Sequence[Bookkeeping], dataset: data.Dataset, placement: Placement) -> Lanes:
    states = [book.began for book in books]
    if len(books) == 1:
        return Alone(books[0].run.experiment, dataset, placement, states[0])
    return SideBySide([book.run.experiment for book in books], dataset, states)


def _step_to(last: int, books: Sequence[Bookkeeping], lanes: Lanes) -> None:
    """Steps until `last`, a signal, or until no run is left that has not failed."""
    first, done, stopping = books[0], books[0].began.step, False
    for book in books if done < last else ():
        book.record_session(len(books))
    with _stop_signals() as stop, _batches(lanes.batch, done, last) as batches:
        for tokens in batches:
            metrics = lanes.step(tokens)
            done += 1
            for book, its in zip(books, metrics, strict=True):
                book.add(done, its)
            stopping = stop(done)  # asked once: a signal that comes later is for the next step
            saving, profiling = stopping or done == last or first.is_due(done), first.is_profiled(done) and not stopping
            if saving or profiling:
                for book in books:  # all of them before one is evaluated: that is no time of the others' steps
                    book.drain()
                for lane, book in enumerate(books):
                    book.keep(done, *lanes.state(lane), saving=saving, profiling=profiling)
            if stopping or all(book.ended for book in books):
                break
    for lane, book in enumerate(books):
        book.end(done, Interrupted(book.run, done) if stopping else lanes.state(lane)[0])


@contextlib.contextmanager
def _batches(make: Callable[[int], Array], first: int, last: int) -> Iterator[Iterator[Array]]:
    """make(step) of steps first, ..., last − 1, the batches on the device, `BATCHES_AHEAD` steps ahead in a thread."""

    def in_order() -> Iterator[Array]:
        ahead = deque(pool.submit(make, step) for step in range(first, min(first + BATCHES_AHEAD, last)))
        for step in range(first + BATCHES_AHEAD, last + BATCHES_AHEAD):
            yield ahead.popleft().result()
            if step < last:
                ahead.append(pool.submit(make, step))

    pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
    try:
        yield in_order()
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _stop_signals() -> Iterator[Callable[[int], bool]]:
    """Whether to stop after a step: after the first SIGINT or SIGTERM; a second one acts at once, as if this were not
    here. Where several processes train, after a SIGTERM to any of them.

    Signals reach only the main thread: in another, nothing is changed.
    """
    if jax.process_count() > 1:
        yield hosts.stop_asked
        return
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield lambda step: stop.is_set()
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        restore()

    for number in before:
        signal.signal(number, ask)
    try:
        yield lambda step: stop.is_set()
    finally:
        restore()
