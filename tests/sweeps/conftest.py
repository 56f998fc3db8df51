"""A sweep of two seeds of the tiny experiment; the first one is trained already."""

import shutil
from pathlib import Path

import pytest

from andrea_jax.sweeps.plan import Sweep, open_runs, plan


@pytest.fixture
def config(tiny_config: Path, tmp_path: Path) -> Path:
    """tiny.toml, so that its runs are named as those of the config that it extends."""
    path = tmp_path / "tiny.toml"
    path.write_text(f'extends = "{tiny_config}"\n[sweep]\n"train.seed" = [0, 1]\n')
    return path


@pytest.fixture
def root(tiny_run: Path, tmp_path: Path) -> Path:
    """A folder of runs in which that of seed 0 is finished."""
    shutil.copytree(tiny_run, tmp_path / "runs" / tiny_run.name)
    return tmp_path / "runs"


@pytest.fixture
def sweep(config: Path, root: Path) -> Sweep:
    planned = plan(config, (), root)
    open_runs(planned)
    return planned
