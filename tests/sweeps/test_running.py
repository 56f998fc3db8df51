"""A sweep goes on from what is there, outlives its runs' failures, and repeats nothing. In one process, for real."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from andrea_jax import data, training
from andrea_jax.data import Dataset
from andrea_jax.errors import UserError
from andrea_jax.runs import Run
from andrea_jax.sweeps import jobs, runner
from andrea_jax.sweeps.jobs import FAILURE
from andrea_jax.sweeps.plan import Sweep
from andrea_jax.training import Interrupted, NotFinite

HOLD = "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True)"


@pytest.fixture
def runs(sweep: Sweep) -> list[Run]:
    return [Run.open(path) for path in sweep.paths]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def train_instead(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> list[Path]:
    """Training raises `error`; returns the paths of the runs that it was called with."""
    called = []

    def raises(run: Run, dataset: Dataset, **options: object) -> None:
        called.append(run.path)
        raise error

    monkeypatch.setattr(jobs, "train", raises)
    return called


def test_finished_runs_are_left_alone_and_interrupted_ones_go_on_without_repeating_a_step(config, root, runs):
    finished, half = runs
    training.train(half, data.prepare(half.experiment), until=3, progress=False)
    before = contents(finished.path)
    found = runner.sweep(config, root=root, progress=False)
    assert [(one.run.path, one.state) for one in found] == [(run.path, "finished") for run in runs]
    assert contents(finished.path) == before
    assert [session["from_step"] for session in half.provenance["sessions"]] == [0, 3]
    assert [line["step"] for line in half.metrics()] == [3, 5, 5]  # evaluated at 3; logged and evaluated at 5
    assert training.steps(half)[-1] == 5
    again = contents(root)
    assert {one.state for one in runner.sweep(config, root=root, progress=False)} == {"finished"}
    assert contents(root) == again


def test_a_run_that_fails_leaves_its_traceback_and_the_others_go_on(config, root, runs, monkeypatch):
    text = config.read_text().replace("[0, 1]", "[0, 1, 2]")
    config.write_text(text)
    called = train_instead(monkeypatch, NotFinite(f"{runs[1].path}: step 2: the loss is nan"))
    found = runner.sweep(config, root=root, progress=False)
    assert len(called) == 2  # the third was tried after the second had failed
    assert [one.state for one in found] == ["finished", "failed", "failed"]
    assert found[1].message == "step 2: the loss is nan"
    written = (runs[1].path / FAILURE).read_text()
    assert "step 2: the loss is nan" in written.splitlines()[0]
    assert "Traceback" in written and "raise error" in written


def test_a_failed_run_is_tried_again_and_its_old_failure_is_forgotten(config, root, runs, monkeypatch):
    with monkeypatch.context() as patch:
        train_instead(patch, MemoryError())
        assert runner.sweep(config, root=root, progress=False)[1].message == "MemoryError"
    assert (runs[1].path / FAILURE).exists()
    assert runner.sweep(config, root=root, progress=False)[1].state == "finished"
    assert not (runs[1].path / FAILURE).exists()


def test_a_run_that_another_process_trains_is_left_to_it(config, root, runs):
    program = [sys.executable, "-c", HOLD + "; sys.stdin.read()", str(runs[1].path / "lock")]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        before = contents(runs[1].path)
        found = runner.sweep(config, root=root, progress=False)
        assert [one.state for one in found] == ["finished", "elsewhere"]
        assert contents(runs[1].path) == before
        other.kill()


def test_a_run_that_was_elsewhere_is_asked_for_again_once_the_others_are_done(config, root, monkeypatch):
    train, asked = jobs.train, []

    def first_elsewhere(run: Run, dataset: Dataset, **options: bool) -> object:
        asked.append(run.experiment.train.seed)
        if asked.count(1) == 1:
            raise training.Elsewhere("held")
        return train(run, dataset, **options)

    monkeypatch.setattr(jobs, "train", first_elsewhere)
    assert [one.state for one in runner.sweep(config, root=root, progress=False)] == ["finished", "finished"]
    assert asked == [1, 1]


def test_a_stopped_run_stops_the_sweep_which_says_how_far_it_came(config, root, runs, monkeypatch):
    config.write_text(config.read_text().replace("[0, 1]", "[0, 1, 2]"))
    train_instead(monkeypatch, Interrupted(runs[1], 4))
    with pytest.raises(runner.Stopped, match="1 of 3 runs finished") as raised:
        runner.sweep(config, root=root, progress=False)
    assert [one.state for one in raised.value.found] == ["finished", "stopped", "waiting"]
    assert raised.value.found[1].message == "saved at step 4"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_between_two_trainings_stops_the_sweep_and_leaves_the_handlers_as_they_were(
    config, root, monkeypatch, number
):
    before = signal.getsignal(number)
    monkeypatch.setattr(jobs.data, "prepare", lambda *arguments, **options: signal.raise_signal(number))
    monkeypatch.setattr(jobs, "_OPENED", {})
    with pytest.raises(runner.Stopped):
        runner.sweep(config, root=root, progress=False)
    assert signal.getsignal(number) is before


def test_data_that_cannot_be_made_are_said_before_anything_is_trained(config, root, runs, monkeypatch):
    monkeypatch.setattr(jobs, "_OPENED", {})
    called = train_instead(monkeypatch, AssertionError())
    corpus = Path(runs[0].experiment.data.corpus)
    corpus.rename(corpus.with_name("away"))
    try:
        with pytest.raises(UserError, match="corpus"):
            runner.sweep(config, root=root, progress=False)
    finally:
        corpus.with_name("away").rename(corpus)
    assert called == []
