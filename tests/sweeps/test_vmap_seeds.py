"""`andrea sweep --vmap-seeds`: which runs train together, and what it says where none can."""

import dataclasses
from pathlib import Path

import pytest

from andrea_jax import data, estimate, training
from andrea_jax.runs import Run
from andrea_jax.sweeps import jobs, runner
from andrea_jax.sweeps.jobs import FAILURE
from andrea_jax.sweeps.together import groups
from andrea_jax.training import Elsewhere, Interrupted, NotFinite


@pytest.fixture
def three_seeds(config: Path) -> Path:
    config.write_text(config.read_text().replace("[0, 1]", "[0, 1, 2]"))
    return config


def end_with(monkeypatch: pytest.MonkeyPatch, *ended: Exception | dict) -> list[list[int]]:
    """Training together gives `ended`; returns the seeds that it was called with."""
    called = []

    def train_together(found: list[Run], *arguments: object) -> list[Exception | dict]:
        called.append([run.experiment.train.seed for run in found])
        return list(ended)

    monkeypatch.setattr(jobs, "train_together", train_together)
    return called


def test_what_was_begun_alone_finishes_together_and_is_left_alone_after_that(andrea, three_seeds, root):
    begun = runner.open_runs(runner.plan(three_seeds, (), root))[1:]
    for run in begun:
        training.train(run, data.prepare(run.experiment), until=3, progress=False)
    code, out, _ = andrea("sweep", three_seeds, "--runs", root, "--vmap-seeds")
    assert code == 0 and "3 runs: 3 finished" in out
    for run in begun:
        sessions = [(session["from_step"], session["runs_together"]) for session in run.provenance["sessions"]]
        assert sessions == [(0, 1), (3, 2)]
        assert [line["step"] for line in run.metrics()] == [3, 5, 5]
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert andrea("sweep", three_seeds, "--runs", root)[0] == 0
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_runs_of_one_group_differ_in_the_seed_alone_and_stand_at_one_step(tiny_config: Path, tmp_path: Path):
    config = tmp_path / "tiny.toml"
    config.write_text(f'extends = "{tiny_config}"\n[sweep]\n"train.seed" = [0, 1, 2]\n"model.n_head" = [2, 3]\n')
    made = runner.open_runs(runner.plan(config, (), tmp_path / "runs"))
    (made[2].checkpoints / "1").mkdir()
    found = [[(run.experiment.model.n_head, run.experiment.train.seed) for run in group] for group in groups(made)]
    assert found == [[(2, 0), (2, 2)], [(3, 0), (3, 1), (3, 2)], [(2, 1)]]


def test_a_group_is_no_larger_than_the_devices_memory(sweep, monkeypatch: pytest.MonkeyPatch):
    first = Run.open(sweep.paths[1])
    made = [
        Run(
            Path(str(seed)),
            dataclasses.replace(first.experiment, train=dataclasses.replace(first.experiment.train, seed=seed)),
        )
        for seed in range(5)
    ]
    one = estimate.estimate(first.experiment).total
    for memory, sizes in ((2 * one, [2, 2, 1]), (one // 2, [1] * 5), (None, [5])):
        monkeypatch.setattr(estimate, "device_memory", lambda memory=memory: memory)
        assert [len(group) for group in groups(made)] == sizes


def test_each_run_of_a_group_ends_as_it_ended_and_one_that_was_elsewhere_is_asked_for_again(
    three_seeds, root, monkeypatch: pytest.MonkeyPatch
):
    called = end_with(monkeypatch, NotFinite("step 2: the loss is nan"), Elsewhere("held"))
    found = runner.sweep(three_seeds, root=root, vmap_seeds=True, progress=False)
    assert called == [[1, 2]]
    assert [(one.state, one.message) for one in found] == [
        ("finished", ""), ("failed", "step 2: the loss is nan"), ("finished", "")
    ]  # fmt: skip
    assert "NotFinite: step 2: the loss is nan" in (found[1].run.path / FAILURE).read_text()


def test_an_interrupt_stops_the_sweep(three_seeds, root, monkeypatch: pytest.MonkeyPatch):
    planned = runner.open_runs(runner.plan(three_seeds, (), root))
    end_with(monkeypatch, *(Interrupted(run, 3) for run in planned[1:]))
    with pytest.raises(runner.Stopped) as stopped:
        runner.sweep(three_seeds, root=root, vmap_seeds=True, progress=False)
    assert [one.message for one in stopped.value.found] == ["", "saved at step 3", "saved at step 3"]


def test_an_error_of_the_program_is_every_runs_failure(three_seeds, root, monkeypatch: pytest.MonkeyPatch):
    def out_of_memory(*arguments: object) -> None:
        raise MemoryError("out of memory")

    monkeypatch.setattr(jobs, "train_together", out_of_memory)
    found = runner.sweep(three_seeds, root=root, vmap_seeds=True, progress=False)
    assert [one.state for one in found] == ["finished", "failed", "failed"]
    assert all("in out_of_memory" in (one.run.path / FAILURE).read_text() for one in found[1:])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workers", "2"], "--vmap-seeds: trains in this process, and --workers 2 in others"),
        (["--launcher", "ray"], "--vmap-seeds: trains in this process, and --launcher ray in others"),
        (["compute.mesh={heads=3}"], "--vmap-seeds: compute.mesh cuts a run over 3 devices"),
    ],
)
def test_what_cannot_train_together_is_refused_before_anything_is_made(andrea, config, tmp_path, words, said):
    code, _, err = andrea("sweep", config, "--runs", tmp_path / "none", "--vmap-seeds", *words)
    assert code == 2 and said in err
    assert not (tmp_path / "none").exists()
