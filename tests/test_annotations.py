"""Annotated text and bracket ablation of a run, from the command line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from andrea_jax.data import Dataset, Documents
from andrea_jax.data.tokenizer import byte_tokenizer
from andrea_jax.loaded import LoadedRun

LINE = "f(a[b](c), {d: (e)})  # padded"  # fills a window of 31 tokens
ROWS = "1 Ann _ PROPN _ _ 2 nsubj _ _|2 met _ VERB _ _ 0 root _ _|3 Bob _ PROPN _ _ 2 obj _ _|"


@pytest.fixture(scope="module")
def run(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(tiny_run, tmp_path_factory.mktemp("annotations") / tiny_run.name)


def test_annotated_text_gives_a_table_a_figure_and_kept_files(andrea, run: Path, tmp_path: Path):
    path = tmp_path / "four.conllu"
    path.write_text(("# newdoc\n" + ROWS.replace(" ", "\t").replace("|", "\n") + "\n") * 4)
    code, out, _ = andrea("heads", run, "annotated", "--conllu", path, "--json")
    found = json.loads(out)
    assert code == 0 and found["named_by"] == "runs of PROPN" and Path(found["figure"]).is_file()
    best = {row["probe"]: row for row in found["best"]}
    assert best["to_head obj"]["offset_score"] == 1 and best["to_head obj"]["n"] == 2
    assert best["same_name"]["layer"] is None and best["same_name"]["undefined"]  # no name comes twice
    kept = pd.read_parquet(run / "heads/annotated-5.parquet")
    assert len(kept) == len(found["table"]) == 6 * len(best)
    code, out, _ = andrea("heads", run, "annotated", "--conllu", path)
    assert code == 0 and "its syntactic head (obj)" in out and "untyped" in out and "annotated.png" in out


def test_a_bad_file_is_one_sentence(andrea, run: Path, tmp_path: Path):
    path = tmp_path / "bad.conllu"
    path.write_text("not a word\n")
    code, _, err = andrea("heads", run, "annotated", "--conllu", path)
    assert code == 2 and err.strip().startswith("error: ") and "line 1" in err


def four_lines() -> Dataset:
    ids, tokenizer = [0, *byte_tokenizer().encode(LINE)], byte_tokenizer()
    names = tuple(f"{i}.py" for i in range(4))
    documents = Documents(np.array(ids * 4, np.uint16), np.arange(4) * len(ids), names, tokenizer)
    return Dataset(documents, documents, tokenizer, "by hand", {})


@pytest.mark.slow
def test_the_bracket_head_is_ablated_beside_its_layer_on_the_half_that_did_not_choose_it(
    andrea, run: Path, monkeypatch
):
    """Four windows of one text: five closers in each, of which two are hard and one is hardest."""
    monkeypatch.setattr(LoadedRun, "dataset", four_lines())
    code, out, _ = andrea("heads", run, "brackets", "--json")
    found = json.loads(out)
    damage = pd.DataFrame(found["damage"])
    assert code == 0 and set(damage["kind"]) == {"zero", "mean"} and Path(found["figure"]).is_file()
    (best,) = damage.loc[damage["is_best"], "heads"].unique()
    assert best == found["head"] and set(damage["layer"]) == {int(best[0])} and damage["heads"].nunique() == 3
    assert dict(zip(damage["measure"], damage["n"], strict=True)) == {
        "bracket": 10, "bracket_accuracy": 10, "bracket_hard": 4, "bracket_hard_accuracy": 4,
        "bracket_hardest": 2, "bracket_hardest_accuracy": 2,
    }  # fmt: skip
    nll = damage.loc[~damage["measure"].str.endswith("accuracy")]
    np.testing.assert_allclose(nll["ablated"] - nll["intact"], nll["damage"], atol=1e-4)
    assert len(pd.read_parquet(run / "heads/bracket_ablation-5.parquet")) == len(damage)
    code, out, _ = andrea("heads", run, "brackets")
    assert code == 0 and "Attention on the matching opener" in out and "hardest closers" in out


def test_without_brackets_the_reason_is_said(andrea, run: Path):
    code, _, err = andrea("heads", run, "brackets")
    assert code == 2 and "error: brackets: " in err
