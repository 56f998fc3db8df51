"""The engine of interventions: many edited passes in one compiled program, read off as a few numbers each.

An edit says which heads, and at which positions, get another z. Edits are a boolean array and not part of the program,
so that all heads of a model are edited one at a time by one compilation. The edits of a call share one pass with a
batch of (edits × sequences): any attention backend can do that, with or without a rule for `jax.vmap`.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from andrea_jax.config import Model
from andrea_jax.model import Params, bind
from andrea_jax.trace import record

# Of one call, edits × sequences × positions: on a CPU no more than stays in its caches (quickstart model: 247,000
# tokens/s with 2**12, 124,000 with 2**15, 2 cores, 2026-11-29), on an accelerator enough to keep it busy ...
TOKENS_ON_CPU, TOKENS_ELSEWHERE = 2**12, 2**15
LOGITS_AT_ONCE = 2**29  # ... and their logits, 2 GiB of float32

Layers = tuple[Array, ...]  # a value of every layer; a pruned layer has fewer heads
Reader = Callable[[Array], Array]  # logits [batch, seq, vocab] -> [batch, ...]; a pytree of arrays
Progress = Callable[[int, int], None]  # (done, in all)


class Compute(TypedDict):
    """How passes compute, as keyword arguments."""

    dtype: str
    backend: str


class Swap(NamedTuple):
    """What chosen heads get in place of their z; of every layer, for one batch of sequences.

    z: the replacement [batch, seq, n_head, head_dim] · to_bos: bool; instead of it v[0] of the head's key-value head,
    in the pass itself: what the head gives when its whole pattern lies on position 0 · q, k [batch, seq, n_head or
    n_kv_head, head_dim] and frozen: bool; where true every head of every layer keeps these queries and keys, hence the
    pattern they make, and only values flow.
    """

    z: Layers
    to_bos: Array
    q: Layers
    k: Layers
    frozen: Array


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def recorded(
    config: Model, dtype: str, backend: str, points: tuple[str, ...], params: Params, tokens: Array
) -> dict[str, Layers]:
    """point -> its value in every layer, of an intact pass over tokens int32 [batch, seq]."""
    return {point: tuple(values) for point, values in record(config, dtype, backend, points, params, tokens)[1].items()}


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def edited(
    config: Model, dtype: str, backend: str, params: Params, tokens: Array, swap: Swap, where: Array, read: Reader
) -> Array:
    """What `read` makes of the logits of every edit: [edit, batch, ...].

    tokens int32 [batch, seq]; where bool [edit, n_layer, 1 or seq, n_head]: true where z is swapped.
    """
    n, values = len(where), {}

    def apart(x: Array) -> Array:
        """[edit · batch, ...] -> [edit, batch, ...]."""
        return x.reshape(n, len(tokens), *x.shape[1:])

    def tap(layer: int, point: str, value: Array) -> Array:
        if point in ("q", "k"):
            kept = getattr(swap, point)[layer][None]
            return jnp.where(swap.frozen, kept, apart(value)).reshape(value.shape)
        if point == "v":
            values[layer] = value
        if point != "z":
            return value
        first = jnp.repeat(values[layer][:, :1], config.group, axis=2)
        other = jnp.where(swap.to_bos, apart(first), swap.z[layer][None])
        chosen = where[:, layer, None, :, : value.shape[2], None]
        return jnp.where(chosen, other, apart(value)).reshape(value.shape)

    logits = bind(config, params, dtype=dtype, backend=backend)(jnp.tile(tokens, (n, 1)), tap=tap)
    return jax.vmap(read)(apart(logits))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def intact(config: Model, dtype: str, backend: str, params: Params, tokens: Array, read: Reader) -> Array:
    """What `read` makes of the logits of tokens int32 [batch, seq], nothing edited."""
    return read(bind(config, params, dtype=dtype, backend=backend)(tokens))


def sweep(
    config: Model,
    tokens: np.ndarray,
    n_edits: int,
    prepare: Callable[[np.ndarray], Callable[[np.ndarray], Array]],
    progress: Progress | None = None,
) -> np.ndarray:
    """Every edit on every sequence of tokens [sequence, seq]: what was read, [edit, sequence, ...].

    prepare: numbers of sequences int [n] -> a function of numbers of edits int [m], which runs them: [m, n, ...].
    All calls have one shape. progress: told (edits × sequences done, in all).
    """
    size, at_once = shape_of_calls(config, tokens.shape, n_edits)
    columns, done = [], 0
    for rows in batches(len(tokens), size):
        run, column = prepare(rows), []
        for edits in batches(n_edits, at_once):
            column.append(np.asarray(run(edits)))
            done += len(np.unique(edits)) * len(np.unique(rows))
            if progress:
                progress(done, n_edits * len(tokens))
        columns.append(np.concatenate(column)[:n_edits])
    return np.concatenate(columns, axis=1)[:, : len(tokens)]


def shape_of_calls(config: Model, shape: tuple[int, ...], n_edits: int) -> tuple[int, int]:
    """(sequences, edits) of one call, for tokens of this shape [sequence, seq]: what fits, few sequences first."""
    n, seq = shape
    tokens = TOKENS_ON_CPU if jax.default_backend() == "cpu" else TOKENS_ELSEWHERE
    room = max(1, min(tokens, LOGITS_AT_ONCE // config.vocab_size) // seq)
    size = max(1, min(n, room // min(n_edits, 8)))
    calls = -(-n_edits // max(1, room // size))
    return size, -(-n_edits // calls)


def batches(n: int, size: int) -> list[np.ndarray]:
    """0 .. n − 1 in parts of `size`; the last one repeats n − 1, so that all have one shape."""
    return [np.minimum(np.arange(start, start + size), n - 1) for start in range(0, n, size)]
