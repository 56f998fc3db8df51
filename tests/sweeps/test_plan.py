"""What a sweep plans, and what may lie in the place of its runs."""

import json
from pathlib import Path

import pytest

from andrea_jax import config_files, runs
from andrea_jax.errors import UserError
from andrea_jax.sweeps import plan as planning
from andrea_jax.sweeps.plan import label, open_runs, plan

GRID = '[sweep]\n"train.seed" = [0, 1]\n"data.seq_len" = [29, 31]\n'


@pytest.fixture
def config(tiny_config: Path, tmp_path: Path) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(f'extends = "{tiny_config}"\n{GRID}')
    return path


@pytest.fixture
def planned(config: Path, tmp_path: Path):
    return plan(config, ["train.steps=7"], tmp_path / "runs")


def test_a_run_lies_where_andrea_train_would_put_it(planned, tiny_config, tmp_path):
    overrides = ["train.steps=7", "train.seed=1", "data.seq_len=29"]
    alone = runs.create(tmp_path / "alone", config_files.load(tiny_config, overrides), "grid")
    assert [path.name for path in planned.paths].index(alone.name) == 2
    assert {path.parent for path in planned.paths} == {tmp_path / "runs"}


def test_the_keys_are_those_whose_values_differ_and_the_seed_comes_last(planned):
    assert planned.keys == ["data.seq_len", "train.seed"]
    assert label(planned.experiments[1], planned.keys) == "seq_len 31 · seed 0"


def test_two_keys_of_one_name_keep_their_sections():
    assert planning.short(["model.seq_len", "data.seq_len", "train.seed"]) == {
        "model.seq_len": "model.seq_len", "data.seq_len": "data.seq_len", "train.seed": "seed",
    }  # fmt: skip


@pytest.mark.parametrize(("value", "words"), [(1e-05, "1e-05"), ((11, 17), "11,17"), (None, "default"), (True, "True")])
def test_values_are_shown_as_a_person_writes_them(value, words):
    assert planning.shown(value) == words


def test_the_runs_are_made_once_and_opened_afterwards(planned):
    first = open_runs(planned)
    assert [run.experiment for run in first] == list(planned.experiments)
    before = [run.provenance["created"] for run in first]
    first[0].append_metrics({"step": 3})
    assert [run.provenance["created"] for run in open_runs(planned)] == before
    assert first[0].metrics() == [{"step": 3}]


def test_a_run_that_another_sweep_makes_at_the_same_time_is_opened(planned, monkeypatch):
    create = runs.create

    def twice(root, experiment, name):
        create(root, experiment, name)
        return create(root, experiment, name)

    monkeypatch.setattr(runs, "create", twice)
    assert len(open_runs(planned)) == 4


def half_written(path: Path) -> None:
    (path / "config.toml").unlink()


def of_another_version(path: Path) -> None:
    written = json.loads((path / "provenance.json").read_text())
    (path / "provenance.json").write_text(json.dumps(written | {"format": 99}))


def of_another_experiment(path: Path) -> None:
    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text(text.replace("batch_size = 7", "batch_size = 11"))


def cut_in_the_middle(path: Path) -> None:
    (path / "metrics.jsonl").write_text('{"step": 1}\n{"ste\n{"step": 3}\n')


WRONG = {
    half_written: "is not a run directory, or only part of one: it has no config.toml",
    of_another_version: "was written in run format 99, and this version reads format 1",
    of_another_experiment: "it was changed since the run was made",
    cut_in_the_middle: "metrics.jsonl, line 2: must be one JSON object",
}


def test_everything_that_lies_wrongly_in_the_place_of_runs_is_said_at_once_and_nothing_is_lost(planned):
    made = open_runs(planned)
    for run, damage in zip(made, WRONG, strict=True):
        damage(run.path)
    before = {path: path.read_bytes() for path in planned.root.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as raised:
        open_runs(planned)
    lines = str(raised.value).splitlines()
    assert len(lines) == len(WRONG)
    for line, run, words in zip(lines, made, WRONG.values(), strict=True):
        assert line.startswith(str(run.path)) and words in line
    assert {path: path.read_bytes() for path in planned.root.rglob("*") if path.is_file()} == before


def test_no_run_is_made_beside_a_damaged_one(planned):
    first = planned.paths[0]
    first.mkdir(parents=True)
    with pytest.raises(UserError, match="only part of one: it has no provenance"):
        open_runs(planned)
    assert [path.name for path in planned.root.iterdir()] == [first.name]


def test_a_last_line_that_a_killed_run_cut_is_no_obstacle(planned):
    run = open_runs(planned)[0]
    (run.path / "metrics.jsonl").write_text('{"step": 1}\n{"ste')
    with pytest.warns(UserWarning, match="line 2: skipped, the run stopped while writing it"):
        assert len(open_runs(planned)) == 4
