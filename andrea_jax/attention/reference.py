"""Attention with the whole pattern in memory: the oracle that the other backends are measured against.

    S = scale · q kᵀ      P = softmax(S over the visible keys)      z = P v
    lse = log Σ exp(S)    entropy = −Σ P log P = −Σ P (S − lse)

Everything is float32 at full matmul precision, gradients are JAX's own, memory is O(T²).
"""

import jax
import jax.numpy as jnp
from jax.lax import Precision

from andrea_jax.attention.backends import Backend


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool,
    scale: float,
    q_offset: int | jax.Array,
    kv_length: jax.Array | None,
    entropy: bool,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """(z, lse, entropy or None); arguments and shapes as in `andrea_jax.attention.attention`."""
    dtype = q.dtype
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, group, axis=2) for x in (k, v))

    visible = _visible(q.shape[1], k.shape[1], causal, q_offset, kv_length)  # [batch or 1, 1, query, key]
    sees_something = visible.any(axis=-1, keepdims=True)
    scores = scale * jnp.einsum("bqhd,bkhd->bhqk", q, k, precision=Precision.HIGHEST)
    # A row that sees nothing would have gradients of nan. Give it scores of 0 before, and zeros after, the softmax.
    scores = jnp.where(sees_something, jnp.where(visible, scores, -jnp.inf), 0.0)
    pattern = jnp.where(visible, jax.nn.softmax(scores, axis=-1), 0.0)
    lse = jax.nn.logsumexp(scores, axis=-1, keepdims=True)

    z = jnp.einsum("bhqk,bkhd->bqhd", pattern, v, precision=Precision.HIGHEST).astype(dtype)
    row_entropy = None
    if entropy:
        row_entropy = -jnp.sum(pattern * jnp.where(visible, scores - lse, 0.0), axis=-1)
    return z, jnp.where(sees_something, lse, -jnp.inf)[..., 0], row_entropy


def _visible(
    n_query: int, n_key: int, causal: bool, q_offset: int | jax.Array, kv_length: jax.Array | None
) -> jax.Array:
    """True where a query may see a key, [batch or 1, 1, query, key]."""
    position = q_offset + jnp.arange(n_query, dtype=jnp.int32)
    key = jnp.arange(n_key, dtype=jnp.int32)
    visible = jnp.ones((1, 1, n_query, n_key), bool)
    if causal:
        visible &= (key[None, :] <= position[:, None])[None, None]
    if kv_length is not None:
        visible &= (key[None, :] < kv_length[:, None])[:, None, None]
    return visible


BACKEND = Backend("reference", attention, why_not=lambda call: None)
