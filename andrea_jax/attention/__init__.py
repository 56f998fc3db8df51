"""Attention: one function, several backends.

`attention` is the way in, and `attention_fused` where q, k and v lie side by side in one array. A backend is a file of
this folder with a `Backend` in it, listed in `BACKENDS`.
"""

from typing import Literal, overload

import jax
import jax.numpy as jnp

from andrea_jax.attention import chunked, cudnn, mosaic, reference, triton
from andrea_jax.attention.backends import Call, choose, split
from andrea_jax.errors import UserError

__all__ = ["AUTO", "BACKENDS", "attention", "attention_fused", "split"]

BACKENDS = (reference.BACKEND, chunked.BACKEND, cudnn.BACKEND, mosaic.BACKEND, triton.BACKEND)
# "auto" takes the first that can run, but for those that were measured to be slower (docs/log.md)
AUTO = ("mosaic", "cudnn", "triton", "chunked")


@overload
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    backend: str = "auto",
    causal: bool = True,
    scale: float | None = None,
    q_offset: int | jax.Array = 0,
    kv_length: jax.Array | None = None,
    entropy: Literal[False] = False,
) -> tuple[jax.Array, jax.Array]: ...


@overload
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    backend: str = "auto",
    causal: bool = True,
    scale: float | None = None,
    q_offset: int | jax.Array = 0,
    kv_length: jax.Array | None = None,
    entropy: Literal[True],
) -> tuple[jax.Array, jax.Array, jax.Array]: ...


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    backend: str = "auto",
    causal: bool = True,
    scale: float | None = None,
    q_offset: int | jax.Array = 0,
    kv_length: jax.Array | None = None,
    entropy: bool = False,
) -> tuple[jax.Array, ...]:
    """Softmax attention, z = softmax(scale · q kᵀ) v over the keys that a query sees.

    q is [batch, query, n_head, head_dim], k and v are [batch, key, n_kv_head, head_dim], all of one floating dtype.
    n_kv_head divides n_head; query head h reads key-value head h // (n_head // n_kv_head).

    Query i sits at position q_offset + i. It sees key j where j <= q_offset + i (if `causal`) and j < kv_length[batch]
    (if given). `scale` is 1/√head_dim where None. q_offset (an int32 scalar) and kv_length (int32 [batch]) may be
    traced, as in decoding with a cache. `backend` is a name of `BACKENDS`, or "auto".

    Returns (z, lse), or (z, lse, entropy) where `entropy` is asked for: z [batch, query, n_head, head_dim] in q's
    dtype; lse = log Σ exp(scores) and the entropy of each row of the pattern, float32 [batch, n_head, query], nats.
    A row that sees no key has z 0, lse −inf, entropy 0, and gradients 0. `jax.grad` works through all three.

    Raises UserError for shapes or dtypes that do not fit, an unknown backend, and one that cannot run here.
    """
    _check(q, k, v, q_offset, kv_length)
    attend = choose(backend, Call.of(q, causal, q_offset), BACKENDS, AUTO).attend
    used_scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    z, lse, row_entropy = attend(
        q, k, v, causal=causal, scale=used_scale, q_offset=q_offset, kv_length=kv_length, entropy=entropy
    )
    return (z, lse) if row_entropy is None else (z, lse, row_entropy)


def attention_fused(
    qkv: jax.Array,
    n_head: int,
    *,
    backend: str = "auto",
    causal: bool = True,
    scale: float | None = None,
    entropy: bool = False,
) -> tuple[jax.Array, ...]:
    """`attention` of q, k and v that are parts of one array, as a fused projection leaves them.

    qkv is [batch, seq, n_head + 2·n_kv_head, head_dim], the heads ordered q | k | v. Backends that can ("mosaic" where
    it need not pad, "triton") read it in place and write its gradient as one array. The others split it, which copies
    it, and join the gradients of the parts, which copies them. Query i sees the keys j <= i if `causal`, else all.

    Returns and raises what `attention` does.
    """
    _check_fused(qkv, n_head)
    chosen = choose(backend, Call.of(qkv, causal, 0), BACKENDS, AUTO)
    used_scale = qkv.shape[3] ** -0.5 if scale is None else float(scale)
    if chosen.attend_fused is not None:
        z, lse, row_entropy = chosen.attend_fused(qkv, n_head, causal=causal, scale=used_scale, entropy=entropy)
    else:
        z, lse, row_entropy = chosen.attend(
            *split(qkv, n_head), causal=causal, scale=used_scale, q_offset=0, kv_length=None, entropy=entropy
        )
    return (z, lse) if row_entropy is None else (z, lse, row_entropy)


def _check_fused(qkv: jax.Array, n_head: int) -> None:
    if qkv.ndim != 4 or 0 in qkv.shape or not jnp.issubdtype(qkv.dtype, jnp.floating):
        axes = "[batch, seq, n_head + 2·n_kv_head, head_dim]"
        raise UserError(f"qkv must be floating {axes} with every axis 1 or more, not {jax.typeof(qkv)}")
    n_kv_head, odd = divmod(qkv.shape[2] - n_head, 2)
    if odd or n_kv_head < 1 or n_head < 1 or n_head % n_kv_head:
        raise UserError(
            f"qkv must have n_head + 2·n_kv_head heads, where n_kv_head divides n_head = {n_head}, not {qkv.shape[2]}"
        )


def _check(q: jax.Array, k: jax.Array, v: jax.Array, q_offset: int | jax.Array, kv_length: jax.Array | None) -> None:
    for name, x, length in (("q", q, "query"), ("k", k, "key"), ("v", v, "key")):
        if x.ndim != 4 or 0 in x.shape:
            heads = "n_head" if name == "q" else "n_kv_head"
            axes = f"[batch, {length}, {heads}, head_dim]"
            raise UserError(f"{name} must be {axes} with every axis 1 or more, not of shape {list(x.shape)}")
        if x.dtype != q.dtype or not jnp.issubdtype(x.dtype, jnp.floating):
            expected = "a floating dtype" if name == "q" else f"q's dtype {q.dtype.name}"
            raise UserError(f"{name} must have {expected}, not {x.dtype.name}")
    for axis, name in ((0, "batch"), (3, "head_dim")):
        if q.shape[axis] != k.shape[axis]:
            raise UserError(f"q and k must have the same {name}, not {q.shape[axis]} and {k.shape[axis]}")
    for axis, name in enumerate(("batch", "key", "n_kv_head", "head_dim")):
        if k.shape[axis] != v.shape[axis]:
            raise UserError(f"k and v must have the same {name}, not {k.shape[axis]} and {v.shape[axis]}")
    if q.shape[2] % k.shape[2]:
        raise UserError(f"n_kv_head must divide n_head = {q.shape[2]}, and {k.shape[2]} does not")
    if jnp.ndim(q_offset) or not jnp.issubdtype(jnp.result_type(q_offset), jnp.integer):
        raise UserError(f"q_offset must be an integer scalar, not {jax.typeof(q_offset)}")
    if kv_length is not None and (kv_length.shape != q.shape[:1] or kv_length.dtype != jnp.int32):
        raise UserError(f"kv_length must be int32 [batch = {q.shape[0]}], not {jax.typeof(kv_length)}")
