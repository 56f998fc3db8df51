"""Several processes train one run together: started on every host with the same command and the same run directory.

Each makes only its rows of a batch and writes its parts of a checkpoint. The first one alone writes everything else.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
from jax.experimental import multihost_utils

from andrea_jax.runs import Json, Run


def join(place: Sequence[str]) -> None:
    """Joins the other processes. place: (address of the first process, how many, which one this is, from 0), or
    nothing, where the cluster says it (SLURM, Open MPI, Kubernetes). To be called before anything else of JAX."""
    if not place:
        return jax.distributed.initialize()
    address, processes, process = place
    return jax.distributed.initialize(address, int(processes), int(process))


def is_first() -> bool:
    """True too where there is no other."""
    return jax.process_index() == 0


def meet(where: str) -> None:
    """Returns when every process has called it with the same word."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)


def stop_asked(step: int) -> bool:
    """True in all processes at the same step, soon after one of them was sent SIGTERM."""
    return multihost_utils.reached_preemption_sync_point(step)


class Spectator(Run):
    """A run that another process writes: what this one would write is dropped."""

    def append_metrics(self, record: Mapping[str, Json]) -> None: ...

    def truncate_metrics(self, after_step: int) -> None: ...

    def write_json(self, name: str, obj: Mapping[str, Json]) -> Path:
        return self.path / name


def own(run: Run) -> Run:
    """The run as this process may write it."""
    return run if is_first() else Spectator(run.path, run.experiment)
