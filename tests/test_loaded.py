"""A trained run, opened for looking at."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from andrea_jax import loaded as opened
from andrea_jax import model, runs
from andrea_jax.errors import UserError
from andrea_jax.heads import Profile
from andrea_jax.loaded import load_run

SCORED = Profile(*[pd.DataFrame({"probe": ["entropy"], "score": [0.25], "n": [6 * 31]})] * 5)  # as many as the run asks


@pytest.fixture(scope="module")
def loaded(tiny_run):
    return load_run(tiny_run)


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
    assert load_run(tiny_run, "best").step == min(losses, key=losses.__getitem__)


def test_tokens_begin_with_bos_and_bytes_follow_it(loaded):
    assert loaded.tokens("ab").tolist() == [[0, 98, 99]]
    assert loaded.tokens("é").tolist() == [[0, 0xC3 + 1, 0xA9 + 1]]


def test_a_text_that_fills_every_position_fits_and_one_token_more_does_not(loaded):
    assert loaded.tokens("x" * 36).shape == (1, 37)
    with pytest.raises(UserError, match=r"text: 38 tokens with BOS, and .* = 37 positions"):
        loaded.tokens("x" * 37)


def test_token_ids_in_place_of_a_text_are_refused(loaded):
    with pytest.raises(UserError, match=r"text: must be a str, not \[0, 98\]; for token ids there are run.model"):
        loaded.trace([0, 98])


def test_a_traced_pattern_is_causal_and_its_rows_sum_to_one(loaded):
    pattern = loaded.trace("def f(x):").pattern(layer=1, head=2)
    assert pattern.shape == (10, 10)
    np.testing.assert_allclose(pattern.sum(axis=1), 1, rtol=1e-5)
    assert not np.triu(pattern, 1).any()


def test_a_profile_is_computed_once_and_then_read_from_the_run(copy):
    run = load_run(copy)
    told = []
    first = run.profile(lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] > 0
    marked = Profile(first.table, first.best.assign(score=0.125), first.periods, first.offsets, first.brackets)
    marked.save(run.run.heads, 5)
    told.clear()
    assert set(run.profile(lambda *at: told.append(at)).best["score"]) == {0.125}
    assert not told


def test_another_backend_replaces_the_runs_own(tiny_run):
    assert load_run(tiny_run).experiment.compute.backend == "reference"
    assert load_run(tiny_run, backend="chunked").experiment.compute.backend == "chunked"
    with pytest.raises(UserError, match=r'backend = "chunkd": must be one of .* \(did you mean "chunked"\?\)'):
        load_run(tiny_run, backend="chunkd")


def test_a_run_on_other_data_is_refused_where_its_data_are_needed_and_only_there(copy):
    runs.Run.open(copy).record(data_hash="0000")
    run = load_run(copy)
    assert run.tokens("x").shape == (1, 2)
    with pytest.raises(UserError, match="was trained on data with hash 0000, and here"):
        _ = run.dataset


def test_a_run_without_a_checkpoint_or_a_tokenizer_says_which(copy):
    run = load_run(copy)
    (copy / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json: no such file"):
        _ = run.tokenizer
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(UserError, match="has no checkpoint yet"):
        load_run(copy)


def test_a_run_introduces_itself(loaded):
    loss = loaded.run.metrics()[-1]["eval_loss"]
    for words in (f"LoadedRun {loaded.run.name}, step 5 of 5", "2 layers × 3 heads", f"held-out {loss:.3f}"):
        assert words in repr(loaded)


def test_a_run_at_an_earlier_step_shows_what_was_measured_up_to_it(copy):
    run = load_run(copy)
    losses = {line["step"]: line["eval_loss"] for line in run.run.metrics() if "eval_loss" in line}
    there = dataclasses.replace(run, step=3)
    assert f"held-out {losses[3]:.3f}" in repr(there)
    assert f"held-out {losses[5]:.3f}" not in repr(there)
    assert "last metrics none yet" in repr(dataclasses.replace(run, step=0))


def test_a_converted_run_scores_its_own_heads_and_leaves_those_of_the_run_alone(copy, monkeypatch):
    run = load_run(copy)
    scored = []
    monkeypatch.setattr(opened.heads, "profile", lambda model, *_, **__: scored.append(model.projection) or SCORED)
    converted = run.converted("per_head")
    assert converted.profile() is SCORED
    assert not list(run.run.heads.iterdir())
    SCORED.save(run.run.heads, 5)
    assert converted.profile() is SCORED
    assert scored == ["per_head", "per_head"]
    assert run.profile() is not SCORED


def test_a_converted_run_has_no_other_checkpoints(loaded):
    converted = loaded.converted("per_head")
    for ask in (lambda: converted.at("last"), converted.profiles):
        with pytest.raises(UserError, match=r"a converted run has no other checkpoints; convert run.at\(step\)"):
            ask()
