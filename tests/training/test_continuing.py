"""What guards a run that several processes, or several sittings, train."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from andrea_jax import runs
from andrea_jax.data import Dataset
from andrea_jax.errors import UserError
from andrea_jax.runs import Run
from andrea_jax.training import Interrupted, bookkeeping, checkpoints, loop, restore, steps, train
from andrea_jax.training.bookkeeping import Bookkeeping
from andrea_jax.training.lock import locked

MakeRun = Callable[..., Run]
HOLD = "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True)"


def test_a_signal_that_comes_between_two_looks_is_for_the_next_step(
    make_run: MakeRun, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
):
    run, stop, is_due = make_run("a"), threading.Event(), Bookkeeping.is_due

    def due_and_stopped(book: Bookkeeping, step: int) -> bool:
        if step == 5:
            stop.set()
        return is_due(book, step)

    monkeypatch.setattr(loop, "_stop_signals", lambda: contextlib.nullcontext(lambda step: stop.is_set()))
    monkeypatch.setattr(Bookkeeping, "is_due", due_and_stopped)
    with pytest.raises(Interrupted, match="after step 6 of 23"):
        train(run, dataset, progress=False)
    assert steps(run) == [6]


def test_a_run_that_another_process_trains_is_refused_until_that_process_ends(make_run: MakeRun, dataset: Dataset):
    run = make_run("a")
    program = [sys.executable, "-c", HOLD + "; sys.stdin.read()", str(run.path / "lock")]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match=f"{run.name}: is being trained by another process"):
            train(run, dataset, until=2, progress=False)
        other.kill()
    assert steps(run) == [] and "sessions" not in run.provenance
    train(run, dataset, until=2, progress=False)
    assert steps(run) == [2]


def test_the_lock_is_held_through_all_of_training_and_no_longer(
    make_run: MakeRun, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
):
    run, refused, evaluate = make_run("a"), [], bookkeeping.evaluate

    def evaluate_and_try(*arguments, **options):
        with pytest.raises(UserError, match="is being trained"), locked(run):
            pass
        refused.append(1)
        return evaluate(*arguments, **options)

    monkeypatch.setattr(bookkeeping, "evaluate", evaluate_and_try)
    train(run, dataset, until=14, progress=False)
    assert len(refused) == 2
    with locked(run):
        pass


def test_every_start_of_training_leaves_its_circumstances_and_the_creation_record_stays(
    make_run: MakeRun, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
):
    run = make_run("a")
    created = {key: run.provenance[key] for key in ("created", "command", "commit", "versions")}
    train(run, dataset, until=3, progress=False)
    monkeypatch.setattr("sys.argv", ["andrea", "train", "again"])
    monkeypatch.setattr(
        runs, "_git", lambda command, *_: {"ls-files": "x", "rev-parse": "new", "status": " M"}[command]
    )
    train(run, dataset, until=5, progress=False)
    train(run, dataset, until=5, progress=False)  # nothing to do is no start
    written = run.provenance
    first, second = written["sessions"]
    assert (first["from_step"], second["from_step"]) == (0, 3)
    assert (second["command"], second["commit"], second["dirty"]) == ("andrea train again", "new", True)
    assert first["command"] == created["command"] and first["commit"] == created["commit"]
    assert second["device"] == {"platform": "cpu", "kind": jax.devices()[0].device_kind, "count": jax.device_count()}
    assert second["cpu_count"] == os.cpu_count() and second["versions"] == created["versions"]
    assert first["started"] <= second["started"]
    assert {key: written[key] for key in created} == created


def cut(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def lose_params(folder: Path) -> None:
    (folder / "params").rename(folder / "away")


@pytest.mark.filterwarnings("ignore")  # Orbax's own words about the files
@pytest.mark.parametrize("damage", [cut, lose_params])
def test_a_damaged_checkpoint_is_named_with_the_other_steps(make_run: MakeRun, dataset: Dataset, damage):
    run = make_run("a", train={"log_spaced_checkpoints": True})
    train(run, dataset, until=2, progress=False)
    damage(run.checkpoints / "2")
    said = r"checkpoints/2: is damaged: .* other checkpoints, of steps 0, 1; remove"
    with pytest.raises(UserError, match=said):
        restore(run)
    with pytest.raises(UserError, match=said):
        train(run, dataset, progress=False)
    assert restore(run, 1)[1] == 1


@pytest.mark.parametrize(("raised", "seen"), [(Exception, UserError), (MemoryError, MemoryError)])
def test_an_array_that_cannot_be_read_is_damage_and_a_lack_of_memory_is_not(
    make_run: MakeRun, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, raised: type, seen: type
):
    run = make_run("a")
    train(run, dataset, until=1, progress=False)

    def fails(*arguments, **options):
        raise raised("while reading array index")  # Orbax's class for a lost array is Exception

    monkeypatch.setattr(checkpoints.ocp.CheckpointManager, "restore", fails)
    with pytest.raises(seen, match="checkpoints/1: is damaged" if seen is UserError else "while reading"):
        restore(run)


def test_a_checkpoint_whose_losses_are_cut_is_damaged_for_training_only(make_run: MakeRun, dataset: Dataset):
    run = make_run("a")
    train(run, dataset, until=1, progress=False)
    (run.checkpoints / "1/unlogged/metadata").write_text('{"los')
    assert restore(run)[1] == 1
    with pytest.raises(UserError, match=r"checkpoints/1: is damaged: .* has no other checkpoint"):
        train(run, dataset, progress=False)


def test_a_run_is_called_finished_only_once_its_last_checkpoint_is_whole(
    make_run: MakeRun, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
):
    run, record, seen = make_run("a", train={"steps": 3}), Run.record, []

    def recorded(self: Run, **fields) -> None:
        if "finished" in fields:
            seen.append((fields["finished"], steps(self)))
        record(self, **fields)

    monkeypatch.setattr(Run, "record", recorded)
    train(run, dataset, progress=False)
    assert seen == [(False, []), (True, [3])]


@pytest.mark.parametrize(("peaks", "own"), [((None, None), None), ((100, 100), None), ((100, 170), 170)])
def test_the_peak_of_memory_is_the_runs_own_or_it_is_not_known(
    make_run: MakeRun, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, peaks, own
):
    run, told = make_run("a", train={"steps": 3}), iter(peaks)
    monkeypatch.setattr(bookkeeping, "peak_memory", lambda: next(told))
    train(run, dataset, progress=False)
    assert run.provenance["peak_memory_bytes"] == own
