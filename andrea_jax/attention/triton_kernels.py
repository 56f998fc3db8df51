# type: ignore  # the language of Triton, not Python's
"""The Triton kernels of `andrea_jax.attention.triton`. This file imports triton, and not JAX.

Equations and letters: `andrea_jax.attention.chunked`. Scores are kept in units of log 2, t = S / log 2, so that an
exponential is one exp2 with the scale folded in; t_sum is lse in those units. Arrays are read in place, contiguous: q
[batch, query, n_head, head_dim] and its like, k and v [batch, key, n_kv_head, head_dim] and theirs, rows float32
[batch, n_head, query]. A head is a stride. q, k and v may be one array of Q_HEADS = KV_HEADS heads, where k's begin
at K_FIRST and v's at V_FIRST; their gradients are one such array then. Tiles have powers of two for sizes, and zeros
where head_dim is none.

A program owns one tile of rows of one head: `forward` and `backward_queries` one of queries, which walks over the keys
that it sees; `backward_keys` one of keys, which walks over the queries that see it, of every head of the group. A walk
is a loop without a mask, over tiles that are visible as a whole, and one with. Every number is written once, by one
program, after sums in a fixed order: repeated runs are bitwise equal.

Every loop stands in an `if` that it runs at all. Triton waits for a tensor core's last product behind the loop; where a
path around the loop, with zeros for a result, joins in before that, ptxas gives up (C7515) and waits for each product.

q_offset and kv_length are int32 [batch], or None where it is 0 and where all keys exist. entropy and dentropy are None
where no entropy is wanted: what depends on them is not compiled then.
"""

# ruff: noqa: E741  (m, l, w and a are the letters of the equations)
import triton
import triton.language as tl
from triton.language import constexpr

from andrea_jax.attention.triton_parts import at, keys_seen, load, load_rows, place, queries_that_see, store

LOG_2 = constexpr(0.6931471805599453)

# Finite stand-ins for −inf, as in `chunked`: no difference of two of them is nan, and exp2(HIDDEN − m) is exactly 0.
HIDDEN = constexpr(-1e38)
FLOOR = constexpr(-1e30)

# t_sum of a row that sees no key. Any score minus this has an exponential of exactly 0: its pattern, and its gradients.
UNSEEN = constexpr(1e30)


@triton.jit
def forward(
    q, k, v, q_offset, kv_length, z, t_sum, entropy, n_query, n_key,
    SCALE: constexpr, CAUSAL: constexpr, N_HEAD: constexpr, N_KV_HEAD: constexpr, HEAD_DIM: constexpr,
    Q_HEADS: constexpr, KV_HEADS: constexpr, K_FIRST: constexpr, V_FIRST: constexpr,
    QUERIES: constexpr, KEYS: constexpr,
):  # fmt: skip
    """z, t_sum and entropy. SCALE is the scale in units of log 2."""
    start, head, batch = place(n_query, N_HEAD, QUERIES)
    start = (tl.cdiv(n_query, QUERIES) - 1) * QUERIES - start  # the last of a causal mask take longest, and are first
    forward_tile(
        start, head, batch, q, k, v, q_offset, kv_length, z, t_sum, entropy, n_query, n_key,
        SCALE, CAUSAL, N_HEAD, N_KV_HEAD, HEAD_DIM, Q_HEADS, KV_HEADS, K_FIRST, V_FIRST, QUERIES, KEYS,
    )  # fmt: skip


@triton.jit
def forward_tile(
    start, head, batch, q, k, v, q_offset, kv_length, z, t_sum, entropy, n_query, n_key,
    SCALE: constexpr, CAUSAL: constexpr, N_HEAD: constexpr, N_KV_HEAD: constexpr, HEAD_DIM: constexpr,
    Q_HEADS: constexpr, KV_HEADS: constexpr, K_FIRST: constexpr, V_FIRST: constexpr,
    QUERIES: constexpr, KEYS: constexpr,
):  # fmt: skip
    """`forward` of one tile of queries."""
    kv_head = head // (N_HEAD // N_KV_HEAD)
    whole, stop, last = keys_seen(batch, start, n_query, n_key, q_offset, kv_length, CAUSAL, QUERIES, KEYS)
    k_at = at(k, batch, n_key, K_FIRST + kv_head, 0, KV_HEADS, HEAD_DIM, KEYS)
    v_at = at(v, batch, n_key, V_FIRST + kv_head, 0, KV_HEADS, HEAD_DIM, KEYS)
    q_tile = load(at(q, batch, n_query, head, start, Q_HEADS, HEAD_DIM, QUERIES), start, n_query, HEAD_DIM, True)

    m = tl.full([QUERIES], FLOOR, tl.float32)
    l = tl.zeros([QUERIES], tl.float32)
    w = tl.zeros([QUERIES], tl.float32)
    a = tl.zeros(q_tile.shape, tl.float32)
    for MASKED in tl.static_range(2):
        m, l, w, a = _add_keys(
            m, l, w, a, q_tile, k_at, v_at, last, whole if MASKED else 0, stop if MASKED else whole,
            SCALE, KV_HEADS * HEAD_DIM, HEAD_DIM, KEYS, entropy is not None, MASKED,
        )  # fmt: skip

    empty = l == 0.0
    l = tl.where(empty, 1.0, l)
    store(at(z, batch, n_query, head, start, N_HEAD, HEAD_DIM, QUERIES), a / l[:, None], start, n_query, HEAD_DIM)
    query = start + tl.arange(0, QUERIES)
    row = (tl.cast(batch, tl.int64) * N_HEAD + head) * n_query + query
    tl.store(t_sum + row, tl.where(empty, UNSEEN, m + tl.log2(l)), mask=query < n_query)
    if entropy is not None:
        tl.store(entropy + row, (tl.log2(l) - w / l) * LOG_2, mask=query < n_query)


@triton.jit
def _add_keys(
    m, l, w, a, q_tile, k_at, v_at, last, start, stop,
    SCALE: constexpr, KV_ROW: constexpr, HEAD_DIM: constexpr, KEYS: constexpr, ENTROPY: constexpr, MASKED: constexpr,
):  # fmt: skip
    """The running sums of a tile of queries, with the keys from `start` to `stop` added."""
    if start < stop:
        for j in range(start, stop, KEYS):
            k_tile = load(k_at + tl.cast(j, tl.int64) * KV_ROW, j, stop, HEAD_DIM, MASKED)
            v_tile = load(v_at + tl.cast(j, tl.int64) * KV_ROW, j, stop, HEAD_DIM, MASKED)
            t = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
            if MASKED:
                t = tl.where(tl.arange(0, KEYS)[None, :] <= (last - j)[:, None], t * SCALE, HIDDEN)
                m_new = tl.maximum(m, tl.max(t, 1))
                above = t - m_new[:, None]
            else:
                m_new = tl.maximum(m, tl.max(t, 1) * SCALE)
                above = t * SCALE - m_new[:, None]
            e = tl.exp2(above)
            shrink = tl.exp2(m - m_new)
            if ENTROPY:
                w = shrink * (w + (m - m_new) * l) + tl.sum(e * above, 1)
            l = shrink * l + tl.sum(e, 1)
            a = tl.dot(e.to(v_tile.dtype), v_tile, a * shrink[:, None], input_precision="ieee")
            m = m_new
    return m, l, w, a


@triton.jit
def backward_queries(
    q, k, v, q_offset, kv_length, z, t_sum, entropy, dz, dlse, dentropy, dq, rows, n_query, n_key,
    SCALE: constexpr, CAUSAL: constexpr, N_HEAD: constexpr, N_KV_HEAD: constexpr, HEAD_DIM: constexpr,
    Q_HEADS: constexpr, KV_HEADS: constexpr, K_FIRST: constexpr, V_FIRST: constexpr,
    QUERIES: constexpr, KEYS: constexpr,
):  # fmt: skip
    """dq, and for `backward_keys` rows [batch, n_head, query, 4]: t_sum, delta and slope of `_rows`, and nothing."""
    start, head, batch = place(n_query, N_HEAD, QUERIES)
    start = (tl.cdiv(n_query, QUERIES) - 1) * QUERIES - start  # the last of a causal mask take longest, and are first
    kv_head = head // (N_HEAD // N_KV_HEAD)
    whole, stop, last = keys_seen(batch, start, n_query, n_key, q_offset, kv_length, CAUSAL, QUERIES, KEYS)
    k_at = at(k, batch, n_key, K_FIRST + kv_head, 0, KV_HEADS, HEAD_DIM, KEYS)
    v_at = at(v, batch, n_key, V_FIRST + kv_head, 0, KV_HEADS, HEAD_DIM, KEYS)
    q_tile = load(at(q, batch, n_query, head, start, Q_HEADS, HEAD_DIM, QUERIES), start, n_query, HEAD_DIM, True)
    z_tile = load(at(z, batch, n_query, head, start, N_HEAD, HEAD_DIM, QUERIES), start, n_query, HEAD_DIM, True)
    dz_tile = load(at(dz, batch, n_query, head, start, N_HEAD, HEAD_DIM, QUERIES), start, n_query, HEAD_DIM, True)

    query = start + tl.arange(0, QUERIES)
    row = (tl.cast(batch, tl.int64) * N_HEAD + head) * n_query + query
    dz_z = tl.sum(dz_tile.to(tl.float32) * z_tile.to(tl.float32), 1)
    t_sum, delta, slope = _rows(dz_z, t_sum, entropy, dlse, dentropy, row, query < n_query)
    tl.store(rows + 4 * row, t_sum, mask=query < n_query)
    tl.store(rows + 4 * row + 1, delta, mask=query < n_query)
    tl.store(rows + 4 * row + 2, slope, mask=query < n_query)

    dq_tile = tl.zeros(q_tile.shape, tl.float32)
    for MASKED in tl.static_range(2):
        dq_tile = _add_keys_backward(
            dq_tile, q_tile, dz_tile, t_sum, delta, slope, k_at, v_at, last,
            whole if MASKED else 0, stop if MASKED else whole,
            SCALE, KV_HEADS * HEAD_DIM, HEAD_DIM, KEYS, dentropy is not None, MASKED,
        )  # fmt: skip
    dq_tile *= SCALE * LOG_2
    store(at(dq, batch, n_query, head, start, Q_HEADS, HEAD_DIM, QUERIES), dq_tile, start, n_query, HEAD_DIM)


@triton.jit
def _add_keys_backward(
    dq_tile, q_tile, dz_tile, t_sum, delta, slope, k_at, v_at, last, start, stop,
    SCALE: constexpr, KV_ROW: constexpr, HEAD_DIM: constexpr, KEYS: constexpr, ENTROPY: constexpr, MASKED: constexpr,
):  # fmt: skip
    """dq / scale of a tile of queries, with the keys from `start` to `stop` added."""
    if start < stop:
        for j in range(start, stop, KEYS):
            k_tile = load(k_at + tl.cast(j, tl.int64) * KV_ROW, j, stop, HEAD_DIM, MASKED)
            v_tile = load(v_at + tl.cast(j, tl.int64) * KV_ROW, j, stop, HEAD_DIM, MASKED)
            log2_p = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * SCALE - t_sum[:, None]
            p = tl.exp2(log2_p)
            if MASKED:
                p = tl.where(tl.arange(0, KEYS)[None, :] <= (last - j)[:, None], p, 0.0)
            ds = tl.dot(dz_tile, tl.trans(v_tile), input_precision="ieee") - delta[:, None]
            if ENTROPY:
                ds -= slope[:, None] * log2_p
            dq_tile = tl.dot((p * ds).to(k_tile.dtype), k_tile, dq_tile, input_precision="ieee")
    return dq_tile


@triton.jit
def backward_keys(
    q, k, v, q_offset, kv_length, dz, rows, dentropy, dk, dv, n_query, n_key,
    SCALE: constexpr, CAUSAL: constexpr, N_HEAD: constexpr, N_KV_HEAD: constexpr, HEAD_DIM: constexpr,
    Q_HEADS: constexpr, KV_HEADS: constexpr, K_FIRST: constexpr, V_FIRST: constexpr,
    QUERIES: constexpr, KEYS: constexpr, RAGGED: constexpr,
):  # fmt: skip
    """dk and dv; both into dk, where dv is None. RAGGED: the last tile of queries is not full."""
    start, kv_head, batch = place(n_key, N_KV_HEAD, KEYS)
    first, whole, stop, position, n_seen = queries_that_see(
        batch, start, n_query, n_key, q_offset, kv_length, CAUSAL, QUERIES, KEYS
    )
    k_tile = load(at(k, batch, n_key, K_FIRST + kv_head, start, KV_HEADS, HEAD_DIM, KEYS), start, n_key, HEAD_DIM, True)
    v_tile = load(at(v, batch, n_key, V_FIRST + kv_head, start, KV_HEADS, HEAD_DIM, KEYS), start, n_key, HEAD_DIM, True)

    key = start + tl.arange(0, KEYS)
    dk_tile = tl.zeros(k_tile.shape, tl.float32)
    dv_tile = tl.zeros(k_tile.shape, tl.float32)
    for i in range(N_HEAD // N_KV_HEAD):
        head = kv_head * (N_HEAD // N_KV_HEAD) + i
        q_at = at(q, batch, n_query, head, 0, Q_HEADS, HEAD_DIM, QUERIES)
        dz_at = at(dz, batch, n_query, head, 0, N_HEAD, HEAD_DIM, QUERIES)
        rows_at = rows + (tl.cast(batch, tl.int64) * N_HEAD + head) * n_query * 4 + tl.arange(0, 4 * QUERIES)
        for WHOLE in tl.static_range(2):
            dk_tile, dv_tile = _add_queries(
                dk_tile, dv_tile, k_tile, v_tile, q_at, dz_at, rows_at, key - position, n_query,
                whole if WHOLE else first, stop if WHOLE else whole,
                SCALE, Q_HEADS * HEAD_DIM, N_HEAD * HEAD_DIM, HEAD_DIM, QUERIES, dentropy is not None, 1 - WHOLE,
                RAGGED,
            )  # fmt: skip

    exists = (key < n_seen)[:, None]
    dk_tile = tl.where(exists, dk_tile * (SCALE * LOG_2), 0.0)
    dv_tile = tl.where(exists, dv_tile, 0.0)
    if dv is None:
        dv = dk
    store(at(dk, batch, n_key, K_FIRST + kv_head, start, KV_HEADS, HEAD_DIM, KEYS), dk_tile, start, n_key, HEAD_DIM)
    store(at(dv, batch, n_key, V_FIRST + kv_head, start, KV_HEADS, HEAD_DIM, KEYS), dv_tile, start, n_key, HEAD_DIM)


@triton.jit
def _add_queries(
    dk_tile, dv_tile, k_tile, v_tile, q_at, dz_at, rows_at, first, n_query, start, stop,
    SCALE: constexpr, Q_ROW: constexpr, DZ_ROW: constexpr, HEAD_DIM: constexpr, QUERIES: constexpr, ENTROPY: constexpr,
    MASKED: constexpr, RAGGED: constexpr,
):  # fmt: skip
    """dk / scale and dv of a tile of keys, with the queries from `start` to `stop` added; patterns are [key, query].

    `first` [KEYS] is the first query that sees each key. Beyond the last query all is 0, and adds 0.
    """
    if start < stop:
        for i in range(start, stop, QUERIES):
            q_tile = load(q_at + tl.cast(i, tl.int64) * Q_ROW, i, n_query, HEAD_DIM, RAGGED)
            dz_tile = load(dz_at + tl.cast(i, tl.int64) * DZ_ROW, i, n_query, HEAD_DIM, RAGGED)
            t_sum, delta, slope = load_rows(rows_at + 4 * i, 4 * (n_query - i), QUERIES, RAGGED)
            log2_p = tl.dot(k_tile, tl.trans(q_tile), input_precision="ieee") * SCALE - t_sum[None, :]
            p = tl.exp2(log2_p)
            if MASKED:
                p = tl.where((first - i)[:, None] <= tl.arange(0, QUERIES)[None, :], p, 0.0)
            dv_tile = tl.dot(p.to(dz_tile.dtype), dz_tile, dv_tile, input_precision="ieee")
            ds = tl.dot(v_tile, tl.trans(dz_tile), input_precision="ieee") - delta[None, :]
            if ENTROPY:
                ds -= slope[None, :] * log2_p
            dk_tile = tl.dot((p * ds).to(q_tile.dtype), q_tile, dk_tile, input_precision="ieee")
    return dk_tile, dv_tile


@triton.jit
def _rows(dz_z, t_sum, entropy, dlse, dentropy, row, inside):
    """t_sum; what is subtracted from dP whatever the key; and the factor of log₂ P that is subtracted too."""
    t_sum = tl.load(t_sum + row, mask=inside, other=UNSEEN)
    delta = dz_z - tl.load(dlse + row, mask=inside, other=0.0)
    slope = tl.zeros_like(delta)
    if dentropy is not None:
        slope = tl.load(dentropy + row, mask=inside, other=0.0)
        delta += slope * tl.load(entropy + row, mask=inside, other=0.0)
    return t_sum, tl.where(t_sum == UNSEEN, 0.0, delta), slope * LOG_2
