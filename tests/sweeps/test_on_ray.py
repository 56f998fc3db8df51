"""A sweep on a real local Ray; without Ray, what is said."""

import importlib
import os
import signal
import threading
from pathlib import Path

import pytest

from andrea_jax.errors import UserError
from andrea_jax.sweeps import runner
from andrea_jax.sweeps.jobs import FAILURE, Outcome
from andrea_jax.sweeps.on_ray import Task


def test_without_ray_the_launcher_says_what_to_install_and_makes_nothing(config, tmp_path, monkeypatch):
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"needs the package ray: pip install 'andrea-jax\[ray\]'"):
        runner.sweep(config, root=tmp_path / "runs", launcher="ray", progress=False)
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def ray():
    found = pytest.importorskip("ray", reason="needs a real Ray: pip install 'andrea-jax[ray]'")
    found.init(num_cpus=2, include_dashboard=False, log_to_driver=False,
               runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parents[2])}})  # fmt: skip
    yield found
    found.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_sweep_on_ray_is_stopped_and_goes_on_to_the_runs_of_a_sweep_without_ray(ray, tiny_config, tmp_path):
    config = tmp_path / "grid.toml"
    sizes = "[train]\nsteps = 2000\neval_every = 2000\n"
    config.write_text(f'extends = "{tiny_config}"\n{sizes}[sweep]\n"train.seed" = [0, 1]\n')
    on_ray, here = tmp_path / "ray", tmp_path / "here"
    waiting = threading.Thread(target=_interrupt_once_there_are_metrics, args=(on_ray,))
    waiting.start()
    with pytest.raises(runner.Stopped) as raised:
        runner.sweep(config, root=on_ray, workers=2, launcher="ray", progress=False)
    waiting.join()
    assert {one.state for one in raised.value.found} == {"stopped"}
    saved = [one.message.startswith("saved at step") for one in raised.value.found]
    assert any(saved)  # the other task may not have begun to train
    found = runner.sweep(config, root=on_ray, workers=2, launcher="ray", progress=False)
    alone = runner.sweep(config, root=here, progress=False)
    assert {one.state for one in found + alone} == {"finished"}
    for one, other, twice in zip(found, alone, saved, strict=True):
        assert len(one.run.provenance["sessions"]) == 1 + twice
        losses = [[line["loss"] for line in made.run.metrics() if "loss" in line] for made in (one, other)]
        assert len(losses[0]) == 200
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def _interrupt_once_there_are_metrics(root: Path) -> None:
    while not any(path.read_bytes() for path in root.glob("*/metrics.jsonl")):
        threading.Event().wait(0.1)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_task_whose_process_dies_fails_its_run(ray, tmp_path):
    task = Task(ray, 1, 0)
    task._work = ray.remote(max_retries=0)(lambda path: os._exit(1))
    assert task.train(tmp_path) == Outcome("failed", "its Ray task ended: WorkerCrashedError")
    assert (tmp_path / FAILURE).exists()
