"""What a training loop steps: one run's parameters and optimizer state, or those of several runs in one program.

Several runs are a new first axis, lane, on every parameter, every number of an optimizer's state and every batch, and
`jax.vmap` of the same step. Each lane has its own initial numbers, batches and updates, and no lane sees another: one
that becomes nan leaves the others as they are. A lane's numbers are those of the run alone up to rounding.
"""

from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from andrea_jax import data
from andrea_jax.config import Experiment
from andrea_jax.data import Dataset
from andrea_jax.model import Params
from andrea_jax.training.checkpoints import State
from andrea_jax.training.placement import Placement
from andrea_jax.training.step import Metrics, make_step, make_steps


class Lanes(Protocol):
    """`batch`: a step's windows, on the device · `step`: takes one, returns the metrics of each run · `state`: of one
    run, until the next step."""

    def batch(self, step: int) -> Array: ...

    def step(self, tokens: Array) -> list[Metrics]: ...

    def state(self, lane: int) -> tuple[Params, optax.OptState]: ...


class Alone:
    """One run, on one device or a mesh."""

    def __init__(self, experiment: Experiment, dataset: Dataset, placement: Placement, state: State):
        self._experiment, self._dataset, self._placement = experiment, dataset, placement
        self._step, self._params, self._opt_state = make_step(experiment), state.params, state.opt_state

    def batch(self, step: int) -> Array:
        shape = self._experiment.train.batch_size, self._experiment.data.seq_len + 1

        def make(rows: slice) -> np.ndarray:
            return data.batch(self._dataset, self._experiment, step, rows=rows).astype(np.int32)

        return self._placement.batch(shape, make)

    def step(self, tokens: Array) -> list[Metrics]:
        self._params, self._opt_state, metrics = self._step(self._params, self._opt_state, tokens)
        return [metrics]

    def state(self, lane: int) -> tuple[Params, optax.OptState]:
        return self._params, self._opt_state


class SideBySide:
    """Runs whose experiments differ in train.seed alone and that stand at one step, on one device. The arrays of
    `states` cannot be used again."""

    def __init__(self, experiments: Sequence[Experiment], dataset: Dataset, states: Sequence[State]):
        self._experiments, self._dataset, self._steps = experiments, dataset, make_steps(experiments[0])
        self._params, self._opt_state = _joined([(state.params, state.opt_state) for state in states])
        for array in jax.tree.leaves([(state.params, state.opt_state) for state in states]):
            array.delete()

    def batch(self, step: int) -> Array:
        """int32 [lane, batch, seq + 1]: of each run what it draws alone."""
        windows = [data.batch(self._dataset, experiment, step) for experiment in self._experiments]
        return jax.device_put(np.stack(windows).astype(np.int32))

    def step(self, tokens: Array) -> list[Metrics]:
        self._params, self._opt_state, metrics = self._steps(self._params, self._opt_state, tokens)
        return metrics

    def state(self, lane: int) -> tuple[Params, optax.OptState]:
        return _lane((self._params, self._opt_state), lane)


@jax.jit
def _joined(trees: list[tuple[Params, optax.OptState]]) -> tuple[Params, optax.OptState]:
    return jax.tree.map(lambda *lanes: jnp.stack(lanes), *trees)


@jax.jit
def _lane(tree: tuple[Params, optax.OptState], lane: int) -> tuple[Params, optax.OptState]:
    return jax.tree.map(lambda x: x[lane], tree)
