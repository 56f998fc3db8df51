"""The loss from the last residual is the loss from the logits, in value and in every derivative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from andrea_jax.training import cross_entropy
from andrea_jax.training.cross_entropy import mean_loss
from andrea_jax.training.step import loss

BATCH, SEQ, D, VOCAB = 3, 7, 5, 11


def drawn(dtype: str = "float32"):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((BATCH, SEQ, D)), rng.standard_normal((D, VOCAB))
    return jnp.asarray(x, dtype), jnp.asarray(w, "float32"), jnp.asarray(rng.integers(0, VOCAB, (BATCH, SEQ)))


def by_hand(x, w, targets):
    """Value and derivatives in float64."""
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    logits = x @ w
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    onehot = np.eye(VOCAB)[targets]
    d_logits = (p - onehot) / targets.size
    value = -np.log((p * onehot).sum(-1)).mean()
    return value, d_logits @ w.T, np.einsum("btd,btv->dv", x, d_logits)


def test_value_and_derivatives_are_those_of_the_formula():
    x, w, targets = drawn()
    value, gradients = jax.value_and_grad(mean_loss, argnums=(0, 1))(x, w, targets)
    for found, expected in zip((value, *gradients), by_hand(x, w, targets), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-7)


def test_without_derivatives_the_value_is_bit_for_bit_the_same():
    x, w, targets = drawn()
    assert mean_loss(x, w, targets) == jax.value_and_grad(mean_loss)(x, w, targets)[0]


def test_a_bfloat16_residual_gets_a_bfloat16_derivative_and_w_u_a_float32_one_without_the_padded_columns():
    x, w, targets = drawn("bfloat16")
    value, (dx, dw) = jax.value_and_grad(mean_loss, argnums=(0, 1))(x, w, targets)
    rounded = w.astype(jnp.bfloat16).astype(jnp.float32)
    expected_value, expected_dx, expected_dw = by_hand(x.astype(jnp.float32), rounded, targets)
    assert (dx.dtype, dw.dtype, dw.shape) == (jnp.bfloat16, jnp.float32, (D, VOCAB))
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)  # the logits are float32
    np.testing.assert_allclose(dx.astype(jnp.float32), expected_dx, rtol=0.02, atol=1e-3)
    np.testing.assert_allclose(dw, expected_dw, rtol=0.02, atol=1e-3)


def test_logits_too_large_for_once_are_made_a_part_of_the_sequence_at_a_time(monkeypatch: pytest.MonkeyPatch):
    x, w, targets = drawn()
    whole = jax.value_and_grad(mean_loss, argnums=(0, 1))(x, w, targets)
    monkeypatch.setattr(cross_entropy, "AT_ONCE", 4 * BATCH * VOCAB * 3)  # three positions
    pieces = jax.make_jaxpr(lambda x: cross_entropy._loss_and_gradients(x, w, targets))(x)
    assert str(pieces).count("exp ") == 3
    for found, expected in zip(
        jax.tree.leaves(jax.value_and_grad(mean_loss, argnums=(0, 1))(x, w, targets)),
        jax.tree.leaves(whole),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_a_scaled_loss_has_scaled_derivatives():
    x, w, targets = drawn()
    once, thrice = (jax.grad(lambda x, k=k: k * mean_loss(x, w, targets))(x) for k in (1.0, 3.0))
    np.testing.assert_allclose(thrice, 3 * once, rtol=1e-6)


def test_it_is_the_loss_that_evaluation_computes_from_logits():
    x, w, targets = drawn()
    np.testing.assert_allclose(mean_loss(x, w, targets), loss(x @ w, targets), rtol=1e-6)


def test_logits_of_a_hundred_thousand_neither_overflow_nor_lose_the_target():
    x, w, targets = drawn()
    value, dx = jax.value_and_grad(mean_loss)(1e5 * x, w, targets)
    np.testing.assert_allclose(value, by_hand_of_large(1e5 * x, w, targets), rtol=1e-5)
    assert np.isfinite(dx).all()


def by_hand_of_large(x, w, targets) -> float:
    logits = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    top = logits.max(-1, keepdims=True)
    lse = np.log(np.exp(logits - top).sum(-1)) + top[..., 0]
    return (lse - np.take_along_axis(logits, np.asarray(targets)[..., None], -1)[..., 0]).mean()
