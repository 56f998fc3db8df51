"""Training a run from its first or its last saved step to its end."""

import contextlib
import dataclasses
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import jax
import numpy as np
from jax import Array

from andrea_jax import data, model
from andrea_jax.config import Experiment
from andrea_jax.errors import UserError
from andrea_jax.model import Params
from andrea_jax.runs import Json, Run, circumstances, now
from andrea_jax.training import hosts, optimizer
from andrea_jax.training.checkpoints import Checkpoints, State, is_log_spaced, steps
from andrea_jax.training.evaluation import evaluate, heldout_set
from andrea_jax.training.lock import locked
from andrea_jax.training.placement import Placement
from andrea_jax.training.progress import Display, display
from andrea_jax.training.recorder import NotFinite, Recorder
from andrea_jax.training.step import make_step

BATCHES_AHEAD = 4
# (step, parameters, seconds that all steps of the run take at the speed so far) -> what was done, in words
Profile = Callable[[int, Params, float], str]


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
    run = hosts.own(run)
    experiment, placement = run.experiment, Placement.of(run.experiment.compute.mesh)
    last = min(experiment.train.steps, experiment.train.steps if until is None else until)
    heldout = heldout_set(dataset, experiment.data.seq_len)  # fails here where there are none, not after a while
    try:
        with locked(run), Checkpoints(run, placement) as checkpoints:
            state = _begin(run, dataset, checkpoints, placement)
            if state.step < last:
                _record_session(run, state.step)
            with contextlib.closing(display(progress and hosts.is_first(), experiment.train.steps, state.step)) as view:
                training = _Training(run, dataset, heldout, checkpoints, view, placement, profile)
                return training.run(state, last).params
    except NotFinite as error:
        saved = steps(run)
        where = f"the last checkpoint is of step {saved[-1]}" if saved else "there is no checkpoint"
        raise NotFinite(f"{run.path}: {error}; {where}, a lower optim.learning_rate may help") from None


def _begin(run: Run, dataset: data.Dataset, checkpoints: Checkpoints, placement: Placement) -> State:
    """The state to go on from, after writing down what only training knows."""
    experiment, written = run.experiment, run.provenance
    if "data_hash" in written and written["data_hash"] != dataset.hash:
        text = f"began on data with hash {written['data_hash']}, and this data has {dataset.hash}"
        raise UserError(f"{run.path}: {text}; train a new run on it instead")
    optimize = optimizer.make(experiment.optim, experiment.train.steps)
    state = checkpoints.last(optimize)
    if state is None:
        params = model.initialise(experiment.model, experiment.train.seed)
        state = State(0, placement.place(params), placement.place(optimize.init(params)), [])
    if hosts.is_first():
        dataset.tokenizer.save(run.path / "tokenizer.json")
    run.truncate_metrics(state.step)
    run.record(
        data_hash=dataset.hash,
        data=dataset.summary,  # pyright: ignore[reportArgumentType]
        device=device(),
        n_params=sum(x.size for x in jax.tree.leaves(state.params)),
        repeat_share=experiment.data.repeat_share,
        finished=False,
    )
    return state


def _record_session(run: Run, step: int) -> None:
    """Adds to the provenance's `sessions`: code, versions and machine may change between two stretches of training."""
    session = {"started": now(), "from_step": step, **circumstances(), "device": device()}
    session |= {"mesh": dataclasses.asdict(run.experiment.compute.mesh), "processes": jax.process_count()}
    run.record(sessions=[*run.provenance.get("sessions", []), session])  # none yet at the first start


def device() -> dict[str, Json]:
    """The accelerators this process computes on: platform, kind, count."""
    first = jax.devices()[0]
    return {"platform": first.platform, "kind": first.device_kind, "count": jax.device_count()}


def peak_memory() -> int | None:
    """The most bytes of the first device that this process used at once so far; None where it does not say, as CPUs."""
    stats = jax.local_devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] if stats else None


class _Training:
    """What stays the same from step to step."""

    def __init__(
        self,
        run: Run,
        dataset: data.Dataset,
        heldout: np.ndarray,
        checkpoints: Checkpoints,
        view: Display,
        placement: Placement,
        profile: Profile | None,
    ):
        self._run, self._dataset, self._heldout = run, dataset, heldout
        self._checkpoints, self._view, self._placement, self._profile = checkpoints, view, placement, profile
        self._train = run.experiment.train
        self._peak_before = peak_memory()

    def run(self, state: State, last: int) -> State:
        """Steps from `state` to `last`."""
        step = make_step(self._run.experiment)
        recorder = Recorder(self._run, self._view, state.unlogged)
        if self._placement.mesh is not None:
            self._view.say(f"on {self._placement}")
        if state.step == 0 and self._train.log_spaced_checkpoints:
            self._checkpoints.save(state)
        params, opt_state, done = state.params, state.opt_state, state.step
        with (
            _stop_signals() as stop,
            _batches(self._dataset, self._run.experiment, self._placement, done, last) as batches,
        ):
            for tokens in batches:
                params, opt_state, metrics = step(params, opt_state, tokens)
                done += 1
                recorder.add(done, metrics)
                stopping = stop(done)  # asked once: a signal that comes later is for the next step
                if stopping or done == last or self._is_due(done):
                    recorder.drain()
                    if self._is_evaluated(done):
                        self._evaluate(done, params, recorder)
                    self._checkpoints.save(State(done, params, opt_state, list(recorder.unlogged)))
                if self._profile and not stopping and self._is_profiled(done):
                    recorder.drain()
                    here = self._placement.on_each_host(params)
                    if hosts.is_first():
                        self._view.say(self._profile(done, here, recorder.run_s))
                if stopping:
                    self._record_end(recorder, done)
                    raise Interrupted(self._run, done)
        self._record_end(recorder, done)
        return State(done, params, opt_state, recorder.unlogged)

    def _is_evaluated(self, step: int) -> bool:
        return step % self._train.eval_every == 0 or step == self._train.steps

    def _is_due(self, step: int) -> bool:
        return self._is_evaluated(step) or (self._train.log_spaced_checkpoints and is_log_spaced(step))

    def _is_profiled(self, step: int) -> bool:
        """Not at the last one, whose heads are scored in full when somebody asks."""
        every = self._train.profile_every
        return every > 0 and step % every == 0 and step < self._train.steps

    def _evaluate(self, step: int, params: Params, recorder: Recorder) -> None:
        found = evaluate(
            self._run.experiment.model,
            params,
            self._heldout,
            self._dataset.tokenizer,
            compute=self._run.experiment.compute,
            batch_size=min(self._train.batch_size // self._train.accumulate, len(self._heldout)),
            placement=self._placement,
        )
        if not np.isfinite(found["loss"]):
            raise NotFinite(f"step {step}: the held-out loss is {found['loss']}")
        line = {"step": step, "head_grad_norm": recorder.head_grad_norm}
        self._run.append_metrics(line | {f"eval_{name}": value for name, value in found.items()})
        self._view.say(f"step {step}: held-out loss {found['loss']:.4f} nats/token")

    def _record_end(self, recorder: Recorder, step: int) -> None:
        """Into the provenance; tokens_per_s is that of the latest stretch of training."""
        self._checkpoints.wait()  # finished: the last checkpoint is whole, whatever kills the process after this
        timed = {"tokens_per_s": recorder.tokens_per_s} if recorder.tokens_per_s else {}
        peak = peak_memory()
        own = None if peak == self._peak_before else peak  # another run of this process used more
        self._run.record(finished=step == self._train.steps, peak_memory_bytes=own, **timed)


@contextlib.contextmanager
def _batches(
    dataset: data.Dataset, experiment: Experiment, placement: Placement, first: int, last: int
) -> Iterator[Iterator[Array]]:
    """The batches of steps first, ..., last − 1, on the device, made `BATCHES_AHEAD` steps ahead in a thread."""
    shape = experiment.train.batch_size, experiment.data.seq_len + 1

    def make(step: int) -> Array:
        return placement.batch(shape, lambda rows: data.batch(dataset, experiment, step, rows=rows).astype(np.int32))

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
