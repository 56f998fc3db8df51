"""Sampling text from a model, with a key–value cache that lives outside it, in a tap."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from andrea_jax import model
from andrea_jax.config import Model
from andrea_jax.errors import UserError
from andrea_jax.model import Params

Cache = dict[str, tuple[Array, ...]]  # "k" and "v": per layer [batch, seq_len, n_kv_head, head_dim]; k after rotary


def generate(
    config: Model,
    params: Params,
    prompt: Sequence[Sequence[int]] | np.ndarray,
    n_new: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
    dtype: str = "float32",
    backend: str = "auto",
) -> np.ndarray:
    """n_new tokens after each prompt: prompt int [batch, length], BOS included -> int32 [batch, n_new].

    Each token is drawn from softmax(logits / temperature) over the `top_k` likeliest tokens (None: all); temperature 0
    takes the likeliest, the lowest id of equals. The same arguments give the same tokens. BOS, where the model writes
    one, ends a document; what follows is the next.

    The first call for a config compiles two programs, for the prompt and for one token; every length shares them.
    Raises UserError where prompt and new tokens need more than model.seq_len positions, or an argument is out of range.
    """
    tokens = np.asarray(prompt)
    _check(config, tokens, n_new, temperature, top_k)
    length = tokens.shape[1]
    padded = np.zeros((len(tokens), config.seq_len), np.int32)
    padded[:, :length] = tokens
    k = 1 if temperature == 0 else config.vocab_size if top_k is None else min(top_k, config.vocab_size)
    scale, key = np.float32(temperature or 1.0), jax.random.key(seed)
    settings = config, dtype, backend

    logits, cache = read_prompt(*settings, params, padded, np.int32(length))
    chosen = [_draw(k, logits, scale, jax.random.fold_in(key, length))]
    for position in range(length, length + n_new - 1):
        logits, cache = read_token(*settings, params, cache, chosen[-1], np.int32(position))
        chosen.append(_draw(k, logits, scale, jax.random.fold_in(key, position + 1)))
    return np.stack([np.asarray(token) for token in chosen], axis=1)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def read_prompt(
    config: Model, dtype: str, backend: str, params: Params, tokens: Array, length: Array
) -> tuple[Array, Cache]:
    """Prompts int32 [batch, seq_len], of which the first `length` tokens count -> (logits float32 [batch, vocab] after
    the last of them, cache).

    The rows after them hold keys and values of padding: causality hides each one until `read_token` replaces it.
    """
    found: dict[str, list[Array]] = {"k": [], "v": []}

    def tap(layer: int, point: str, value: Array) -> Array:
        if point in found:
            found[point].append(value)
        return value

    logits = model.bind(config, params, dtype=dtype, backend=backend)(tokens, tap=tap)
    last = jax.lax.dynamic_index_in_dim(logits, length - 1, axis=1, keepdims=False)
    return last, {point: tuple(values) for point, values in found.items()}


@functools.partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=4)
def read_token(
    config: Model, dtype: str, backend: str, params: Params, cache: Cache, tokens: Array, position: Array
) -> tuple[Array, Cache]:
    """One token a sequence, int32 [batch], at `position` -> (logits float32 [batch, vocab], the cache with its keys and
    values). The cache passed in is donated. Backend "cudnn" begins at position 0 only: "auto" decodes in its place."""
    grown: dict[str, list[Array]] = {"k": [], "v": []}

    def tap(layer: int, point: str, value: Array) -> Array:
        if point not in grown:
            return value
        full = jax.lax.dynamic_update_slice_in_dim(cache[point][layer], value, position, axis=1)
        grown[point].append(full)
        return full

    decoding = "auto" if backend == "cudnn" else backend
    andrea = model.bind(config, params, dtype=dtype, backend=decoding)
    logits = andrea(tokens[:, None], offset=position, tap=tap)[:, 0]
    return logits, {point: tuple(values) for point, values in grown.items()}


@functools.partial(jax.jit, static_argnums=0)
def _draw(k: int, logits: Array, temperature: Array, key: Array) -> Array:
    """One of the k likeliest tokens of each row: logits [batch, vocab] -> int32 [batch]."""
    values, ids = jax.lax.top_k(logits, k)
    place = jax.random.categorical(key, values / temperature)
    return jnp.take_along_axis(ids, place[:, None], axis=1)[:, 0]


def _check(config: Model, prompt: np.ndarray, n_new: int, temperature: float, top_k: int | None) -> None:
    if prompt.ndim != 2 or 0 in prompt.shape or not np.issubdtype(prompt.dtype, np.integer):
        raise UserError(
            f"prompt must be integers [batch, length], BOS at least, not {prompt.dtype} {list(prompt.shape)}"
        )
    if prompt.min() < 0 or prompt.max() >= config.vocab_size:
        text = f"must hold ids from 0 to {config.vocab_size - 1}, not {prompt.min()} to {prompt.max()}"
        raise UserError(f"prompt {text}")
    if n_new < 1:
        raise UserError(f"n_new = {n_new}: must be 1 or more")
    if prompt.shape[1] + n_new > config.seq_len:
        text = f"the prompt has {prompt.shape[1]} tokens and model.seq_len = {config.seq_len} positions"
        raise UserError(f"n_new = {n_new}: must be at most {config.seq_len - prompt.shape[1]}, since {text}")
    if temperature < 0:
        raise UserError(f"temperature = {temperature}: must be 0 or more")
    if top_k is not None and top_k < 1:
        raise UserError(f"top_k = {top_k}: must be 1 or more")
