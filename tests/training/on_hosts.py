"""Run by test_mesh.py: python on_hosts.py FOLDER [HOST:PORT N I], one process of N, or one that has no others."""

import dataclasses
import sys
from pathlib import Path

from tiny_training import tiny_dataset, tiny_experiment_of

from andrea_jax import runs
from andrea_jax.config import Experiment
from andrea_jax.config_mesh import Mesh
from andrea_jax.training import hosts, train


def experiment_on(mesh: Mesh) -> Experiment:
    e = tiny_experiment_of(batch_size=6, steps=10)
    return dataclasses.replace(e, compute=dataclasses.replace(e.compute, mesh=mesh))


def together(folder: Path, place: list[str]) -> None:
    """Seven steps in N processes of one device each."""
    hosts.join(place)
    e = experiment_on(Mesh(data=int(place[1])))
    if hosts.is_first():
        runs.create(folder / "together", e, "a")
    hosts.meet("made")
    train(runs.open_or_create(folder / "together", e, "a"), tiny_dataset(), until=7, progress=False)


def alone(folder: Path) -> None:
    """The steps that are left, in one process; and the same run without the others."""
    for name in ("together", "alone"):
        train(runs.open_or_create(folder / name, experiment_on(Mesh()), "a"), tiny_dataset(), progress=False)


if __name__ == "__main__":
    together(Path(sys.argv[1]), sys.argv[2:]) if len(sys.argv) > 2 else alone(Path(sys.argv[1]))
