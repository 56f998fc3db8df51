# type: ignore  # the language of Triton, not Python's
"""What the Triton kernels share: which tile a program owns, what its rows see, and how a tile is read and written."""

import triton
import triton.language as tl
from triton.language import constexpr


@triton.jit
def place(n_rows, N_HEAD: constexpr, ROWS: constexpr):
    """(first row, head, batch) of this program. The grid has one axis: the others end at 65,535."""
    n_tile, program = tl.cdiv(n_rows, ROWS), tl.program_id(0)
    return program % n_tile * ROWS, program // n_tile % N_HEAD, program // n_tile // N_HEAD


@triton.jit
def bounds(batch, n_key, q_offset, kv_length):
    """(position of query 0, number of keys that exist) of a sequence."""
    position = tl.load(q_offset + batch) if q_offset is not None else 0
    n_seen = tl.minimum(tl.load(kv_length + batch), n_key) if kv_length is not None else n_key
    return position, n_seen


@triton.jit
def keys_seen(
    batch, start, n_query, n_key, q_offset, kv_length, CAUSAL: constexpr, QUERIES: constexpr, KEYS: constexpr
):
    """(whole, stop, last) for a tile of queries: all see every key before `whole`, none sees one from `stop` on.

    `whole` is a multiple of KEYS. `last` [QUERIES] is the last key that each query sees.
    """
    position, n_seen = bounds(batch, n_key, q_offset, kv_length)
    whole, stop = n_seen, n_seen
    last = tl.zeros([QUERIES], tl.int32) + (n_seen - 1)
    if CAUSAL:
        whole = tl.minimum(n_seen, tl.maximum(position + start + 1, 0))
        stop = tl.minimum(n_seen, position + tl.minimum(start + QUERIES, n_query))
        last = tl.minimum(last, position + start + tl.arange(0, QUERIES))
    return whole // KEYS * KEYS, stop, last


@triton.jit
def queries_that_see(
    batch, start, n_query, n_key, q_offset, kv_length, CAUSAL: constexpr, QUERIES: constexpr, KEYS: constexpr
):
    """(first, whole, stop) for a tile of keys: no query before `first` sees any, all from `whole` on do. And `bounds`.

    The queries from `stop` on do not exist, or the keys do not.
    """
    position, n_seen = bounds(batch, n_key, q_offset, kv_length)
    first, whole = 0, 0
    if CAUSAL:
        first = tl.maximum(start - position, 0) // QUERIES * QUERIES
        whole = tl.cdiv(tl.maximum(start + KEYS - 1 - position, 0), QUERIES) * QUERIES
    stop = tl.where(start < n_seen, n_query, 0)
    return first, tl.minimum(whole, stop), stop, position, n_seen


@triton.jit
def at(x, batch, n_rows, head, start, N_HEAD: constexpr, HEAD_DIM: constexpr, ROWS: constexpr):
    """Where ROWS rows of a head of x [batch, n_rows, n_head, head_dim] lie, from row `start` on."""
    SPAN: constexpr = triton.next_power_of_2(HEAD_DIM)
    origin = (tl.cast(batch, tl.int64) * n_rows + start) * (N_HEAD * HEAD_DIM) + head * HEAD_DIM
    return x + origin + (tl.arange(0, ROWS)[:, None] * (N_HEAD * HEAD_DIM) + tl.arange(0, SPAN)[None, :])


@triton.jit
def load(at, start, n_rows, HEAD_DIM: constexpr, MASKED: constexpr):
    """The tile that lies at `at`; 0 beyond head_dim and, if MASKED, beyond n_rows."""
    inside = (tl.arange(0, at.shape[1]) < HEAD_DIM)[None, :]
    if MASKED:
        return tl.load(at, mask=inside & (start + tl.arange(0, at.shape[0]) < n_rows)[:, None], other=0.0)
    return tl.load(at, mask=inside, other=0.0) if at.shape[1] > HEAD_DIM else tl.load(at)


@triton.jit
def load_rows(at, n_left, QUERIES: constexpr, RAGGED: constexpr):
    """(t_sum, delta, slope) of a tile of queries; 0 where fewer than 4 · QUERIES numbers are left.

    One load of all three is copied by as few threads as can do it. Of one by itself Triton lets every thread copy what
    it needs: four times as many copies as q and dz take together, and 60 registers for their addresses.
    """
    rows = tl.load(at, mask=tl.arange(0, 4 * QUERIES) < n_left, other=0.0) if RAGGED else tl.load(at)
    even, odd = tl.split(tl.reshape(rows, [QUERIES, 2, 2]))
    t_sum, slope = tl.split(even)
    delta, _ = tl.split(odd)
    return t_sum, delta, slope


@triton.jit
def store(at, x, start, n_rows, HEAD_DIM: constexpr):
    """Writes the rows and columns of x that exist."""
    inside = (tl.arange(0, at.shape[1]) < HEAD_DIM)[None, :] & (start + tl.arange(0, at.shape[0]) < n_rows)[:, None]
    tl.store(at, x.to(at.dtype.element_ty), mask=inside)
