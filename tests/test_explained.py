"""Circuits, attributions and similarity of a run, from Python and from the command line."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from andrea_jax import cli, explained
from andrea_jax.loaded import LoadedRun, load_run
from andrea_jax.runs import Run

TEXT = "def f(a, [b])"


@pytest.fixture(scope="module")
def run(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    """A copy whose checkpoint of step 5 stands in for step 0 as well."""
    path = shutil.copytree(tiny_run, tmp_path_factory.mktemp("explained") / tiny_run.name)
    shutil.copytree(path / "checkpoints/5", path / "checkpoints/0")
    return load_run(path)


def ask(capsys: pytest.CaptureFixture[str], run: LoadedRun, *words: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `andrea heads RUN words...`."""
    capsys.readouterr()
    code = cli.main(["heads", str(run.run.path), *map(str, words)])
    return code, *capsys.readouterr()


def kept_files(run: LoadedRun, tables: tuple[str, ...], figure: str) -> bool:
    files = [run.run.heads / f"{name}-5.{kind}" for name in tables for kind in ("csv", "parquet")]
    return all(path.is_file() for path in [*files, *(run.run.figures / f"{figure}.{kind}" for kind in ("svg", "png"))])


def test_circuits_are_shown_beside_those_of_step_0_and_kept(capsys, run: LoadedRun):
    code, shown, _ = ask(capsys, run, "circuits")
    assert code == 0
    for words in ("Composition", "z at step 0", "Copying", "circuits.png"):
        assert words in shown
    assert kept_files(run, ("copying", "composition"), "circuits")
    found = pd.read_parquet(run.run.heads / "composition-5.parquet")
    assert len(found) == 3 * 9 and found["initial"].tolist() == found["composition"].tolist()
    assert len(pd.read_parquet(run.run.heads / "copying-5.parquet")) == 6
    assert explained.circuits(run.at(0)).composition["initial"].isna().all()


def test_an_attribution_is_of_the_next_token_and_at_the_end_of_the_likeliest(capsys, run: LoadedRun):
    logits = np.asarray(run.trace(TEXT).logits)[0]
    inside, at_end = explained.attribution(run, TEXT, position=5), explained.attribution(run, TEXT)
    assert inside.token == TEXT[5] and inside.logit == pytest.approx(logits[5, 1 + ord(TEXT[5])], abs=1e-4)
    assert at_end.logit == pytest.approx(logits[-1].max(), abs=1e-4)
    assert at_end.lens["rank"].iloc[-1] == 1 and at_end.lens["top_piece"].iloc[-1] == at_end.token
    code, out, _ = ask(capsys, run, "attribution", TEXT, "--position", 5, "--token", "x", "--against", "(", "--json")
    found = json.loads(out)
    expected = logits[5, 1 + ord("x")] - logits[5, 1 + ord("(")]
    assert (code, found["token"]) == (0, "x") and found["logit"] == pytest.approx(expected, abs=1e-4)
    assert sum(row["contribution"] for row in found["contributions"]) == pytest.approx(expected, abs=1e-4)
    assert kept_files(run, ("attribution", "lens"), "attribution")


def test_why_asks_by_default_from_the_last_token_to_the_key_with_most_attention(capsys, run: LoadedRun):
    row = run.trace(TEXT).pattern(1, 2)[-1]
    found = explained.why(run, TEXT, (1, 2)).why
    assert (found.query, found.key) == (len(TEXT), row.argmax())
    assert found.attention == pytest.approx(row.max(), abs=1e-5)
    code, shown, _ = ask(capsys, run, "why", TEXT, "--head", "1.2", "--query", 4, "--key", 2)
    assert code == 0 and "Why head 1.2 attends from “·” (4) to “e” (2)" in shown
    assert kept_files(run, ("why",), "why")


@pytest.mark.slow
def test_patching_compares_pairs_of_prompts_from_a_file_by_head_and_by_path(capsys, run: LoadedRun, tmp_path: Path):
    pairs, file = (("(a, b", "[a, b", ")", "]"), ("{a, b", "<a, b", "}", ">")), tmp_path / "pairs.tsv"
    file.write_text("\n".join("\t".join(line) for line in pairs))
    code, out, _ = ask(capsys, run, "patching", file, "--json")
    found = json.loads(out)
    for i, name in enumerate(("clean", "corrupted")):
        logits = [
            np.asarray(run.trace(pair[i]).logits)[0, -1, [1 + ord(token) for token in pair[2:]]] for pair in pairs
        ]
        assert found[name] == pytest.approx(np.mean([answer - wrong for answer, wrong in logits]), abs=1e-5)
    assert code == 0 and len(found["table"]) == 6 and kept_files(run, ("patching",), "patching")
    for row in found["table"]:
        assert row["metric"] == pytest.approx(found["corrupted"] + row["effect"], abs=1e-5)
    code, out, _ = ask(capsys, run, "patching", file, "--to", "1.2", "--inputs", "k")
    assert code == 0 and "2 pairs of prompts" in out
    effects = pd.read_parquet(run.run.heads / "patching-5.parquet")["effect"].tolist()
    assert any(effects[:3]) and not any(effects[3:])  # nothing of layer 1 comes before a key of layer 1


@pytest.mark.slow
def test_similarity_has_a_row_a_head_and_its_figure(capsys, run: LoadedRun):
    code, out, _ = ask(capsys, run, "similarity", "--json")
    found = json.loads(out)
    assert code == 0 and [(row["layer"], row["head"]) for row in found["heads"]] == [*np.ndindex(2, 3)]
    assert len(found["pairs"]) == 15
    assert kept_files(run, ("similarity", "similar_pairs"), "similarity")
    assert "Similar heads" in ask(capsys, run, "similarity")[1]


@pytest.mark.slow
def test_the_other_projection_gives_the_same_numbers_and_leaves_the_run_alone(run: LoadedRun):
    other = run.converted("per_head")
    before = {path: path.stat().st_mtime_ns for path in run.run.path.rglob("*")}
    kept = explained.circuits(other), explained.attribution(other, TEXT), explained.similarity(other)
    assert {path: path.stat().st_mtime_ns for path in run.run.path.rglob("*")} == before
    np.testing.assert_array_equal(explained.circuits(run).copying["copying"], kept[0].copying["copying"])
    contributions = explained.attribution(run, TEXT).contributions["contribution"]
    np.testing.assert_allclose(contributions, kept[1].contributions["contribution"], atol=1e-5)
    np.testing.assert_allclose(explained.similarity(run).pairs["js"], kept[2].pairs["js"], atol=1e-4)


@pytest.mark.slow
def test_a_bfloat16_run_is_taken_apart_in_float32(run: LoadedRun):
    compute = dataclasses.replace(run.experiment.compute, dtype="bfloat16", backend="cudnn")  # which has no float32
    wide = Run(run.run.path, dataclasses.replace(run.experiment, compute=compute))
    found = explained.attribution(LoadedRun(wide, run.params, run.step, saved=False), TEXT)
    expected = explained.attribution(run, TEXT)
    np.testing.assert_allclose(found.contributions["contribution"], expected.contributions["contribution"], atol=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("why", TEXT, "--head", "1.3"), "why: head = 3: must be from 0 to 2"),
        (("why", TEXT, "--head", "1.1", "--key", 99), f"why: key = 99: must be from 0 to {len(TEXT)}"),
        (("attribution", TEXT, "--position", 14), "position = 14: must be from 0 to 13"),
        (("patching", "(a", "(ab", "x", "y"), 'prompts "(a" and "(ab": must have as many tokens, not 3 and 4'),
        (("patching", "(a", "(b", "xy", "z"), 'token "xy": must be one token'),
        (("patching", "(a", "(b"), "patching: expected CLEAN CORRUPTED ANSWER WRONG, or one file of them, not 2"),
        (("patching", "no.tsv"), "no.tsv: is no file; patching takes CLEAN"),
        (("patching", "(a", "(b", "x", "y", "--by", "position", "--to", "1.1"), "--by position: paths (--to) are by"),
        (("attribution", TEXT, "--token", "ab"), 'token "ab": must be one token of this run\'s tokenizer, and it is 2'),
    ],
)
def test_what_is_not_there_is_refused_in_one_sentence(capsys, run: LoadedRun, words, message: str):
    code, out, err = ask(capsys, run, *words)
    assert (code, out) == (2, "") and err.startswith(f"error: {message}")
