"""What the kernels compute, in plain JAX: for devices and shapes that they do not take."""

import jax
import jax.numpy as jnp
from jax import Array

EPSILON = 1e-5  # in the root of a norm


def norm(x: Array) -> tuple[Array, Array]:
    """(x·r in x's dtype, r = 1 / rms(x) float32 [...]) over the last axis, in float32."""
    wide = x.astype(jnp.float32)
    r = jax.lax.rsqrt(jnp.square(wide).mean(axis=-1) + EPSILON)
    return (wide * r[..., None]).astype(x.dtype), r


def norm_derivative(y: Array, r: Array, g: Array, past: Array | None) -> Array:
    """past + r·(g − y·mean(y·g)) over the last axis, of (y, r) = norm(x), in float32 -> y's dtype. No past is 0."""
    y32, g32 = y.astype(jnp.float32), g.astype(jnp.float32)
    dx = r[..., None] * (g32 - y32 * (y32 * g32).mean(axis=-1, keepdims=True))
    return (dx if past is None else past.astype(jnp.float32) + dx).astype(y.dtype)


def cross_entropy(logits: Array, targets: Array, *, vocab: int, dtype: jnp.dtype) -> tuple[Array, Array]:
    """logits float32 [..., column], those from `vocab` on no words; targets int [...]
    -> logsumexp(logits) − logits[target], float32 [...], nats; softmax(logits) − onehot(target), [..., column]."""
    column = jnp.arange(logits.shape[-1]).reshape(*[1] * targets.ndim, -1)
    logits = jnp.where(column < vocab, logits, -jnp.inf) if vocab < logits.shape[-1] else logits
    top = logits.max(axis=-1, keepdims=True)
    powers = jnp.exp(logits - top)
    total = powers.sum(axis=-1, keepdims=True)
    is_target = column == targets[..., None]
    chosen = jnp.where(is_target, logits, 0.0).sum(axis=-1)  # by row: XLA makes it in the pass that makes `total`
    return (top + jnp.log(total))[..., 0] - chosen, (powers / total - is_target).astype(dtype)


def gated_product(g: Array, w: Array, gate: Array) -> Array:
    """(g · wᵀ) where gate ≠ 0, else 0: g [..., k], w [n, k], gate [..., n]. ("≠", for XLA turns "relu(x) > 0" back into
    x > 0, and x would have to be kept.)"""
    product = (g.reshape(-1, g.shape[-1]) @ w.T).reshape(gate.shape)
    return jnp.where(gate != 0, product, jnp.zeros_like(product))
