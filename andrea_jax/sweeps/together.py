"""Which runs of a sweep train together, in one program: those of one configuration that differ in their seed.

On a GPU the steps of a small model are mostly launches, which several seeds then share. A CPU computes them one after
the other all the same: two cores took 3.1 to 4.4 times one run's time for three seeds (docs/log.md).
"""

import dataclasses
import itertools
from collections.abc import Sequence

from andrea_jax import estimate
from andrea_jax.config import Experiment
from andrea_jax.errors import UserError
from andrea_jax.runs import Run
from andrea_jax.training import steps


def refuse(experiments: Sequence[Experiment], workers: int, launcher: str) -> None:
    """UserError where runs cannot train together at all."""
    if workers > 1 or launcher != "local":
        option = f"--workers {workers}" if workers > 1 else f"--launcher {launcher}"
        raise UserError(f"--vmap-seeds: trains in this process, and {option} in others; leave one of them out")
    for experiment in experiments:
        mesh = experiment.compute.mesh
        if mesh.size > 1:
            text = f"cuts a run over {mesh.size} devices, and runs train together on one"
            raise UserError(f"--vmap-seeds: compute.mesh {text}; leave one of them out")


def groups(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs, in the order of the sweep: those of a group differ in train.seed alone, stand at the same step, and fit
    into the device's memory together, as far as `estimate` can tell."""
    alike: dict[tuple[Experiment, int], list[Run]] = {}
    for run in runs:
        experiment = run.experiment
        seedless = dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, seed=0))
        alike.setdefault((seedless, max(steps(run), default=0)), []).append(run)
    return [list(group) for (experiment, _), found in alike.items()
            for group in itertools.batched(found, _most(experiment))]  # fmt: skip


def _most(experiment: Experiment) -> int:
    """How many runs a program may hold."""
    memory = estimate.device_memory()
    return 10**6 if memory is None else max(1, memory // estimate.estimate(experiment).total)
