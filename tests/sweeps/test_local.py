"""Worker processes: their share of the machine, and what is left of one that dies."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from andrea_jax.runs import Run
from andrea_jax.sweeps import local
from andrea_jax.sweeps.jobs import FAILURE, Outcome
from andrea_jax.sweeps.local import Worker, workers

# stands for the worker module: answers, or dies, as the last part of the path says; "wait" waits for the end of stdin
STUB = """
import json, os, sys
for line in sys.stdin:
    name = os.path.basename(line.strip())
    if name == "killed":
        print("the last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 9)
    if name == "exits":
        sys.exit(3)
    if name == "wait":
        sys.stdin.read()
    print(json.dumps(["finished", str(os.getpid())]), flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "stub.py").write_text(STUB)
    monkeypatch.setattr(local, "MODULE", "stub")
    made = Worker([0], dict(os.environ) | {"PYTHONPATH": str(tmp_path / "stub")})
    yield made
    made.close()


def run_at(root: Path, name: str) -> Path:
    (root / name).mkdir()
    return root / name


def test_a_worker_trains_one_run_after_the_other_in_one_process(worker, tmp_path):
    first, second = (worker.train(run_at(tmp_path, name)) for name in "ab")
    assert first == second and first.state == "finished"


@pytest.mark.parametrize(
    ("name", "how"),
    [("killed", "was killed by signal 9, perhaps because memory ran out"), ("exits", "ended with exit code 3")],
)
def test_a_worker_that_dies_fails_its_run_with_its_last_words_and_another_one_takes_its_place(
    worker, tmp_path, name, how
):
    before = worker.train(run_at(tmp_path, "a"))
    path = run_at(tmp_path, name)
    assert worker.train(path) == Outcome("failed", f"its process {how}")
    assert ("the last words" in (path / FAILURE).read_text()) == (name == "killed")
    after = worker.train(run_at(tmp_path, "b"))
    assert after.state == "finished" and after.message != before.message


def test_a_worker_is_stopped_by_the_end_of_its_stdin_and_starts_nothing_more(worker, tmp_path):
    path = run_at(tmp_path, "wait")
    stopping = threading.Timer(0.5, worker.stop)
    stopping.start()
    assert worker.train(path).state == "finished"  # the answer of what it was told
    assert worker.train(path) == Outcome("stopped")


def test_a_worker_that_dies_while_it_stops_has_not_failed(worker, tmp_path):
    path = run_at(tmp_path, "killed while it waits")
    (path / "wait").mkdir()

    def stop_and_kill() -> None:
        worker._stopped = True
        worker.kill()

    threading.Timer(0.5, stop_and_kill).start()
    assert worker.train(path / "wait") == Outcome("stopped")
    assert not (path / "wait" / FAILURE).exists()


def test_workers_share_gpus_and_cores(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.setattr(local, "_cores", lambda: [0, 1, 2, 3, 4])
    made = workers(3)
    assert [one._cores for one in made] == [[0, 3], [1, 4], [2]]
    settings = [(one._environment["CUDA_VISIBLE_DEVICES"], one._environment["XLA_PYTHON_CLIENT_MEM_FRACTION"])
                for one in made]  # fmt: skip
    assert settings == [("4", "0.45"), ("7", "0.90"), ("4", "0.45")]
    assert {one._environment["PYTHONPATH"].split(os.pathsep)[0] for one in made} == {str(Path(__file__).parents[2])}


def test_more_workers_than_cores_take_turns_and_without_a_gpu_none_is_named(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(local.shutil, "which", lambda name: None)
    monkeypatch.setattr(local, "_cores", lambda: [2, 5])
    made = workers(3)
    assert [one._cores for one in made] == [[2], [5], [2]]
    assert all("XLA_PYTHON_CLIENT_MEM_FRACTION" not in one._environment for one in made)


def test_an_empty_list_of_visible_gpus_means_none(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert local._gpus() == []


# --- real ones --------------------------------------------------------------------------------------------------------


def start(config: Path, root: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "andrea_jax.cli", "sweep", str(config), "--runs", str(root), "--workers", "2"]
    return subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])


def wait_until(condition, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


def pids(process: subprocess.Popen) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    everyone = {int(pid) for task in Path(f"/proc/{process.pid}/task").iterdir()
                for pid in (task / "children").read_text().split()} if children.exists() else set()  # fmt: skip
    return sorted(everyone)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers' processes in /proc")
def test_a_killed_worker_costs_its_run_a_killed_sweep_costs_nothing_and_the_next_one_completes_both(
    tiny_config, tmp_path
):
    config, root = tmp_path / "grid.toml", tmp_path / "runs"
    sizes = "[train]\nsteps = 2000\neval_every = 2000\n"
    config.write_text(f'extends = "{tiny_config}"\n{sizes}[sweep]\n"train.seed" = [0, 1]\n')
    process = start(config, root)
    wait_until(lambda: sum(file.stat().st_size > 0 for file in root.glob("*/metrics.jsonl")) == 2, process)
    os.kill(pids(process)[0], signal.SIGKILL)
    wait_until(lambda: len(list(root.glob(f"*/{FAILURE}"))) == 1, process)
    workers_left = [pid for pid in pids(process) if "zombie" not in Path(f"/proc/{pid}/status").read_text()]
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers_left) and time.monotonic() < deadline:
        time.sleep(0.05)  # they notice that the sweep is gone, save, and end
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers_left)
    process = start(config, root)
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0 and {row["state"] for row in json.loads(out)} == {"finished"}
    for path in root.iterdir():
        run = Run.open(path)
        logged = [line["step"] for line in run.metrics() if "loss" in line]
        assert logged == list(range(10, 2001, 10))
        assert len(run.provenance["sessions"]) == 2
        assert not (path / FAILURE).exists()
