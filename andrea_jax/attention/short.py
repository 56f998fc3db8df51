"""Causal attention over short sequences, the pattern kept for the backward pass: what `chunked` does up to one chunk.

Queries are cut into up to four parts, and each is multiplied only with the keys up to its last. With S = scale · q kᵀ,
m a row's maximum, E = exp(S − m) and l = Σ E:

    z = E v / l      lse = m + log l      entropy = log l − Σ E log E / l
    dS = scale · E ∘ ((dz / l) vᵀ − (Σ dz ∘ z − dlse) / l − dentropy (log E − log l + entropy) / l)
    dv = Eᵀ (dz / l)      dq = dS k      dk = dSᵀ q

E is the one array of batch · n_head · query · key numbers that is kept (five eighths of them with four parts), and
neither scores, exponentials nor a division of it are computed again. On a CPU forward and backward take 0.65 to 0.85 of
the time of `chunked`'s own pass at 64 to 256 positions (docs/log.md). Row numbers, scores and sums are float32.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from andrea_jax.attention.keeping import kept

MOST_PARTS = 4
ROWS = 48  # queries that are worth a part
_HIDDEN = -1e38  # finite: no row is without a visible key, and exp(_HIDDEN − m) is 0


def attention(q: Array, k: Array, v: Array, scale: float, entropy: bool) -> tuple[Array, Array, Array | None]:
    """(z, lse, entropy or None) of q, k and v of one length that begin at position 0; shapes as in
    `andrea_jax.attention.attention`."""
    return _attention(scale, entropy, q, k, v)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(scale: float, entropy: bool, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array | None]:
    return _forward(scale, entropy, q, k, v)[0]


def _forward(scale: float, entropy: bool, q: Array, k: Array, v: Array):
    n_kv_head = k.shape[2]
    q, k, v = _by_head(q, n_kv_head), _by_head(k, n_kv_head)[:, :, 0], _by_head(v, n_kv_head)[:, :, 0]
    zs, rows, powers = [], [], []
    for first, end in _parts(q.shape[3]):
        scores = _dot("bkgqd,bksd->bkgqs", q[:, :, :, first:end], k[:, :, :end]) * scale
        sees = jnp.arange(end)[None] <= jnp.arange(first, end)[:, None]
        scores = jnp.where(sees[None, None, None], scores, _HIDDEN)
        # as they are: else whether somebody reads m, for lse, changes how XLA on a CPU computes e, in its last bits
        scores, m = jax.lax.optimization_barrier((scores, scores.max(axis=-1, keepdims=True)))
        e = jnp.exp(scores - m)
        l = e.sum(axis=-1, keepdims=True)  # noqa: E741
        zs.append(_dot("bkgqs,bksd->bkgqd", e.astype(v.dtype), v[:, :, :end]) / l)
        log_l = jnp.log(l)
        mean = (e * _log(e)).sum(axis=-1, keepdims=True) / l if entropy else l
        rows.append((m + log_l, log_l - mean, l))
        powers.append(e.astype(v.dtype))
    z = _by_position(jnp.concatenate(zs, axis=3)).astype(q.dtype)
    lse, h, l = (jnp.concatenate(parts, axis=3) for parts in zip(*rows, strict=True))  # noqa: E741
    lse, h = (x.reshape(x.shape[0], -1, x.shape[3]) for x in (lse, h))
    z, lse, h, l = kept((z, lse, h if entropy else None, l))  # noqa: E741
    return (z, lse, h), (q, k, v, z, powers, l, h)


def _backward(scale: float, entropy: bool, saved, cotangents):
    q, k, v, z, powers, l, h = saved  # noqa: E741
    dz, z = (_by_head(x, k.shape[1]).astype(jnp.float32) for x in (cotangents[0], z))
    dz_l = (dz / l).astype(v.dtype)
    delta_l = (jnp.sum(dz * z, axis=-1, keepdims=True) - cotangents[1].reshape(l.shape)) / l
    dh_l = cotangents[2].reshape(l.shape) / l if entropy else l
    if entropy:
        delta_l += dh_l * (h.reshape(l.shape) - jnp.log(l))
    dqs, dk, dv = [], jnp.float32(0), jnp.float32(0)
    for (first, end), e in zip(_parts(q.shape[3]), powers, strict=True):
        q_i, dz_i, delta_i, dh_i = (x[:, :, :, first:end] for x in (q, dz_l, delta_l, dh_l))
        ds = _dot("bkgqd,bksd->bkgqs", dz_i, v[:, :, :end]) - delta_i
        power = e.astype(jnp.float32)
        ds -= dh_i * _log(power) if entropy else 0.0
        ds = (power * ds * scale).astype(q.dtype)
        dqs.append(_dot("bkgqs,bksd->bkgqd", ds, k[:, :, :end]))
        # dkᵀ and dvᵀ, because for dk and dv XLA on a CPU first copies ds and e to their transposes
        later = ((0, 0), (0, 0), (0, 0), (0, q.shape[3] - end))
        dk += jnp.pad(_dot("bkgqd,bkgqs->bkds", q_i, ds), later)
        dv += jnp.pad(_dot("bkgqd,bkgqs->bkds", dz_i, e), later)
    dq = _by_position(jnp.concatenate(dqs, axis=3))
    return dq.astype(q.dtype), *(x.transpose(0, 3, 1, 2).astype(q.dtype) for x in (dk, dv))


_attention.defvjp(_forward, _backward)


def _log(e: Array) -> Array:
    """log e, and of 0 a number that 0 times gives 0."""
    return jnp.log(jnp.maximum(e, jnp.finfo(jnp.float32).tiny))


def _parts(length: int) -> list[tuple[int, int]]:
    """(first, end) of each part of the queries."""
    rows = -(-length // min(MOST_PARTS, -(-length // ROWS)))
    return [(first, min(first + rows, length)) for first in range(0, length, rows)]


def _by_head(x: Array, n_kv_head: int) -> Array:
    """[batch, length, n_head, width] to [batch, n_kv_head, group, length, width]; keys' and values' group is 1."""
    batch, length, n_head, width = x.shape
    return x.reshape(batch, length, n_kv_head, n_head // n_kv_head, width).transpose(0, 2, 3, 1, 4)


def _by_position(x: Array) -> Array:
    """The inverse of `_by_head`."""
    batch, n_kv_head, group, length, width = x.shape
    return x.transpose(0, 3, 1, 2, 4).reshape(batch, length, n_kv_head * group, width)


def _dot(spec: str, x: Array, y: Array) -> Array:
    # highest: as in `chunked`, or a GPU would multiply float32 as TF32
    exact = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    return jnp.einsum(spec, x, y, preferred_element_type=jnp.float32, precision=exact)
