"""Attention by chunks of queries and keys: the online softmax in plain JAX, O(T) memory, on any device.

Forward, for one chunk of queries over the visible chunks of keys, with S = scale · q kᵀ and m a row's running maximum
(Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"; Dao et al. 2022, FlashAttention, algorithm 1):

    l = Σ exp(S − m)    w = Σ exp(S − m) (S − m)    a = Σ exp(S − m) v
    z = a / l           lse = m + log l             entropy = log l − w / l

Backward, from q, k, v, z, lse and entropy alone; the pattern P is computed again, chunk by chunk:

    P  = exp(S − lse)    dv = Pᵀ dz    dP = dz vᵀ    delta = Σ dz ∘ z
    dS = P ∘ (dP − delta + dlse − dentropy · (S − lse + entropy))    dq = scale · dS k    dk = scale · dSᵀ q

Chunks are added up in a fixed order, so repeated runs are bitwise equal. Scores, exponentials and sums are float32;
the pattern is rounded to v's dtype before a matmul, as fused kernels do. `jax.grad` works through all three outputs;
forward mode and second derivatives do not (backend "reference" has them).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from andrea_jax.attention import short
from andrea_jax.attention.backends import Backend
from andrea_jax.attention.keeping import kept

# The longest chunk of queries or keys; up to here a call is one straight-line pass without a loop.
CHUNK = 256

# Finite stand-ins for −inf: no difference of two of them is nan, and exp(_HIDDEN − m) is exactly 0 for every running
# maximum m, also for that of a row that has seen no key yet, _FLOOR.
_HIDDEN = -1e38
_FLOOR = -1e30


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool,
    scale: float,
    q_offset: int | Array,
    kv_length: Array | None,
    entropy: bool,
) -> tuple[Array, Array, Array | None]:
    """(z, lse, entropy or None); arguments and shapes as in `andrea_jax.attention.attention`."""
    from_zero = isinstance(q_offset, int) and q_offset == 0 and q.shape[1] == k.shape[1] <= CHUNK
    if causal and from_zero and kv_length is None:
        return short.attention(q, k, v, scale, entropy)
    return _attention(_Static(causal, scale, entropy, CHUNK), q, k, v, jnp.asarray(q_offset, jnp.int32), kv_length)


class _Static(NamedTuple):
    causal: bool
    scale: float
    entropy: bool
    chunk: int


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(static: _Static, q, k, v, q_offset, kv_length):
    return _forward(static, q, k, v, q_offset, kv_length)[0]


def _forward(static: _Static, q, k, v, q_offset, kv_length):
    grid = _Grid.of(static, q, k, q_offset, kv_length)
    keys, values = grid.split_keys(k), grid.split_keys(v)

    def one_query_chunk(carry, chunk):
        i, q_i = chunk

        def add_keys(j, sums: _Sums) -> _Sums:
            scores = grid.hide(_dot("bkgqd,bksd->bkgqs", q_i, _at(keys, j)) * static.scale, i, j)
            return sums.add(scores, _at(values, j))

        sums = grid.for_visible_keys(i, add_keys, _Sums.none(q_i, v.shape[-1], static.entropy))
        return carry, sums.results()

    _, (z, lse, entropy) = grid.for_queries(one_query_chunk, (), grid.split_queries(q))
    z = grid.join_queries(z).astype(q.dtype)
    lse, entropy = (None if x is None else jnp.swapaxes(grid.join_queries(x)[..., 0], 1, 2) for x in (lse, entropy))
    z, lse, entropy = kept((z, lse, entropy))
    return (z, lse, entropy), (q, k, v, q_offset, kv_length, z, lse, entropy)


def _backward(static: _Static, saved, cotangents):
    q, k, v, q_offset, kv_length, z, lse, entropy = saved
    grid = _Grid.of(static, q, k, q_offset, kv_length)
    keys, values = grid.split_keys(k), grid.split_keys(v)
    rows = _rows_of_the_backward(z, lse, entropy, *cotangents)
    queries = grid.split_queries(q), grid.split_queries(cotangents[0]), jax.tree.map(grid.split_queries, rows)

    def one_query_chunk(dk_dv, chunk):
        i, (q_i, dz_i, rows_i) = chunk

        def add_keys(j, sums):
            dq_i, dk, dv = sums
            k_j, v_j = _at(keys, j), _at(values, j)
            log_p = _dot("bkgqd,bksd->bkgqs", q_i, k_j) * static.scale - rows_i.lse
            p = grid.hide(jnp.exp(log_p), i, j, hidden=0.0)
            ds = _dot("bkgqd,bksd->bkgqs", dz_i, v_j) - rows_i.delta
            if rows_i.dentropy is not None:
                ds -= rows_i.dentropy * log_p
            ds = (p * ds * static.scale).astype(q.dtype)
            dq_i += _dot("bkgqs,bksd->bkgqd", ds, k_j)
            # dkᵀ and dvᵀ, because for dk and dv XLA on a CPU first copies ds and p to their transposes
            dk = _add_at(dk, j, _dot("bkgqd,bkgqs->bkds", q_i, ds))
            dv = _add_at(dv, j, _dot("bkgqd,bkgqs->bkds", dz_i, p.astype(v.dtype)))
            return dq_i, dk, dv

        dq_i, *dk_dv = grid.for_visible_keys(i, add_keys, (_zeros(q_i), *dk_dv))
        return tuple(dk_dv), dq_i

    (dk, dv), dq = grid.for_queries(one_query_chunk, (_zeros(keys.mT), _zeros(values.mT)), queries)
    dq, dk, dv = grid.join_queries(dq), grid.join_keys(dk.mT), grid.join_keys(dv.mT)
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None, None


_attention.defvjp(_forward, _backward)


class _Rows(NamedTuple):
    """What the backward needs of a query's row, float32 [batch, query, n_head, 1]."""

    lse: Array  # 0 in place of −inf
    delta: Array  # everything subtracted from dP that does not depend on the key
    dentropy: Array | None


def _rows_of_the_backward(z, lse, entropy, dz, dlse, dentropy) -> _Rows:
    delta = jnp.sum(dz.astype(jnp.float32) * z.astype(jnp.float32), axis=-1, keepdims=True) - _column(dlse)
    lse = _column(jnp.where(jnp.isneginf(lse), 0.0, lse))
    if dentropy is None:
        return _Rows(lse, delta, None)
    return _Rows(lse, delta + _column(dentropy * entropy), _column(dentropy))


def _column(x: Array) -> Array:
    """[batch, n_head, query] to [batch, query, n_head, 1]."""
    return jnp.swapaxes(x, 1, 2)[..., None]


class _Sums(NamedTuple):
    """The running sums of a chunk of queries, float32 [batch, n_kv_head, group, query, 1 or head_dim]."""

    m: Array
    l: Array  # noqa: E741
    w: Array | None  # only where the entropy is wanted
    a: Array

    @staticmethod
    def none(q_i: Array, head_dim: int, entropy: bool) -> "_Sums":
        row = _zeros(q_i[..., :1])
        return _Sums(row + _FLOOR, row, row if entropy else None, jnp.broadcast_to(row, (*row.shape[:-1], head_dim)))

    def add(self, scores: Array, v_j: Array) -> "_Sums":
        m = jnp.maximum(self.m, scores.max(axis=-1, keepdims=True))
        above, step = scores - m, self.m - m
        e, shrink = jnp.exp(above), jnp.exp(step)
        w = None
        if self.w is not None:
            w = shrink * (self.w + step * self.l) + jnp.sum(e * above, axis=-1, keepdims=True)
        a = shrink * self.a + _dot("bkgqs,bksd->bkgqd", e.astype(v_j.dtype), v_j)
        return _Sums(m, shrink * self.l + e.sum(axis=-1, keepdims=True), w, a)

    def results(self) -> tuple[Array, Array, Array | None]:
        """(z, lse, entropy); a row that has seen no key: 0, −inf, 0."""
        empty = self.l == 0
        l = jnp.where(empty, 1.0, self.l)  # noqa: E741
        entropy = None if self.w is None else jnp.log(l) - self.w / l
        return self.a / l, jnp.where(empty, -jnp.inf, self.m + jnp.log(l)), entropy


@dataclass(frozen=True)
class _Grid:
    """How queries and keys are cut into chunks, and which chunks see which."""

    n_query: int
    n_key: int
    n_kv_head: int
    causal: bool
    query_chunks: tuple[int, int]  # how many, how long
    key_chunks: tuple[int, int]
    q_offset: Array
    kv_length: Array | None

    @staticmethod
    def of(static: _Static, q: Array, k: Array, q_offset: Array, kv_length: Array | None) -> "_Grid":
        n_query, n_key = q.shape[1], k.shape[1]
        query_chunks, key_chunks = _chunks(n_query, static.chunk), _chunks(n_key, static.chunk)
        return _Grid(n_query, n_key, k.shape[2], static.causal, query_chunks, key_chunks, q_offset, kv_length)

    def split_queries(self, x: Array) -> Array:
        """[batch, query, n_head, width] to [chunk, batch, n_kv_head, group, query, width]."""
        n, length = self.query_chunks
        batch, _, n_head, width = x.shape
        x = jnp.pad(x, ((0, 0), (0, n * length - self.n_query), (0, 0), (0, 0)))
        x = x.reshape(batch, n, length, self.n_kv_head, n_head // self.n_kv_head, width)
        return x.transpose(1, 0, 3, 4, 2, 5)

    def join_queries(self, x: Array) -> Array:
        """The inverse of `split_queries`."""
        n, batch, n_kv_head, group, length, width = x.shape
        x = x.transpose(1, 0, 4, 2, 3, 5).reshape(batch, n * length, n_kv_head * group, width)
        return x[:, : self.n_query]

    def split_keys(self, x: Array) -> Array:
        """[batch, key, n_kv_head, width] to [chunk, batch, n_kv_head, key, width]."""
        n, length = self.key_chunks
        x = jnp.pad(x, ((0, 0), (0, n * length - self.n_key), (0, 0), (0, 0)))
        return x.reshape(x.shape[0], n, length, self.n_kv_head, x.shape[-1]).transpose(1, 0, 3, 2, 4)

    def join_keys(self, x: Array) -> Array:
        """The inverse of `split_keys`."""
        n, batch, n_kv_head, length, width = x.shape
        return x.transpose(1, 0, 3, 2, 4).reshape(batch, n * length, n_kv_head, width)[:, : self.n_key]

    def hide(self, x: Array, i, j, hidden: float = _HIDDEN) -> Array:
        """`x` [batch, n_kv_head, group, query, key] of query chunk i and key chunk j, with `hidden` where unseen."""
        position = self.q_offset + i * self.query_chunks[1] + jnp.arange(self.query_chunks[1], dtype=jnp.int32)
        n, length = self.key_chunks
        key = j * length + jnp.arange(length, dtype=jnp.int32)
        if self.causal:
            x = jnp.where((key[None, :] <= position[:, None])[None, None, None], x, hidden)
        if self.kv_length is not None:
            x = jnp.where((key[None, :] < self.kv_length[:, None])[:, None, None, None], x, hidden)
        if n * length != self.n_key:
            x = jnp.where((key < self.n_key)[None, None, None, None], x, hidden)
        return x

    def for_queries(self, body: Callable, carry, chunks):
        """`lax.scan` of `body(carry, (i, chunk i))` over the query chunks; straight-line where there is one."""
        if self.query_chunks[0] == 1:
            carry, out = body(carry, (0, jax.tree.map(lambda x: x[0], chunks)))
            return carry, jax.tree.map(lambda x: x[None], out)
        return lax.scan(body, carry, (jnp.arange(self.query_chunks[0], dtype=jnp.int32), chunks))

    def for_visible_keys(self, i, body: Callable, sums):
        """`body(j, sums)` for the key chunks up to the last that any query of chunk i sees."""
        n, length = self.key_chunks
        if n == 1:
            return body(0, sums)
        end = jnp.int32(self.n_key) if self.kv_length is None else jnp.max(self.kv_length)
        if self.causal:
            end = jnp.minimum(end, self.q_offset + (i + 1) * self.query_chunks[1])
        return lax.fori_loop(0, jnp.clip(-(-end // length), 0, n), body, sums)


def _chunks(length: int, longest: int) -> tuple[int, int]:
    """(how many, how long): the fewest, and then the shortest, chunks that cover `length`."""
    n = -(-length // longest)
    return n, -(-length // n)


def _dot(spec: str, x: Array, y: Array) -> Array:
    # highest: a GPU would multiply float32 as TF32, and lse would not fit the scores that probes compute again
    exact = lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    return jnp.einsum(spec, x, y, preferred_element_type=jnp.float32, precision=exact)


def _zeros(x: Array) -> Array:
    return jnp.zeros_like(x, jnp.float32)


def _at(chunks: Array, j) -> Array:
    return lax.dynamic_index_in_dim(chunks, j, axis=0, keepdims=False)


def _add_at(chunks: Array, j, x: Array) -> Array:
    return lax.dynamic_update_index_in_dim(chunks, _at(chunks, j) + x, j, axis=0)


BACKEND = Backend("chunked", attention, why_not=lambda call: None)
