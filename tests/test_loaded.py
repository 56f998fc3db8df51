"""A trained run, opened for looking at."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import andrea_jax
from andrea_jax import model, runs
from andrea_jax.errors import UserError
from andrea_jax.heads import Profile


@pytest.fixture(scope="module")
def loaded(tiny_run):
    return andrea_jax.load_run(tiny_run)


@pytest.fixture
def copy(tiny_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_run, tmp_path / tiny_run.name))


def test_a_loaded_run_holds_the_weights_of_its_last_checkpoint(loaded):
    assert loaded.step == 5
    fresh = model.initialise(loaded.experiment.model, loaded.experiment.train.seed)
    moved = np.abs(np.asarray(loaded.params["W_U"]) - np.asarray(fresh["W_U"])).max()
    assert 1e-3 < moved < 5 * 1e-2 * 1.5  # five AdamW steps at 0.01 or less, each weight about one rate a step


def test_the_best_checkpoint_is_the_one_with_the_lowest_held_out_loss(tiny_run):
    losses = {line["step"]: line["eval_loss"] for line in runs.Run.open(tiny_run).metrics() if "eval_loss" in line}
    assert andrea_jax.load_run(tiny_run, "best").step == min(losses, key=losses.__getitem__)


def test_tokens_begin_with_bos_and_bytes_follow_it(loaded):
    assert loaded.tokens("ab").tolist() == [[0, 98, 99]]
    assert loaded.tokens("é").tolist() == [[0, 0xC3 + 1, 0xA9 + 1]]


def test_a_text_that_fills_every_position_fits_and_one_token_more_does_not(loaded):
    assert loaded.tokens("x" * 36).shape == (1, 37)
    with pytest.raises(UserError, match=r"text: 38 tokens with BOS, and .* = 37 positions"):
        loaded.tokens("x" * 37)


def test_a_traced_pattern_is_causal_and_its_rows_sum_to_one(loaded):
    pattern = loaded.trace("def f(x):").pattern(layer=1, head=2)
    assert pattern.shape == (10, 10)
    np.testing.assert_allclose(pattern.sum(axis=1), 1, rtol=1e-5)
    assert not np.triu(pattern, 1).any()


def test_a_profile_is_computed_once_and_then_read_from_the_run(copy):
    run = andrea_jax.load_run(copy)
    told = []
    first = run.profile(lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] > 0
    marked = Profile(first.table, first.best.assign(score=0.125), first.periods, first.offsets, first.brackets)
    marked.save(run.run.heads, 5)
    told.clear()
    assert (run.profile(lambda *at: told.append(at)).best["score"] == 0.125).all()
    assert not told


def test_another_backend_replaces_the_runs_own(tiny_run):
    assert andrea_jax.load_run(tiny_run).experiment.compute.backend == "reference"
    assert andrea_jax.load_run(tiny_run, backend="chunked").experiment.compute.backend == "chunked"
    with pytest.raises(UserError, match=r'backend = "chunkd": must be one of .* \(did you mean "chunked"\?\)'):
        andrea_jax.load_run(tiny_run, backend="chunkd")


def test_a_run_on_other_data_is_refused_where_its_data_are_needed_and_only_there(copy):
    runs.Run.open(copy).record(data_hash="0000")
    run = andrea_jax.load_run(copy)
    assert run.tokens("x").shape == (1, 2)
    with pytest.raises(UserError, match="was trained on data with hash 0000, and here"):
        _ = run.dataset


def test_a_run_without_a_checkpoint_or_a_tokenizer_says_which(copy):
    run = andrea_jax.load_run(copy)
    (copy / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json: no such file"):
        _ = run.tokenizer
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(UserError, match="has no checkpoint yet"):
        andrea_jax.load_run(copy)


def test_a_run_introduces_itself(loaded):
    loss = loaded.run.metrics()[-1]["eval_loss"]
    for words in (f"LoadedRun {loaded.run.name}, step 5 of 5", "2 layers × 3 heads", f"held-out {loss:.3f}"):
        assert words in repr(loaded)
