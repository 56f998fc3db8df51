"""What is written of a run beside its steps: metrics, evaluations, checkpoints, head profiles, provenance."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Concatenate

import jax
import numpy as np
import optax

from andrea_jax import data, model
from andrea_jax.errors import UserError
from andrea_jax.model import Params
from andrea_jax.runs import Json, Run, circumstances, now
from andrea_jax.training import hosts, optimizer
from andrea_jax.training.checkpoints import Checkpoints, State, is_log_spaced, steps
from andrea_jax.training.evaluation import evaluate
from andrea_jax.training.lock import locked
from andrea_jax.training.placement import Placement
from andrea_jax.training.progress import Display, display
from andrea_jax.training.recorder import NotFinite, Recorder
from andrea_jax.training.step import Metrics

# (step, parameters, seconds that all steps of the run take at the speed so far) -> what was done, in words
Profile = Callable[[int, Params, float], str]


def device() -> dict[str, Json]:
    """The accelerators this process computes on: platform, kind, count."""
    first = jax.devices()[0]
    return {"platform": first.platform, "kind": first.device_kind, "count": jax.device_count()}


def peak_memory() -> int | None:
    """The most bytes of the first device that this process used at once so far; None where it does not say, as CPUs."""
    stats = jax.local_devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] if stats else None


def _unless_ended[**P](
    method: Callable[Concatenate["Bookkeeping", P], None],
) -> Callable[Concatenate["Bookkeeping", P], None]:
    """An error ends the books of its run, since others may go on: it is kept in `ended`."""

    @functools.wraps(method)
    def attempt(self: "Bookkeeping", *args: P.args, **options: P.kwargs) -> None:
        if self.ended is None:
            try:
                method(self, *args, **options)
            except NotFinite as error:
                self.ended = self._named(error).with_traceback(error.__traceback__)
            except Exception as error:
                self.ended = error

    return attempt


class Bookkeeping:
    """The books of one run while it trains, from `begun`. After an error they stay as they are, and the caller goes on.

    began: the state of the first step, whose arrays the caller may donate · ended: what became of the run, its
    parameters or an error; None while it trains.
    """

    def __init__(
        self,
        run: Run,
        dataset: data.Dataset,
        heldout: np.ndarray,
        checkpoints: Checkpoints,
        placement: Placement,
        view: Display,
        profile: Profile | None,
        began: State,
    ):
        self.run, self.began = run, began
        self.ended: Params | Exception | None = None
        self._dataset, self._heldout, self._checkpoints = dataset, heldout, checkpoints
        self._placement, self._view, self._profile = placement, view, profile
        self._train = run.experiment.train
        self._recorder = Recorder(run, view, began.unlogged)
        self._peak_before = peak_memory()
        self._together = 1  # runs that step in one program: the time of a step is theirs together
        if placement.mesh is not None:
            view.say(f"on {placement}")
        if began.step == 0 and self._train.log_spaced_checkpoints:
            checkpoints.save(began)

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is to be saved, whatever else happens at this step."""
        return self._is_evaluated(step) or (self._train.log_spaced_checkpoints and is_log_spaced(step))

    def is_profiled(self, step: int) -> bool:
        """Not at the last one, whose heads are scored in full when somebody asks."""
        every = self._train.profile_every if self._profile else 0
        return every > 0 and step % every == 0 and step < self._train.steps

    def _is_evaluated(self, step: int) -> bool:
        return step % self._train.eval_every == 0 or step == self._train.steps

    @_unless_ended
    def record_session(self, together: int) -> None:
        """Adds to the provenance's `sessions`: code, versions and machine may change between two stretches of training.
        together: how many runs step in one program, this one among them."""
        self._together = together
        session = {"started": now(), "from_step": self.began.step, **circumstances(), "device": device()}
        session |= {"mesh": dataclasses.asdict(self.run.experiment.compute.mesh), "processes": jax.process_count()}
        written = self.run.provenance.get("sessions", [])  # none yet at the first start
        self.run.record(sessions=[*written, session | {"runs_together": together}])

    @_unless_ended
    def add(self, step: int, metrics: Metrics) -> None:
        """Takes the metrics of a step just dispatched."""
        self._recorder.add(step, metrics)

    @_unless_ended
    def drain(self) -> None:
        """Waits for all steps dispatched so far, before `keep`."""
        self._recorder.drain()

    @_unless_ended
    def keep(self, step: int, params: Params, opt_state: optax.OptState, *, saving: bool, profiling: bool) -> None:
        """Evaluates where that is due, and saves; has heads scored."""
        if saving:
            if self._is_evaluated(step):
                self._evaluate(step, params)
            self._checkpoints.save(State(step, params, opt_state, list(self._recorder.unlogged)))
        if profiling and self._profile:
            here = self._placement.on_each_host(params)
            if hosts.is_first():
                self._view.say(self._profile(step, here, self._recorder.run_s / self._together))

    @_unless_ended
    def end(self, step: int, became: Params | Exception) -> None:
        """Into the provenance; tokens_per_s is that of the latest stretch of training."""
        self._checkpoints.wait()  # finished: the last checkpoint is whole, whatever kills the process after this
        timed = {"tokens_per_s": self._recorder.tokens_per_s} if self._recorder.tokens_per_s else {}
        peak = peak_memory()
        others = peak == self._peak_before or self._together > 1  # used this process's memory at its peak
        self.run.record(finished=step == self._train.steps, peak_memory_bytes=None if others else peak, **timed)
        self.ended = became

    def _evaluate(self, step: int, params: Params) -> None:
        found = evaluate(
            self.run.experiment.model,
            params,
            self._heldout,
            self._dataset.tokenizer,
            compute=self.run.experiment.compute,
            batch_size=min(self._train.batch_size // self._train.accumulate, len(self._heldout)),
            placement=self._placement,
        )
        if not np.isfinite(found["loss"]):
            raise NotFinite(f"step {step}: the held-out loss is {found['loss']}")
        line = {"step": step, "head_grad_norm": self._recorder.head_grad_norm}
        self.run.append_metrics(line | {f"eval_{name}": value for name, value in found.items()})
        self._view.say(f"step {step}: held-out loss {found['loss']:.4f} nats/token")

    def _named(self, error: NotFinite) -> NotFinite:
        self._checkpoints.wait()
        saved = steps(self.run)
        where = f"the last checkpoint is of step {saved[-1]}" if saved else "there is no checkpoint"
        return NotFinite(f"{self.run.path}: {error}; {where}, a lower optim.learning_rate may help")


@contextlib.contextmanager
def begun(
    run: Run, dataset: data.Dataset, heldout: np.ndarray, placement: Placement, profile: Profile | None, progress: bool
) -> Iterator[Bookkeeping]:
    """The books of a run, which no other process trains meanwhile. At the end all its checkpoints are on disk."""
    run = hosts.own(run)
    with locked(run), Checkpoints(run, placement) as checkpoints:
        state = _begin(run, dataset, checkpoints, placement)
        shown = display(progress and hosts.is_first(), run.experiment.train.steps, state.step)
        with contextlib.closing(shown) as view:
            yield Bookkeeping(run, dataset, heldout, checkpoints, placement, view, profile, state)


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
