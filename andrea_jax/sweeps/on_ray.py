"""On a Ray cluster: every run is a task. Run directories must lie on a file system that all its machines share."""

import importlib
import os
import threading
from pathlib import Path
from types import ModuleType

from andrea_jax.errors import UserError
from andrea_jax.sweeps.jobs import Outcome, fail, work
from andrea_jax.sweeps.local import PACKAGE_ROOT


class Task:
    """A slot: one task at a time, with its share of the cluster."""

    def __init__(self, ray: ModuleType, cpus: int, gpus: int):
        self._ray, self._reference = ray, None
        self._stopped, self._starting = False, threading.Lock()
        self._work = ray.remote(max_retries=0, num_cpus=cpus, num_gpus=gpus)(work)

    def train(self, path: Path) -> Outcome:
        with self._starting:
            if self._stopped:
                return Outcome("stopped")
            self._reference = self._work.remote(str(path.resolve()))
        try:
            return Outcome(*self._ray.get(self._reference))
        except self._ray.exceptions.TaskCancelledError:
            return Outcome("stopped")  # before its first step
        except self._ray.exceptions.RayError as error:  # its process died, or its machine
            return fail(path, f"its Ray task ended: {type(error).__name__}", str(error))
        finally:
            self._reference = None

    def stop(self) -> None:
        with self._starting:
            self._stopped = True
            self._cancel(force=False)  # as Ctrl-C: training saves the run

    def kill(self) -> None:
        self._cancel(force=True)

    def _cancel(self, force: bool) -> None:
        if (reference := self._reference) is not None:
            self._ray.cancel(reference, force=force)

    def close(self) -> None: ...


def tasks(n: int) -> list[Task]:
    """n tasks at a time, each with one GPU where the cluster has some, and its share of the CPUs."""
    ray = connected()
    has = ray.cluster_resources()
    cpus, gpus = (int(has[kind]) if kind in has else 0 for kind in ("CPU", "GPU"))
    return [Task(ray, max(cpus // n, 1), min(gpus, 1)) for _ in range(n)]


def connected() -> ModuleType:
    """The module ray, connected to the cluster that RAY_ADDRESS names or that runs here; where there is none, one is
    started. UserError where Ray is not installed."""
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise UserError("--launcher ray: needs the package ray: pip install 'andrea-jax[ray]'") from None
    if not ray.is_initialized():
        path = os.pathsep.join(filter(None, [PACKAGE_ROOT, os.environ.get("PYTHONPATH")]))
        ray.init(runtime_env={"env_vars": {"PYTHONPATH": path}}, log_to_driver=False)
    return ray
