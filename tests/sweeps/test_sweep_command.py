"""`andrea sweep` and `andrea compare`: what they print, their exit codes, and what they say to bad input."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from made_runs import made

from andrea_jax import config_files
from andrea_jax.sweeps import jobs, runner
from andrea_jax.sweeps.jobs import Swept
from andrea_jax.sweeps.plan import Sweep
from andrea_jax.training import NotFinite

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """made.toml with three seeds, of which runs/ holds the first two."""
    first = made(tmp_path / "runs", 0)
    made(tmp_path / "runs", 1, loss=2.5)
    text = config_files.dump(first.experiment).replace("seed = 0\n", "")
    (tmp_path / "made.toml").write_text(f'{text}[sweep]\n"train.seed" = [0, 1, 2]\n')
    return tmp_path / "made.toml"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_sweep_with_a_failing_run_says_so_in_its_table_and_its_exit_code(andrea, config, root, monkeypatch):
    def fails(run, dataset, **options):
        raise NotFinite("step 2: the loss is nan")

    monkeypatch.setattr(jobs, "train", fails)
    code, out, _ = andrea("sweep", config, "--runs", root)
    assert code == 1
    assert "2 runs: 1 finished, 1 failed" in out and "failed: step 2: the loss is nan" in out and jobs.FAILURE in out


def test_as_json_there_is_one_object_a_run(andrea, sweep: Sweep, config, root, monkeypatch):
    monkeypatch.setattr(jobs, "train", lambda run, dataset, **options: run.record(finished=True))
    code, out, err = andrea("sweep", config, "--runs", root, "--json")
    assert code == 0 and "finished" not in err
    assert json.loads(out) == [{"run": str(path), "state": "finished", "message": ""} for path in sweep.paths]


def test_a_stopped_sweep_ends_with_130_and_its_table(andrea, sweep: Sweep, config, root, monkeypatch):
    def stops(*arguments, **options):
        raise runner.Stopped([Swept(jobs.Run.open(path), "stopped", "saved at step 3") for path in sweep.paths])

    monkeypatch.setattr(runner, "sweep", stops)
    code, out, _ = andrea("sweep", config, "--runs", root)
    assert code == 130 and "2 runs: 2 stopped" in out and "saved at step 3" in out


def test_a_wrong_sweep_is_answered_before_jax_loads(tmp_path):
    (tmp_path / "grid.toml").write_text(
        f'extends = "{REPOSITORY}/configs/quickstart.toml"\n[sweep]\n"train.sede" = [0]\n'
    )
    program = (
        "import sys; from andrea_jax import cli; code = cli.main(sys.argv[1:]);"
        "print(code, sorted({'jax', 'numpy', 'rich'} & sys.modules.keys()))"
    )
    for command in ("sweep", "compare"):
        words = [command, str(tmp_path / "grid.toml")]
        done = subprocess.run(
            [sys.executable, "-c", program, *words], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        assert done.stdout == "2 []\n"
        assert 'sweep."train.sede" = [0]: unknown key (did you mean "train.seed"?)' in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["grid.toml"]


def test_comparing_a_sweep_prints_writes_and_names_the_runs_that_are_left_out(andrea, grid):
    code, out, err = andrea("compare", grid)
    assert (code, err.strip()) == (0, "")  # the progress bar leaves an empty line
    for words in ("2 runs", "seed 1", "1 of 3 runs are not finished and left out: seed 2", "Matched heads"):
        assert words in out, words
    assert out.splitlines()[-2:] == [f"results/made/{name}.png" for name in ("profiles", "matched-heads")]
    assert (grid.parent / "results/made/runs.parquet").is_file()


def test_comparing_as_json_has_the_runs_the_differences_and_the_notes(andrea, grid):
    (grid.parent / "runs2").mkdir()
    other = made(grid.parent / "runs2", 0, rate=1e-2, loss=2.25)
    code, out, _ = andrea("compare", next((grid.parent / "runs").iterdir()), other.path, "--json", "--out", "out")
    found = json.loads(out)
    assert code == 0 and found["out"] == "out" and found["notes"] == []
    assert [row["optim.learning_rate"] for row in found["runs"]] == [1e-3, 1e-2]
    loss = next(row for row in found["differences"] if row["measure"] == "heldout_loss")
    assert loss["verdict"] == "too few seeds" and loss["low"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep", "{grid}", "train.seed=4"], "is swept, so train.seed cannot be set on the command line too"),
        (["sweep", "{grid}", "train.steps=1.5"], "train.steps = 1.5: must be an integer"),
        (["sweep", "{grid}x"], 'no such file (did you mean "made.toml"?)'),
        (["sweep", "{grid}", "--workers", "0"], "must be a whole number, 1 or more, not 0"),
        (["sweep", "{grid}", "--launcher", "slurm"], '--launcher: must be one of local, ray, not "slurm"'),
        (["compare", "{grid}", "optim.name=muon"], "0 finished runs in runs: it takes two to compare"),
        (["compare", "{grid}", "{runs}"], "made.toml: a sweep is compared by itself, and 1 more were named"),
        (["compare", "{runs}"], "is not a run directory, or only part of one: it has no provenance.json"),
        (["compare", "{runs}", "train.steps=3"], "train.steps=3: runs are compared as they were trained"),
        (["compare", "{run}", "{run}"], "are the same experiment, run "),
        (["compare", "{run}", "--out", "{grid}"], "made.toml: is a file; --out names a folder"),
        (["compare", "{run}", "{other}", "--step", "7"], "has no checkpoint of step 7; it has those of steps 100"),
        (["compare", "{run}", "{other}", "--step", "late"], 'must be "last", "best" or a step, not "late"'),
    ],
)
def test_bad_input_gets_one_message_and_changes_nothing(andrea, grid, words, said):
    run, other = sorted((grid.parent / "runs").iterdir())
    places = {"grid": grid, "runs": run.parent, "run": run, "other": other}
    before = contents(grid.parent)
    code, out, err = andrea(*(word.format(**places) for word in words))
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("error:") == 1 and "Traceback" not in err
    assert contents(grid.parent) == before


def test_a_line_that_a_killed_run_cut_is_one_line_of_warning_and_no_error(andrea, grid):
    run = sorted((grid.parent / "runs").iterdir())[0]
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1')
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, _, err = andrea("compare", grid)
    assert code == 0
    said = [line for line in err.splitlines() if "skipped, the run stopped while writing it" in line]
    assert said and all(line.startswith("warning: ") for line in said)
    assert "runs.py" not in err


def test_a_damaged_run_is_said_by_both_commands(andrea, grid):
    run = sorted((grid.parent / "runs").iterdir())[0]
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"ste\n{"step": 3}\n')
    before = contents(grid.parent)
    for words in (["sweep", grid], ["compare", grid]):
        code, _, err = andrea(*words)
        assert code == 2
        assert err.count("error:") == 1 and "metrics.jsonl, line 2: must be one JSON object" in err
    assert contents(grid.parent) == before
