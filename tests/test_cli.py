"""Every command, end to end on a tiny run; and what each says to bad input: one message, exit code 2, no traceback."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from andrea_jax import config_files, data, runs, training
from andrea_jax.heads import Profile

COMMANDS = ("train", "sweep", "compare", "heads", "params", "report", "compare-projections", "sample", "view")
REPOSITORY = Path(__file__).parent.parent


@pytest.fixture
def copy(tiny_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_run, tmp_path / tiny_run.name))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- what the commands do ---------------------------------------------------------------------------------------------


def test_training_a_config_leaves_a_finished_run_named_after_the_config_and_its_id(tiny_config, tiny_run):
    assert tiny_run.name == f"tiny-{config_files.run_id(config_files.load(tiny_config))}"
    run = runs.Run.open(tiny_run)
    assert run.provenance["finished"]
    assert training.steps(run)[-1] == 5
    assert [line["step"] for line in run.metrics() if "eval_loss" in line] == [3, 5]


def test_training_a_finished_run_again_says_so_and_changes_nothing(andrea, tiny_config, tiny_run):
    before = contents(tiny_run)
    loss = runs.Run.open(tiny_run).metrics()[-1]["eval_loss"]
    for words in ((tiny_run,), (tiny_config, "--runs", tiny_run.parent)):
        code, out, err = andrea("train", *words)
        assert (code, err) == (0, f"{tiny_run} is finished: it has done all 5 steps\n")
        assert out == f"{tiny_run}: held-out loss {loss:.3f} nats/token after step 5\n"
    assert contents(tiny_run) == before


@pytest.mark.slow
def test_training_a_stopped_run_goes_on_to_the_same_weights_as_never_stopping(andrea, tiny_config, tiny_run, tmp_path):
    experiment = config_files.load(tiny_config)
    stopped = runs.create(tmp_path, experiment, "tiny")
    training.train(stopped, data.prepare(experiment), until=3, progress=False)
    code, out, _ = andrea("train", stopped.path, "--json")
    found = json.loads(out)
    assert (code, found["run"], found["step"]) == (0, str(stopped.path), 5)
    for here, there in zip(
        *(jax.tree.leaves(training.restore(runs.Run.open(path))[0]) for path in (stopped.path, tiny_run)), strict=True
    ):
        assert np.array_equal(here, there)


def test_overrides_may_follow_an_option(andrea):
    code, out, _ = andrea("params", REPOSITORY / "configs/quickstart.toml", "--json", "model.n_layer=1")
    assert code == 0
    assert json.loads(out)["W_O"] == 64 * 64


def test_heads_as_json_has_every_head_on_every_probe_and_is_saved_in_the_run(andrea, copy):
    code, out, _ = andrea("heads", copy, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["run"], found["step"]) == (str(copy), 5)
    induction = [(row["layer"], row["head"]) for row in found["table"] if row["probe"] == "induction"]
    assert induction == [(layer, head) for layer in range(2) for head in range(3)]
    saved = Profile.load(copy / "heads", 5)
    scores = [np.nan if row["score"] is None else row["score"] for row in found["best"]]
    assert scores == pytest.approx(saved.best["score"].tolist(), nan_ok=True, abs=1e-6)
    again = andrea("heads", copy, "--all")[1]
    for shown in ("previous token", "induction", "bracket", "All heads", "1.2"):
        assert shown in again


@pytest.mark.slow
def test_report_writes_one_page_with_tables_and_figures(andrea, copy):
    code, out, _ = andrea("report", copy)
    assert (code, out) == (0, f"{copy / 'report.html'}\n")
    page = (copy / "report.html").read_text()
    assert "Fused and per-head agree within tolerance" in page
    assert {"checks.csv", "profile.csv", "loss.png", "loss.svg"} <= {path.name for path in (copy / "figures").iterdir()}


@pytest.mark.parametrize(
    ("name", "total"), [("andrea-12m", 12_780_288), ("andrea-120m", 98_698_752), ("andrea-480m", 505_678_848)]
)
def test_params_as_json_are_the_published_counts(andrea, name, total):
    found = json.loads(andrea("params", REPOSITORY / f"configs/{name}.toml", "--json")[1])
    assert found.pop("total") == total == sum(found.values())


def test_params_of_andrea_120m_state_what_the_lesson_says_of_attention(andrea):
    code, out, _ = andrea("params", REPOSITORY / "configs/andrea-120m.toml")
    assert code == 0
    for number in ("98,698,752", "7,077,888", "2,359,296 a layer", "28,311,552 in all (28.7%)"):
        assert number in out


@pytest.mark.slow
def test_compare_projections_counts_twelve_matmuls_where_three_heads_loop(andrea, tiny_config, tmp_path):
    out_folder = tmp_path / "out"
    code, out, _ = andrea("compare-projections", tiny_config, "--json", "--repeats", 2, "--out", out_folder)
    found = json.loads(out)
    assert (code, found["equal"]) == (0, True)
    assert found["timed"] == {"batch": 7, "seq": 31, "dtype": "float32", "repeats": 2}
    loop = {row["passes"]: row["matmuls"] for row in found["timing"] if row["form"] == "per-head, loop"}
    assert loop == {"forward": 12, "forward + backward": 36}  # W_Q, W_K, W_V, W_O of three heads
    names = {"comparison.json", "projections.png", "projections.svg"}
    names |= {f"{table}.{kind}" for table in ("equality", "timing") for kind in ("csv", "parquet")}
    assert {path.name for path in out_folder.iterdir()} == names
    assert json.loads((out_folder / "comparison.json").read_text()) == found


@pytest.mark.slow
def test_compare_projections_of_a_run_uses_its_weights_and_held_out_text(andrea, tiny_run):
    code, out, _ = andrea("compare-projections", tiny_run, "--repeats", 1)
    assert code == 0
    assert f"{tiny_run.name} after step 5, held-out text" in " ".join(out.split())


def test_a_sample_starts_with_the_text_and_is_the_same_each_time(andrea, tiny_run):
    asked = ("sample", tiny_run, "def x", "--tokens", 6, "--json", "--temperature", 0.9, "--seed", 3)
    code, out, _ = andrea(*asked)
    found = json.loads(out)
    assert code == 0
    assert found["text"].startswith("def x")
    assert len(found["tokens"]) == 6
    assert andrea(*asked)[1] == out
    assert andrea("sample", tiny_run, "def x", "--tokens", 6)[1].startswith("def x")


def test_view_writes_one_page_that_compares_the_model_with_itself_without_a_head(andrea, copy, tmp_path):
    code, out, _ = andrea("view", copy, "def x(y):", "--ablate", "0.1", "--out", tmp_path / "page.html")
    assert code == 0 and out.strip() == str(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert "0.1" in page
    assert andrea("view", copy, "def x(y):")[1].strip() == f"{copy}/view.html"


def test_view_compares_two_steps_of_a_run(andrea, copy, tmp_path):
    shutil.copytree(copy / "checkpoints/5", copy / "checkpoints/4")
    code, out, _ = andrea("view", copy, "def x", "--against", f"{copy}@4", "--out", tmp_path / "page.html")
    assert (code, out.strip()) == (0, str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"step 5"' in page and '"step 4"' in page


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_shows_an_example(andrea, command):
    code, out, _ = andrea(command, "--help")
    assert code == 0
    assert f"example: andrea {command} " in " ".join(out.split())


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error():
    command = (
        f"{sys.executable} -m andrea_jax.cli params configs/quickstart.toml --json | true; echo ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


# --- what they say to bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "{config}", "model.n_heads=3"], 'model.n_heads = 3: unknown key (did you mean "model.n_head"?)'),
        (["train", "{config}", "--runs", "{runs}", "model.d_model=25"], "model.n_head = 3: must divide d_model = 25"),
        (["train", "{config}x"], 'no such file (did you mean "tiny.toml"?)'),
        (["train", "{runs}"], "is not a run directory"),
        (["train", "{run}", "train.steps=9"], "train.steps=9: a run continues as it began, but for compute.mesh"),
        (["train", "{config}", "--hosts", "node:1", "2"], "--hosts node:1 2: must be followed by nothing or"),
        (["heads", "{runs}"], "is not a run directory, or only part of one: it has no provenance.json; runs in it: "),
        (["heads", "{run}x"], "no such run (did you mean"),
        (["heads", "{run}", "--step", "4"], "has no checkpoint of step 4; it has those of steps"),
        (["heads", "{run}", "circuits", "--step", "4"], "has no checkpoint of step 4; it has those of steps"),
        (["heads", "{run}", "--step", "late"], 'must be "last", "best" or a step, not "late"'),
        (["report", "{run}", "--backend", "chunk"], 'cudnn, mosaic, triton (did you mean "chunked"?)'),
        (["params", "{runs}"], "cannot be read: Is a directory"),
        (["params", "{config}", "--jsn"], 'unrecognized arguments: --jsn (did you mean "--json"?)'),
        (["train", "{config}", "--n_head", "4"], '--n_head 4 (did you mean "model.n_head=..."?)'),
        (["trian", "{config}"], 'not "trian" (did you mean "train"?) (see andrea --help)'),
        (["heads", "{run}", "ablaton"], 'not "ablaton" (did you mean "ablation"?) (see andrea heads --help)'),
        (["import", "{config}"], "tiny.toml: is a file; expected a GPT-2 folder or an ANDREA .bin file"),
        (["compare-projections", "{run}", "model.n_head=1"], "model.n_head=1: a run is compared as it was trained"),
        (["compare-projections", "{config}", "--repeats", "0"], "must be a whole number, 1 or more, not 0"),
        (["compare-projections", "{config}", "--out", "{config}"], "tiny.toml: is a file; --out names a folder"),
        (["sample", "{run}", "x", "--tokens", "-3"], "must be a whole number, 1 or more, not -3"),
        (["sample", "{run}", "x", "--tokens", "36"], "--tokens 36: must be at most 35, since the text has 2 tokens"),
        (["sample", "{run}", "x" * 37], "text: 38 tokens with BOS, and the model has model.seq_len = 37 positions"),
        (["sample", "{run}", "x", "--temperature", "nan"], "must be a number, 0 or more, not nan"),
        (["view", "{run}", "x", "--ablate", "3"], "must be layer.head, for example 0.3, not 3"),
        (["view", "{run}", "x", "--ablate", "9.0"], "head 9.0: there is none in a model of"),
        (["view", "{run}", "x", "--out", "{runs}"], ": is a folder; --out names a file"),
        (["view", "{run}", "x", "--against", "{run}"], "is this run at the same step, 5; name another of its steps"),
        (["view", "{run}", "x", "--against", "{run}@5"], "is this run at the same step, 5; name another of its steps"),
        (["view", "{run}", "x", "--against", "{run}@4"], "has no checkpoint of step 4; it has those of steps"),
        (["view", "{run}", "x", "--against", "{run}@late"], 'must be "last", "best" or a step, not "late"'),
        (["view", "{run}", "x", "--out", "{config}/x.html"], "error: {config}: "),
        (["sample", "{run}", "x", "--seed", "-1"], "must be a whole number from 0 to 2**32 - 1, not -1"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_message_and_changes_nothing(andrea, tiny_config, tiny_run, words, said):
    places = {"config": tiny_config, "run": tiny_run, "runs": tiny_run.parent}
    before = contents(tiny_run.parent)
    code, out, err = andrea(*(word.format(**places) for word in words))
    assert (code, out) == (2, "")
    assert said.format(**places) in err
    assert err.count("error:") == 1
    assert "Traceback" not in err
    assert contents(tiny_run.parent) == before


def test_a_run_whose_tokenizer_vanished_cannot_be_sampled_and_says_why(andrea, copy):
    (copy / "tokenizer.json").unlink()
    code, out, err = andrea("sample", copy, "x")
    assert (code, out) == (2, "")
    assert f"error: {copy / 'tokenizer.json'}: no such file" in err


def test_a_cache_that_cannot_be_written_is_said_without_a_traceback(andrea, tiny_config, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("ANDREA_CACHE", str(tmp_path / "cache"))
    code, _, err = andrea("train", tiny_config, "--runs", tmp_path / "runs")
    assert code == 2
    assert f"error: {tmp_path / 'cache'}" in err


def test_a_run_on_other_data_is_not_scored(andrea, copy):
    runs.Run.open(copy).record(data_hash="0000")
    code, _, err = andrea("heads", copy)
    assert code == 2
    assert "was trained on data with hash 0000" in err
    assert not list((copy / "heads").iterdir())


def test_a_wrong_config_is_answered_before_jax_loads(tmp_path):
    program = (
        "import sys; from andrea_jax import cli; code = cli.main(sys.argv[1:]);"
        "print(code, sorted({'jax', 'numpy', 'rich'} & sys.modules.keys()))"
    )
    words = ["train", "configs/quickstart.toml", "model.n_haed=3", "--runs", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == "2 []\n"
    assert "model.n_haed" in done.stderr
    assert not list(tmp_path.iterdir())
