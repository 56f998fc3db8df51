"""Held-out loss against an independent sum, and the positions of the in-context score."""

import dataclasses

import jax
import numpy as np
import pytest

from andrea_jax import config, model
from andrea_jax.data import Dataset
from andrea_jax.data.tokenizer import Tokenizer
from andrea_jax.errors import UserError
from andrea_jax.training import evaluate, in_context_bands, window_losses
from andrea_jax.training.evaluation import EVAL_TOKENS, heldout_set

COMPUTE = config.Compute(backend="reference")


def test_the_bands_are_480_520_and_40_60_where_the_context_has_them():
    assert in_context_bands(1024) == ((480, 520), (40, 60))
    assert in_context_bands(520) == ((480, 520), (40, 60))


def test_shorter_contexts_compare_the_last_quarter_with_the_second_eighth():
    assert in_context_bands(64) == ((48, 64), (8, 16))
    assert in_context_bands(512) == ((384, 512), (64, 128))


@pytest.mark.parametrize("seq_len", range(1, 20))
def test_bands_of_tiny_contexts_hold_a_position_each(seq_len: int):
    for first, last in in_context_bands(seq_len):
        assert 0 <= first < last <= seq_len


def _losses_by_hand(m: config.Model, params: dict, windows: np.ndarray) -> np.ndarray:
    logits = np.asarray(model.bind(m, params, backend="reference")(windows[:, :-1]), np.float64)
    chosen = np.take_along_axis(logits, windows[:, 1:, None], axis=-1)[..., 0]
    return np.log(np.exp(logits).sum(-1)) - chosen


def _loud(m: config.Model) -> dict:
    return jax.tree.map(lambda x: x * 4, model.initialise(m, 0))


@pytest.mark.parametrize("batch_size", [3, 7, 11])
def test_losses_do_not_depend_on_how_windows_fall_into_batches(experiment: config.Experiment, batch_size: int):
    m, params = experiment.model, _loud(experiment.model)
    windows = np.random.default_rng(0).integers(0, 257, size=(7, 14)).astype(np.int32)
    found = window_losses(m, params, windows, compute=COMPUTE, batch_size=batch_size)
    np.testing.assert_allclose(found, _losses_by_hand(m, params, windows), rtol=1e-4)
    assert found.shape == (7, 13)


def test_loss_is_per_token_and_per_byte_and_by_position(experiment: config.Experiment):
    m, params = experiment.model, _loud(experiment.model)
    windows = np.random.default_rng(0).integers(1, 257, size=(7, 14)).astype(np.int32)
    tokenizer = Tokenizer("made", (b"", *(b"x" * (1 + i % 3) for i in range(256))))  # tokens of 1, 2 or 3 bytes
    found = evaluate(m, params, windows, tokenizer, compute=COMPUTE, batch_size=4)
    losses = _losses_by_hand(m, params, windows)
    n_bytes = sum(1 + (int(token) - 1) % 3 for token in windows[:, 1:].ravel())
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert found["loss_per_byte"] == pytest.approx(losses.sum() / n_bytes, rel=1e-5)
    assert found["n_tokens"] == 7 * 13
    assert found["in_context_late"] == [10, 13]
    assert found["in_context_early"] == [1, 3]
    assert found["in_context"] == pytest.approx(losses[:, 10:13].mean() - losses[:, 1:3].mean(), abs=1e-5)


def test_every_run_on_the_same_data_is_evaluated_on_the_same_windows(dataset: Dataset):
    first, again = heldout_set(dataset, 13), heldout_set(dataset, 13)
    np.testing.assert_array_equal(first, again)
    assert first.shape[1] == 14
    assert first.shape[0] <= EVAL_TOKENS // 13


def test_short_held_out_text_gives_fewer_windows_and_none_is_an_error(dataset: Dataset):
    longest = int(dataset.heldout.lengths().max())
    assert len(heldout_set(dataset, longest - 1)) >= 2
    with pytest.raises(UserError, match="held-out"):
        heldout_set(dataset, longest + 1)


def test_bfloat16_compute_keeps_float32_losses(experiment: config.Experiment):
    compute = dataclasses.replace(COMPUTE, dtype="bfloat16")
    windows = np.random.default_rng(0).integers(0, 257, size=(2, 14)).astype(np.int32)
    params = _loud(experiment.model)
    found = window_losses(experiment.model, params, windows, compute=compute, batch_size=2)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, _losses_by_hand(experiment.model, params, windows), rtol=0.05, atol=0.05)
