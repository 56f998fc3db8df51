"""Why a head attends from one token to another: its score as a sum over pairs of what wrote to both streams."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy.special
from jax import Array

from andrea_jax.circuits.factors import per_head
from andrea_jax.circuits.reading import read
from andrea_jax.config import Model
from andrea_jax.errors import UserError
from andrea_jax.functions import rotate
from andrea_jax.model import Params


@dataclass(frozen=True)
class Why:
    """One entry of one head's scores, explained.

    score: q·k/√head_dim, before the softmax · mean_score: its mean over the keys that the query sees, 0 … query ·
    attention: the entry of the pattern · pairs: a row a pair of components, columns query_component, key_component,
    score, excess. The pairs' scores sum to `score`. excess is the pair's score less its mean over the keys seen, and
    sums to `score` − `mean_score`: the softmax drops what all keys share, so this is what the pair does for this key.
    "bias" without a number is b_Q or b_K · keys: the query's row, columns key, score, attention. All float32.
    """

    layer: int
    head: int
    query: int
    key: int
    score: float
    mean_score: float
    attention: float
    pairs: pd.DataFrame
    keys: pd.DataFrame


def why(
    config: Model,
    params: Params,
    tokens: np.ndarray,
    layer: int,
    head: int,
    query: int,
    key: int,
    backend: str = "auto",
) -> Why:
    """Splits the score of a query and a key into what each pair of earlier components does to it.

    score = Σ_c Σ_c' q_c·k_c'/√head_dim, where q_c = R_query(s_query·c·W_Q), k_c' = R_key(s_key·c'·W_K), s the scale of
    the layer's norm at that position, held fixed, and R the rotation of rotary positions, which is linear too. After
    Elhage et al. 2021, section "Two-layer attention-only transformers" (term by term expansion of the scores).
    tokens int32 [position]; float32 in the pass, float64 after it. No [query, key] pattern is made: one row only.
    Raises UserError for a layer, head, query or key that is none, or a key after the query.
    """
    _check(layer=(layer, config.n_layer - 1))
    _check(head=(head, config.layer_heads[layer] - 1), query=(query, len(tokens) - 1), key=(key, query))
    names, queries, keys = _sides(config, params, tokens, layer, head, backend)
    asked, seen, root = queries[:, query], keys[:, : query + 1], np.sqrt(config.head_dim)
    scores, mean = asked @ seen[:, key].T / root, asked @ seen.mean(axis=1).T / root
    pairs = pd.DataFrame({
        "query_component": np.repeat(names, len(names)),
        "key_component": np.tile(names, len(names)),
        "score": scores.ravel().astype(np.float32),
        "excess": (scores - mean).ravel().astype(np.float32),
    })  # fmt: skip
    row = seen.sum(axis=0) @ asked.sum(axis=0) / root
    pattern = scipy.special.softmax(row)
    seen_keys = {"score": row.astype(np.float32), "attention": pattern.astype(np.float32)}
    row_table = pd.DataFrame({"key": np.arange(query + 1), **seen_keys})
    return Why(layer, head, query, key, float(row[key]), float(row.mean()), float(pattern[key]), pairs, row_table)


def _check(**asked: tuple[int, int]) -> None:
    for name, (value, most) in asked.items():
        if not 0 <= value <= most:
            raise UserError(f"why: {name} = {value}: must be from 0 to {most}")


def _sides(
    config: Model, params: Params, tokens: np.ndarray, layer: int, head: int, backend: str
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Component names, and what each adds to the head's queries and keys, rotated: float64 [component, position,
    head_dim]."""
    weights, kv_head = per_head(config, params, layer), head // config.group
    directions = jnp.concatenate([weights["W_Q"][head], weights["W_K"][kv_head]], axis=-1)
    found = read(config, params, tokens, layer, directions, backend)
    names, sides = [c.name for c in found.components], np.split(found.parts, 2, axis=-1)
    if config.biases:
        names.append("bias")
        added = weights["b_Q"][head], weights["b_K"][kv_head]
        sides = [
            np.concatenate([side, np.broadcast_to(b, side[:1].shape)]) for side, b in zip(sides, added, strict=True)
        ]
    queries, keys = (_rotated(config, jnp.asarray(side)) for side in sides)
    return names, queries, keys


def _rotated(config: Model, side: Array) -> np.ndarray:
    """[component, position, head_dim], each position turned by its own angle where positions are rotary."""
    if config.positions == "rotary":
        side = rotate(side[:, :, None], jnp.arange(side.shape[1]), config.rotary_base)[:, :, 0]
    return np.asarray(side, np.float64)
