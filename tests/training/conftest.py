"""A tiny data set in memory and a tiny experiment on it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_training import tiny_dataset, tiny_experiment_of

from andrea_jax import config, runs
from andrea_jax.data import Dataset


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    return tiny_dataset()


@pytest.fixture(scope="session")
def experiment() -> config.Experiment:
    return tiny_experiment_of()


@pytest.fixture
def make_run(tmp_path: Path, experiment: config.Experiment) -> Callable[..., runs.Run]:
    """make_run(name, train={...}, optim={...}, ...) -> a new run of the tiny experiment with these values changed."""

    def make(name: str, **changes: dict) -> runs.Run:
        parts = {part: dataclasses.replace(getattr(experiment, part), **new) for part, new in changes.items()}
        return runs.create(tmp_path, dataclasses.replace(experiment, **parts), name)

    return make
