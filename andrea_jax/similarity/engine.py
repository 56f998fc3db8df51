"""How alike heads are: one compiled pass over batches, and what it sums.

Patterns are compared row by row, outputs token by token. Position 0, where a head can attend to nothing but BOS, is
left out of both. All sums are float32, whatever the model's dtype, and no [query, key] pattern is ever whole: rows are
rebuilt a chunk at a time, from q, k and the log-sum-exp.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from andrea_jax.circuits.factors import output_matrices
from andrea_jax.config import Model
from andrea_jax.model import Params
from andrea_jax.trace import record

Progress = Callable[[int, int], None]  # (sequences done, sequences in all)

TOKENS_A_BATCH = 2**14
ROWS_A_CHUNK = 2**24  # floats of all heads' rows at once, at most
GROUP = 256  # tokens whose outputs are compared at once


@dataclass(frozen=True)
class Moments:
    """Of all outputs of a layer's heads before W_O, side by side: n tokens, mean [feature], scatter [feature, feature]
    around it; float64 [n_head·head_dim] features."""

    n: float
    mean: np.ndarray
    scatter: np.ndarray

    def __add__(self, other: "Moments") -> "Moments":
        """Of both sets of tokens (Chan, Golub and LeVeque 1983)."""
        n, apart = self.n + other.n, other.mean - self.mean
        between = np.outer(apart, apart) * (self.n * other.n / n)
        return Moments(n, self.mean + apart * (other.n / n), self.scatter + other.scatter + between)


@dataclass(frozen=True)
class Measured:
    """What one pass found, heads in the order of `names`; halves: sequences with an even and with an odd index.

    js: float32 [sequence, head + 1, head + 1], the mean over the asked queries of the Jensen–Shannon distance of two
    heads' patterns; the last "head" attends evenly · hsic: float64 [half, head, head], unbiased HSIC of outputs ·
    moments: of every layer, of both halves · metric: of every layer, W_O·W_Oᵀ, float64 [head, head_dim, head_dim].
    """

    names: list[tuple[int, int]]
    js: np.ndarray
    hsic: np.ndarray
    moments: list[list[Moments]]
    metric: list[np.ndarray]


def measure(
    config: Model,
    params: Params,
    tokens: np.ndarray,
    *,
    queries: int = 64,
    dtype: str = "float32",
    backend: str = "auto",
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Measured:
    """Compares all pairs of heads on tokens int [sequence, position].

    queries: rows of each pattern that are compared, spread evenly over the positions after 0, in every sequence at
    other places (all of them where there are no more). batch_size: sequences at once, even (None: about 16,384
    tokens); compiled once for all batches. Raises ValueError for fewer than four sequences or two positions.
    """
    n, length = tokens.shape
    if n < 4 or length < 2:
        raise ValueError(f"heads are compared on four or more sequences of two or more tokens, not {n} of {length}")
    heads = sum(config.layer_heads)
    chunk = max(1, min(queries, length - 1, ROWS_A_CHUNK // ((heads + 1) * length)))
    rows = asked_rows(n, length, queries, chunk)
    size = min(n + n % 2, batch_size or max(2, TOKENS_A_BATCH // length // 2 * 2))
    js, sums = [], []
    for start in range(0, n, size):
        batch = np.minimum(
            np.arange(start, start + size), n - 1
        )  # the last batch repeats a sequence, which is not used
        present = np.arange(start, start + size) < n
        arrays = tokens[batch].astype(np.int32), rows[batch], present
        found, moments, hsic = _compare(config, str(jnp.dtype(dtype)), backend, params, *arrays)
        js.append(np.asarray(found)[present])
        sums.append((_host(moments), np.asarray(hsic, np.float64)))
        if progress:
            progress(min(start + size, n), n)
    return _together(config, params, np.concatenate(js), sums)


def _together(config: Model, params: Params, js: np.ndarray, sums: list[tuple]) -> Measured:
    """Of all batches; sums: (moments [layer][half], hsic) of each."""
    layers = [[functools.reduce(Moments.__add__, parts) for parts in zip(*layer, strict=True)]
              for layer in zip(*(moments for moments, _ in sums), strict=True)]  # fmt: skip
    w_o = [np.asarray(output_matrices(config, params, layer), np.float64) for layer in range(config.n_layer)]
    names = [(layer, head) for layer, count in enumerate(config.layer_heads) for head in range(count)]
    return Measured(names, js, np.sum([hsic for _, hsic in sums], axis=0), layers, [w @ w.swapaxes(1, 2) for w in w_o])


def asked_rows(n: int, length: int, queries: int, chunk: int) -> np.ndarray:
    """The queries whose rows are compared in each of n sequences: int32 [sequence, chunk, row], filled up with 0."""
    count = min(queries, length - 1)
    shift = np.arange(n)[:, None] * 0.6180339887 % 1  # golden ratio: neighbouring sequences ask in different places
    asked = 1 + ((np.arange(count)[None] + shift) * (length - 1) / count).astype(np.int32)
    return np.pad(asked, ((0, 0), (0, -count % chunk))).reshape(n, -1, chunk)


def _host(moments: list) -> list[list[Moments]]:
    """By layer and half."""
    return [[Moments(float(n), *(np.asarray(x, np.float64) for x in rest)) for n, *rest in layer] for layer in moments]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _compare(
    config: Model, dtype: str, backend: str, params: Params, tokens: Array, rows: Array, present: Array
) -> tuple[Array, list, Array]:
    """(js [batch, head + 1, head + 1], moments [layer][half] of (n, mean, scatter), hsic [half, head, head])."""
    _, seen = record(config, dtype, backend, ("q", "k", "lse", "z"), params, tokens)
    with jax.default_matmul_precision("highest"):  # of the statistics; the model's own pass stays as it is
        js = jax.lax.map(lambda one: _distances(*one), (seen["q"], seen["k"], seen["lse"], rows))
        w_o = [output_matrices(config, params, layer) for layer in range(config.n_layer)]
        metric = [jnp.einsum("hkd,hld->hkl", w, w) for w in w_o]
        halves = []
        for half in (0, 1):
            z = [x[half::2, 1:].astype(jnp.float32).reshape(-1, *x.shape[2:]) for x in seen["z"]]
            counted = jnp.repeat(present[half::2], tokens.shape[1] - 1).astype(jnp.float32)
            halves.append(([_moments(x.reshape(len(x), -1), counted) for x in z], _hsic(z, metric, counted)))
    (first, hsic), (second, other_hsic) = halves
    return js, list(zip(first, second, strict=True)), jnp.stack([hsic, other_hsic])


def _distances(q: list[Array], k: list[Array], lse: list[Array], rows: Array) -> Array:
    """Mean over rows of one sequence: [head + 1, head + 1]. q, k [seq, head, head_dim], lse [head, seq] a layer."""

    def add(total: Array, asked: Array) -> tuple[Array, None]:
        layers = [_rows(*layer, asked) for layer in zip(q, k, lse, strict=True)]
        distance = js_distance(jnp.concatenate([*layers, _even(asked, q[0].shape[0])]), asked)
        return total + (distance * (asked > 0)[None, None]).sum(axis=-1), None

    n = 1 + sum(x.shape[1] for x in q)
    return jax.lax.scan(add, jnp.zeros((n, n)), rows)[0] / (rows > 0).sum()


def _rows(q: Array, k: Array, lse: Array, asked: Array) -> Array:
    """Rows of the patterns of a layer, float32 [head, row, key]."""
    n_head, n_kv, head_dim = q.shape[1], k.shape[1], q.shape[2]
    q = q[asked].astype(jnp.float32).reshape(-1, n_kv, n_head // n_kv, head_dim)
    scores = jnp.einsum("qhgd,khd->hgqk", q, k.astype(jnp.float32)) * head_dim**-0.5
    scores = scores.reshape(n_head, len(asked), -1) - lse[:, asked, None]
    visible = jnp.arange(k.shape[0])[None] <= asked[:, None]
    return jnp.where(visible[None], jnp.exp(jnp.where(visible[None], scores, 0)), 0)


def _even(asked: Array, length: int) -> Array:
    """The rows of a head that attends evenly, [1, row, key]."""
    return jnp.where(jnp.arange(length)[None] <= asked[:, None], 1 / (asked[:, None] + 1.0), 0)[None]


def js_distance(patterns: Array, query: Array) -> Array:
    """√ of the Jensen–Shannon divergence in bits of all pairs of patterns [head, row, key] -> [head, head, row]: 0 for
    equal rows, 1 for rows that share no key (Lin 1991; Endres and Schindelin 2003 show that the root is a metric).

    Row i belongs to query[i] = q. It is smoothed first, as if each head attended q times as it does and once evenly:
    p' = (q·p + u)/(q + 1), u = 1/(q + 1) on the keys 0 … q. So a mass of 1/(q + 1) is spread, and none on the future.
    """
    q, length = query[:, None].astype(jnp.float32), patterns.shape[-1]
    visible = jnp.arange(length)[None] <= query[:, None]
    p = jnp.where(visible[None], (patterns * q[None] + (1 / (q + 1))[None]) / (q + 1)[None], 0)

    def divergence(one: Array) -> Array:
        """KL(one ‖ (one + each)/2) in nats, [head, row]. The ratio is exactly 1 where both are equal."""
        ratio = jnp.where(visible[None], 2 * one[None] / jnp.where(visible[None], one[None] + p, 1), 1)
        return (one[None] * jnp.log(ratio)).sum(axis=-1)

    one_sided = jax.lax.map(divergence, p)
    return jnp.sqrt(jnp.maximum(one_sided + one_sided.swapaxes(0, 1), 0) / (2 * jnp.log(2)))


def _moments(x: Array, counted: Array) -> tuple[Array, Array, Array]:
    """(n, mean, scatter) of the counted rows of x [token, feature]."""
    n = counted.sum()
    mean = counted @ x / jnp.maximum(n, 1)
    apart = (x - mean[None]) * counted[:, None]
    return n, mean, jnp.matmul(apart.T, apart)


def _hsic(z: list[Array], metric: list[Array], counted: Array) -> Array:
    """Unbiased HSIC with linear kernels of all pairs of heads' outputs z·W_O, summed over groups of tokens:
    [head, head]. z [token, head, head_dim] and W_O·W_Oᵀ [head, head_dim, head_dim] a layer."""
    size = min(GROUP, len(counted))
    pad = -len(counted) % size  # a group's tokens lie far apart, in different sequences
    groups = [jnp.pad(x, [(0, pad), *[(0, 0)] * (x.ndim - 1)]).reshape(size, -1, *x.shape[1:]).swapaxes(0, 1)
              for x in (*z, counted)]  # fmt: skip

    def add(total: Array, group: list[Array]) -> tuple[Array, None]:
        *outputs, mine = group
        kernels = [jnp.einsum("thk,hkl,shl->hts", x, m, x)
                   for x, m in zip((_centred(x, mine) for x in outputs), metric, strict=True)]  # fmt: skip
        return total + unbiased_hsic(jnp.concatenate(kernels), mine), None

    n = sum(x.shape[1] for x in z)
    return jax.lax.scan(add, jnp.zeros((n, n)), groups)[0]


def _centred(x: Array, counted: Array) -> Array:
    """x [token, head, feature] less its mean; HSIC does not change, and float32 keeps what the mean would drown."""
    mean = jnp.tensordot(counted, x, axes=1) / jnp.maximum(counted.sum(), 1)
    return (x - mean[None]) * counted[:, None, None]


def unbiased_hsic(kernels: Array, counted: Array) -> Array:
    """HSIC₁ of Song et al. 2012, equation 5, of all pairs of kernels [head, token, token] over the counted tokens (0 or
    1), [head, head]; 0 for fewer than four tokens."""
    n = counted.sum()
    off = counted[:, None] * counted[None] * (1 - jnp.eye(len(counted)))
    k = kernels * off[None]
    rows = k.sum(axis=-1)
    whole = rows.sum(axis=-1)
    flat = k.reshape(len(k), -1)
    traces, dots = (jnp.matmul(x, x.T) for x in (flat, rows))
    m = jnp.maximum(n, 4)
    value = traces + whole[:, None] * whole[None] / ((m - 1) * (m - 2)) - 2 / (m - 2) * dots
    return jnp.where(n >= 4, value / (m * (m - 3)), 0)
