"""Training on a mesh of eight simulated devices, and in several processes, is training on one device."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from andrea_jax import runs
from andrea_jax.config_mesh import Mesh
from andrea_jax.errors import UserError
from andrea_jax.training import checkpoints
from andrea_jax.training.placement import Placement

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# programs are compiled in half the time: what they compute is the same
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def python(file: str, *arguments: str, devices: int) -> subprocess.Popen:
    flags = f"{QUICK} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(HERE / file), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(*processes: subprocess.Popen) -> None:
    said = [process.communicate(timeout=300)[0] for process in processes]
    for process, text in zip(processes, said, strict=True):
        assert process.returncode == 0, text[-2000:]


def test_on_a_mesh_of_all_three_axes_losses_gradients_and_weights_are_those_of_one_device():
    finished(python("on_eight_devices.py", "few", devices=8))


@pytest.mark.slow
def test_on_every_mesh_of_eight_devices_training_is_that_of_one_device_in_both_projections():
    finished(python("on_eight_devices.py", "all", devices=8))


@pytest.mark.slow
def test_two_processes_train_as_one_and_write_one_run_that_one_process_continues(tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    finished(*(python("on_hosts.py", str(tmp_path), place, "2", str(i), devices=1) for i in range(2)))
    finished(python("on_hosts.py", str(tmp_path), devices=1))
    together, alone = (runs.find(tmp_path / name)[0] for name in ("together", "alone"))
    assert checkpoints.steps(together) == checkpoints.steps(alone)
    found, want = ([line for line in run.metrics() if "loss" in line] for run in (together, alone))
    assert [line["step"] for line in found] == [line["step"] for line in want] == [10]
    np.testing.assert_allclose(found[0]["loss"], want[0]["loss"], rtol=1e-5)
    sessions = together.provenance["sessions"]
    assert [(session["from_step"], session["processes"]) for session in sessions] == [(0, 2), (7, 1)]
    assert [session["mesh"]["data"] for session in sessions] == [2, 1]


def test_a_mesh_that_needs_more_devices_than_there_are_is_a_user_error():
    with pytest.raises(UserError, match=r"compute.mesh: data 64 × heads 8 needs 512 devices, and there (is|are) \d+"):
        Placement.of(Mesh(data=64, heads=8))
