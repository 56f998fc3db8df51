import json
import math
import os
import subprocess
import warnings
from datetime import UTC, datetime
from pathlib import Path

import pytest

from andrea_jax import runs
from andrea_jax.config import Experiment, Model
from andrea_jax.config_files import load, run_id
from andrea_jax.errors import UserError
from andrea_jax.runs import Run, create, find

EXPERIMENT = Experiment(model=Model(vocab_size=307, seq_len=1024, d_model=96, n_layer=3, n_head=6))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return create(tmp_path / "runs", EXPERIMENT, "first")


def write_metrics(run: Run, text: str) -> None:
    (run.path / "metrics.jsonl").write_text(text, encoding="utf-8")


# creating and opening


def test_a_run_directory_is_named_after_its_experiment_and_holds_it(run: Run):
    assert run.path.name == f"first-{run_id(EXPERIMENT)}"
    assert load(run.path / "config.toml") == EXPERIMENT
    assert sorted(file.name for file in run.path.iterdir()) == [
        "checkpoints", "config.toml", "figures", "heads", "provenance.json",
    ]  # fmt: skip
    assert Run.open(run.path) == run


def test_provenance_says_when_how_and_with_what_a_run_was_made(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["andrea", "train", "a file.toml"])
    written = create(run.path.parent, EXPERIMENT, "second").provenance
    age = datetime.now(UTC) - datetime.fromisoformat(written["created"])
    assert 0 <= age.total_seconds() < 60
    assert written["command"] == "andrea train 'a file.toml'"
    assert (written["format"], written["name"], written["run_id"]) == (1, "second", run_id(EXPERIMENT))
    assert written["cpu_count"] == os.cpu_count()
    assert written["versions"]["python"].startswith("3.")
    assert {"jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"} <= written["versions"].keys()
    assert written["versions"]["numpy"].count(".") == 2


@pytest.mark.parametrize(
    ("answers", "commit", "dirty"),
    [
        ({"ls-files": "runs.py", "rev-parse": "abc", "status": " M x"}, "abc", True),
        ({"ls-files": "runs.py", "rev-parse": "abc", "status": ""}, "abc", False),
        ({"ls-files": None, "rev-parse": "abc", "status": ""}, None, None),  # installed inside another checkout
        ({"ls-files": None, "rev-parse": None, "status": None}, None, None),  # no git
    ],
)
def test_the_commit_is_that_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers, commit, dirty):
    monkeypatch.setattr(runs, "_git", lambda command, *_: answers[command])
    written = create(tmp_path, EXPERIMENT, "x").provenance
    assert (written["commit"], written["dirty"]) == (commit, dirty)


def test_a_config_that_is_not_committed_leaves_the_code_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = tmp_path / "andrea_jax" / "runs.py"
    runs.write_atomically(code, "x = 1")
    person = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*person, "commit", "-qm", "x"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    monkeypatch.setattr(runs, "__file__", str(code))
    (tmp_path / "mine.toml").write_text("")
    assert runs.circumstances()["dirty"] is False
    code.with_name("new.py").write_text("")
    assert runs.circumstances()["dirty"] is True


def test_a_missing_git_is_no_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    assert runs._git("rev-parse", "HEAD") is None


def test_recorded_fields_join_the_provenance(run: Run):
    created = run.provenance["created"]
    run.record(device="cpu", data={"hash": "12"})
    run.record(device="H200")
    again = Run.open(run.path).provenance
    assert (again["device"], again["data"], again["created"]) == ("H200", {"hash": "12"}, created)


def test_the_run_of_an_experiment_is_opened_where_it_is_and_made_where_it_is_not(run: Run):
    run.record(device="somewhere")
    assert runs.open_or_create(run.path.parent, EXPERIMENT, "first").provenance["device"] == "somewhere"
    assert runs.open_or_create(run.path.parent, EXPERIMENT, "second").path.name == f"second-{run_id(EXPERIMENT)}"


def test_an_existing_run_is_not_overwritten(run: Run):
    run.record(device="cpu")
    with pytest.raises(UserError, match=r"first-[0-9a-f]{8}: exists already"):
        create(run.path.parent, EXPERIMENT, "first")
    assert run.provenance["device"] == "cpu"
    assert [path.name for path in run.path.parent.iterdir()] == [run.path.name]


def test_a_run_that_fails_while_it_is_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted() -> dict:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "circumstances", interrupted)
    with pytest.raises(KeyboardInterrupt):
        create(tmp_path, EXPERIMENT, "first")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".hidden", "a b", "-a"])
def test_a_name_that_is_no_plain_file_name_is_refused(tmp_path: Path, name: str):
    with pytest.raises(UserError, match="must start with a letter"):
        create(tmp_path, EXPERIMENT, name)


def test_a_root_that_is_a_file_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        create(tmp_path / "file", EXPERIMENT, "first")


def test_opening_what_is_no_run_says_why(run: Run, tmp_path: Path):
    with pytest.raises(UserError, match=rf'no such run \(did you mean "{run.path.name}"\?\)'):
        Run.open(run.path.with_name(f"fist-{run_id(EXPERIMENT)}"))
    with pytest.raises(UserError, match=r"is not a run directory.*no provenance\.json$"):
        Run.open(tmp_path)
    with pytest.raises(UserError, match=rf"no provenance\.json; runs in it: {run.path.name}$"):
        Run.open(run.path.parent)
    (run.path / "config.toml").rename(run.path / "away")
    with pytest.raises(UserError, match=r"only part of one: it has no config\.toml"):
        Run.open(run.path)


def test_opening_a_run_of_another_format_or_a_damaged_one_says_so(run: Run):
    run.record(format=2)
    with pytest.raises(UserError, match="run format 2, and this version reads format 1"):
        Run.open(run.path)
    provenance = run.path / "provenance.json"
    provenance.write_text('{"format": ')
    with pytest.raises(UserError, match=r"provenance\.json: is not valid JSON"):
        Run.open(run.path)
    provenance.write_text("[1]")
    with pytest.raises(UserError, match=r"provenance\.json: must hold one JSON object"):
        Run.open(run.path)


def test_find_lists_runs_oldest_first_and_names_the_ones_it_cannot_open(run: Run):
    root = run.path.parent
    late, early, broken = (create(root, EXPERIMENT, name) for name in ("b", "z", "y"))
    run.record(created="2026-01-02T00:00:00+00:00")
    late.record(created="2026-01-03T00:00:00+00:00")
    early.record(created="2026-01-01T00:00:00+00:00")
    broken.record(format=7)
    (root / "notes").mkdir()
    with pytest.warns(UserWarning, match=f"{broken.path.name}: was written in run format 7"):
        assert find(root) == [early, run, late]
    with pytest.raises(UserError, match=r'no such folder of runs \(did you mean "runs"\?\)'):
        find(root.with_name("run"))


# metrics


def test_metrics_come_back_as_they_were_appended_and_bit_for_bit(run: Run):
    assert run.metrics() == []
    records = [{"step": 1, "loss": 0.1 + 0.2, "note": "é\u2028"}, {"step": 2, "loss": 5e-324, "norms": [1.0, 2]}]
    for record in records:
        run.append_metrics(record)
        assert (run.path / "metrics.jsonl").read_bytes().endswith(b"\n")
    assert Run.open(run.path).metrics() == records


def test_nan_and_infinity_are_written_as_json_strings_and_read_back_as_floats(run: Run):
    run.append_metrics({"step": 1, "loss": math.nan, "parts": [math.inf, -math.inf, {"x": math.nan}]})
    text = (run.path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON")) == {
        "step": 1, "loss": "nan", "parts": ["inf", "-inf", {"x": "nan"}],
    }  # fmt: skip
    (record,) = run.metrics()
    assert math.isnan(record["loss"])
    assert record["parts"][:2] == [math.inf, -math.inf]
    assert math.isnan(record["parts"][2]["x"])


def test_a_value_that_json_cannot_hold_leaves_the_file_as_it_was(run: Run):
    run.append_metrics({"step": 1})
    with pytest.raises(TypeError):
        run.append_metrics({"step": 2, "loss": object()})  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="keys must be strings"):
        run.append_metrics({"step": 2, "by_layer": {0: 1.0}})  # pyright: ignore[reportArgumentType]
    assert run.metrics() == [{"step": 1}]


def test_a_cut_last_line_is_skipped_and_said_once(run: Run):
    write_metrics(run, '{"step": 1}\n{"step": 2, "lo')
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        assert run.metrics() == [{"step": 1}]
        assert Run.open(run.path).metrics() == [{"step": 1}]
    assert [str(warning.message).rpartition("/")[2] for warning in caught] == [
        "metrics.jsonl, line 2: skipped, the run stopped while writing it"
    ]


def test_a_last_line_that_lacks_only_its_newline_counts(run: Run):
    write_metrics(run, '{"step": 1}\n{"step": 2}')
    assert run.metrics() == [{"step": 1}, {"step": 2}]
    run.append_metrics({"step": 3})
    assert run.metrics() == [{"step": 1}, {"step": 2}, {"step": 3}]


def test_appending_after_a_cut_line_replaces_it(run: Run):
    write_metrics(run, '{"step": 1}\n{"step": 2, "lo')
    with pytest.warns(UserWarning, match="line 2: skipped"):
        run.append_metrics({"step": 3})
    assert run.metrics() == [{"step": 1}, {"step": 3}]


@pytest.mark.parametrize("bad", ["{", "3", "[1]", ""])
def test_a_bad_line_that_is_not_a_cut_last_one_is_an_error(run: Run, bad: str):
    write_metrics(run, f'{{"step": 1}}\n{bad}\n{{"step": 3}}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2: must be one JSON object"):
        run.metrics()


def test_a_resumed_run_drops_the_steps_after_its_checkpoint(run: Run):
    run.truncate_metrics(after_step=0)
    assert run.metrics() == []
    write_metrics(run, '{"event": "start"}\n{"step": 10}\n{"step": 20}\n{"step": 21}\n{"step": 3')
    with pytest.warns(UserWarning, match="line 5: skipped"):
        run.truncate_metrics(after_step=20)
    assert run.metrics() == [{"event": "start"}, {"step": 10}, {"step": 20}]


# files


def test_json_files_come_back_and_make_their_folders(run: Run):
    path = run.write_json("heads/step-10/scores.json", {"previous": [0.5, math.inf], "n": (3, 4)})
    assert path == run.path / "heads" / "step-10" / "scores.json"
    assert run.read_json("heads/step-10/scores.json") == {"previous": [0.5, math.inf], "n": [3, 4]}
    with pytest.raises(UserError, match=r"other\.json: no such file"):
        run.read_json("heads/other.json")


def test_a_failed_write_leaves_the_old_file_and_no_draft(run: Run, monkeypatch: pytest.MonkeyPatch):
    run.write_json("heads/scores.json", {"a": 1})

    def fails(source: Path, target: Path) -> None:
        assert source.parent == target.parent  # os.replace is atomic only within one file system
        assert json.loads(source.read_text()) == {"a": 2}
        raise OSError(28, "disk")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(OSError, match="disk") as failed:
        run.write_json("heads/scores.json", {"a": 2})
    assert failed.value.filename == str(run.heads / "scores.json")
    assert run.read_json("heads/scores.json") == {"a": 1}
    assert [path.name for path in run.heads.iterdir()] == ["scores.json"]
