"""Sampling with a key–value cache."""

import functools

import jax
import numpy as np
import pytest

from andrea_jax import config, model
from andrea_jax.errors import UserError
from andrea_jax.generate import generate, read_prompt, read_token

VOCAB, SEQ_LEN = 29, 17


def tiny(**changes: object) -> config.Model:
    base = {"vocab_size": VOCAB, "seq_len": SEQ_LEN, "d_model": 32, "n_layer": 2, "n_head": 4}
    return config.Model(**(base | changes))  # pyright: ignore[reportArgumentType]


def parameters(m: config.Model) -> dict:
    """Initial numbers with a louder embedding, so that positions and layers matter to the logits."""
    params = model.initialise(m, 3)
    return params | {name: params[name] * 20 for name in ("W_E", "W_P", "W_U") if name in params}


@functools.partial(jax.jit, static_argnums=0)
def _forward(m: config.Model, params: dict, tokens: np.ndarray) -> jax.Array:
    return model.bind(m, params)(tokens)


def full_logits(m: config.Model, params: dict, tokens: np.ndarray) -> np.ndarray:
    """[batch, length, vocab], computed at the full length, so that one program serves all."""
    padded = np.zeros((len(tokens), SEQ_LEN), np.int32)
    padded[:, : tokens.shape[1]] = tokens
    return np.asarray(_forward(m, params, padded))[:, : tokens.shape[1]]


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "learned"},
        {"positions": "rotary", "projection": "per_head"},
        {"positions": "rotary", "n_kv_head": 2},
        {"positions": "learned", "projection": "per_head", "n_kv_head": 1},
        {"positions": "none"},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_logits_with_the_cache_equal_those_of_the_full_forward(changes: dict):
    m = tiny(**changes)
    params = parameters(m)
    tokens = np.random.default_rng(0).integers(0, VOCAB, size=(3, SEQ_LEN)).astype(np.int32)
    expected = full_logits(m, params, tokens)
    length = 5
    prompt = np.where(np.arange(SEQ_LEN) < length, tokens, 0)

    logits, cache = read_prompt(m, "float32", "reference", params, prompt, np.int32(length))
    np.testing.assert_allclose(logits, expected[:, length - 1], rtol=1e-5, atol=1e-5)
    for position in range(length, SEQ_LEN):
        logits, cache = read_token(m, "float32", "reference", params, cache, tokens[:, position], np.int32(position))
        np.testing.assert_allclose(logits, expected[:, position], rtol=1e-5, atol=1e-5)
    assert np.ptp(expected, axis=1).min() > 0.1  # the positions really differ


def test_a_model_trained_with_cudnn_decodes_though_cudnn_begins_at_position_0_only():
    m = tiny()
    params, tokens = parameters(m), np.array([[0, 5, 7]], np.int32)
    _, cache = read_prompt(m, "float32", "auto", params, np.pad(tokens, ((0, 0), (0, SEQ_LEN - 3))), np.int32(2))
    logits, _ = read_token(m, "float32", "cudnn", params, cache, tokens[:, 2], np.int32(2))
    np.testing.assert_allclose(logits, full_logits(m, params, tokens)[:, 2], atol=1e-5, rtol=1e-5)


def test_greedy_tokens_are_the_argmax_of_the_full_forward_at_every_step():
    m = tiny(positions="rotary")
    params = parameters(m)
    tokens = np.array([[0, 7, 11], [0, 3, 2]])
    found = generate(m, params, tokens, 9)
    for _ in range(9):
        tokens = np.concatenate([tokens, full_logits(m, params, tokens)[:, -1:].argmax(-1)], axis=1)
    np.testing.assert_array_equal(found, tokens[:, 3:])
    assert found.dtype == np.int32


def test_the_whole_length_of_the_positions_can_be_used():
    m = tiny()
    assert generate(m, parameters(m), [[0]], SEQ_LEN - 1).shape == (1, SEQ_LEN - 1)


def test_sampling_repeats_with_the_same_seed_and_differs_with_another():
    m = tiny()
    params = parameters(m)
    first, again, other = (generate(m, params, [[0, 5]], 12, temperature=1.5, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_top_1_is_greedy_whatever_the_temperature():
    m = tiny()
    params = parameters(m)
    np.testing.assert_array_equal(
        generate(m, params, [[0, 5]], 12, temperature=9.0, top_k=1), generate(m, params, [[0, 5]], 12)
    )


def test_samples_have_the_softmax_frequencies_of_the_top_k_tokens():
    m = tiny()
    params = parameters(m)
    n, temperature, top_k = 2000, 0.7, 3
    logits = full_logits(m, params, np.array([[0, 5]]))[0, -1].astype(np.float64)
    likeliest = np.argsort(-logits)[:top_k]
    expected = np.exp(logits[likeliest] / temperature)
    expected /= expected.sum()
    found = generate(m, params, np.tile([[0, 5]], (n, 1)), 1, temperature=temperature, top_k=top_k, seed=4)[:, 0]
    counts = np.array([(found == token).sum() for token in likeliest])
    assert counts.sum() == n
    np.testing.assert_allclose(counts / n, expected, atol=4 * np.sqrt(0.25 / n))


def test_one_prompt_length_compiles_for_all():
    m = tiny(vocab_size=31)
    params = parameters(m)
    generate(m, params, [[0, 5]], 3)
    compiled = read_prompt._cache_size(), read_token._cache_size()
    generate(m, params, [[0, 5, 6, 7]], 6)
    assert (read_prompt._cache_size(), read_token._cache_size()) == compiled


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_new": 15}, r"n_new = 15: must be at most 14, .* 3 tokens and model.seq_len = 17"),
        ({"n_new": 0}, "n_new = 0"),
        ({"prompt": [[0, VOCAB]]}, "ids from 0 to 28, not 0 to 29"),
        ({"prompt": [[]]}, r"\[batch, length\]"),
        ({"prompt": [0, 1]}, r"\[batch, length\]"),
        ({"temperature": -1.0}, "temperature = -1.0"),
        ({"top_k": 0}, "top_k = 0"),
    ],
)
def test_what_cannot_be_generated_is_said(arguments: dict, message: str):
    m = tiny()
    with pytest.raises(UserError, match=message):
        generate(m, {}, **({"prompt": [[0, 1, 2]], "n_new": 2} | arguments))


def test_generation_leaves_the_parameters_usable():
    m = tiny()
    params = parameters(m)
    before = jax.tree.map(np.array, params)
    generate(m, params, [[0]], 4)
    jax.tree.map(np.testing.assert_array_equal, params, before)
