"""Checkpoints of a run, through Orbax: `checkpoints/<step>/` holds params, opt_state and the step's unlogged losses.

Orbax writes a step into a temporary folder and renames it when it is whole, so a half-written one is never seen.
Kept are the last one, the one with the lowest held-out loss in metrics.jsonl, and, where
train.log_spaced_checkpoints asks for them, steps 0, 1, 2, 4, 8, ...
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import jax
import optax
from orbax import checkpoint as ocp

from andrea_jax import model
from andrea_jax.errors import UserError
from andrea_jax.model import Params
from andrea_jax.runs import Run
from andrea_jax.training import optimizer
from andrea_jax.training.placement import ONE_DEVICE, Placement


@dataclass(frozen=True)
class State:
    """Everything that the next step depends on, and what is still to be logged of the steps before it."""

    step: int  # steps done
    params: Params
    opt_state: optax.OptState
    unlogged: list[float]  # losses since the last line of metrics.jsonl, nats a token


class Checkpoints:
    """Writes the checkpoints of a run in the background; a context manager that ends when all are on disk."""

    def __init__(self, run: Run, placement: Placement = ONE_DEVICE):
        self._run, self._placement = run, placement
        self._manager = _manager(run)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception: object) -> None:
        self.wait()
        if self._manager.all_steps():
            self._prune()
        self._manager.close()

    def save(self, state: State) -> None:
        """Starts writing `state`, after copying it off the device, so its arrays may be donated at once.

        Does nothing where the step is already saved. Checkpoints no longer needed are removed, once all are whole.
        """
        if state.step in self._manager.all_steps():
            return
        if self._manager.all_steps():
            self.wait()
            self._prune()
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(state.params),
            opt_state=ocp.args.StandardSave(state.opt_state),
            unlogged=ocp.args.JsonSave({"losses": state.unlogged}),
        )
        self._manager.save(state.step, args=items)

    def wait(self) -> None:
        """Returns when all that was saved is on disk."""
        self._manager.wait_until_finished()

    def last(self, optimizer: optax.GradientTransformation) -> State | None:
        """The last state saved, None where there is none. `optimizer` is the one it was saved with; the mesh need not
        be.

        Raises UserError where it is damaged.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        params = model.abstract(self._run.experiment.model)
        items = ocp.args.Composite(
            params=_restore(params, self._placement),
            opt_state=_restore(jax.eval_shape(optimizer.init, params), self._placement),
            unlogged=ocp.args.JsonRestore(),
        )
        with _damage_named(self._run, step):
            saved = self._manager.restore(step, args=items)
            return State(step, saved["params"], saved["opt_state"], saved["unlogged"]["losses"])

    def _prune(self) -> None:
        steps = self._manager.all_steps()
        kept = {max(steps), best_step(self._run, steps)}
        if self._run.experiment.train.log_spaced_checkpoints:
            kept |= {step for step in steps if is_log_spaced(step)}
        for step in set(steps) - kept:
            self._manager.delete(step)


def is_log_spaced(step: int) -> bool:
    """True for 0 and the powers of two."""
    return step & (step - 1) == 0


def best_step(run: Run, steps: Sequence[int]) -> int | None:
    """The one of `steps` with the lowest eval_loss in metrics.jsonl, the earliest of equals; None if none has one."""
    losses = {line["step"]: line["eval_loss"] for line in run.metrics() if "eval_loss" in line}
    return min((step for step in sorted(steps) if step in losses), key=lambda step: losses[step], default=None)


def steps(run: Run) -> list[int]:
    """The steps whose checkpoints the run has, ascending."""
    return sorted(int(folder.name) for folder in run.checkpoints.glob("*") if folder.name.isdigit())


def restore(run: Run, step: int | Literal["last", "best"] = "last") -> tuple[Params, int]:
    """(params, step) of a checkpoint, float32, on the default device; the optimizer need not be known.

    "best" has the lowest held-out loss. Raises UserError where the run has no checkpoint, or not that one,
    or where it is damaged.
    """
    found = steps(run)
    if not found:
        raise UserError(f"{run.path}: has no checkpoint yet")
    if isinstance(step, str) and step not in ("last", "best"):
        raise UserError(f'step = "{step}": must be a number, "last" or "best"')
    chosen = {"last": found[-1], "best": best_step(run, found)}[step] if isinstance(step, str) else step
    if chosen not in found:
        what = "no checkpoint was evaluated" if chosen is None else f"has no checkpoint of step {chosen}"
        raise UserError(f"{run.path}: {what}; it has those of steps {', '.join(map(str, found))}")
    items = ocp.args.Composite(params=_restore(model.abstract(run.experiment.model)))
    with contextlib.closing(_manager(run)) as manager, _damage_named(run, chosen):
        return manager.restore(chosen, args=items)["params"], chosen


def restore_opt_state(run: Run, step: int) -> optax.OptState:
    """The optimizer's state in a checkpoint that the run has. Raises UserError where it is damaged."""
    experiment = run.experiment
    optimize = optimizer.make(experiment.optim, experiment.train.steps)
    shapes = jax.eval_shape(optimize.init, model.abstract(experiment.model))
    with contextlib.closing(_manager(run)) as manager, _damage_named(run, step):
        return manager.restore(step, args=ocp.args.Composite(opt_state=_restore(shapes)))["opt_state"]


@contextlib.contextmanager
def _damage_named(run: Run, step: int) -> Iterator[None]:
    """Turns what Orbax raises for files that are cut or missing into a UserError."""
    try:
        yield
    except (MemoryError, PermissionError, jax.errors.JaxRuntimeError):  # no fault of the files
        raise
    except Exception as error:  # Orbax raises many classes, for a lost array Exception itself
        others = ", ".join(str(other) for other in steps(run) if other != step)
        left = f"has other checkpoints, of steps {others}" if others else "has no other checkpoint"
        text = f"is damaged: files are cut or missing; the run {left}; remove the folder to go on without it"
        raise UserError(f"{run.checkpoints / str(step)}: {text}") from error


def _manager(run: Run) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(run.checkpoints.resolve(), options=ocp.CheckpointManagerOptions(create=True))


def _restore(tree: Params | optax.OptState, placement: Placement = ONE_DEVICE) -> ocp.args.StandardRestore:
    """Asks for arrays of these shapes, placed like this, whatever devices they were saved from."""
    target = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree, placement.shardings(tree)
    )
    return ocp.args.StandardRestore(target)
