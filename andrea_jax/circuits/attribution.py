"""What wrote a logit, and what the model would say at each layer.

Both look at one sequence, in float32 whatever the run computes in.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array

from andrea_jax.circuits.factors import unembedding
from andrea_jax.circuits.reading import read
from andrea_jax.config import Model
from andrea_jax.errors import UserError
from andrea_jax.model import Params, bind


@dataclass(frozen=True)
class Attribution:
    """table: a row a component, columns component, kind, layer, head (null where it has none), contribution (float32,
    nats). The contributions sum to `logit`, the model's own number: of one token, or token minus `against`."""

    table: pd.DataFrame
    logit: float


def attribution(
    config: Model,
    params: Params,
    tokens: np.ndarray,
    position: int,
    token: int,
    against: int | None = None,
    backend: str = "auto",
) -> Attribution:
    """The logit of `token` for what follows `position` as a sum over embeddings, heads, biases and MLPs.

    logit = Σ_c s·(c·u), u the token's column of W_U (minus that of `against`), s the scale of the final norm at that
    position, held fixed. Elhage et al. 2021 and Wang et al. 2022, "Interpretability in the Wild", section 3 ("direct
    logit attribution"). Only what a component writes itself counts, not what later components make of it; and a part
    that all tokens' logits share changes no probability, which `against` takes out. tokens int32 [position].
    Raises UserError where position or token are none.
    """
    _check(config, len(tokens), position, [token] if against is None else [token, against])
    unembed = unembedding(config, params)
    direction = unembed[:, token] - (0 if against is None else unembed[:, against])
    found = read(config, params, tokens, config.n_layer, direction[:, None], backend)
    table = pd.DataFrame({
        "component": [c.name for c in found.components],
        "kind": [c.kind for c in found.components],
        "layer": pd.array([c.layer for c in found.components], dtype="Int64"),
        "head": pd.array([c.head for c in found.components], dtype="Int64"),
        "contribution": found.parts[:, position, 0],
    })  # fmt: skip
    return Attribution(table, float(found.whole[position, 0]))


def _check(config: Model, length: int, position: int, tokens: Sequence[int]) -> None:
    if not 0 <= position < length:  # jax would clamp it in silence
        raise UserError(f"position = {position}: must be from 0 to {length - 1}")
    for token in tokens:
        if not 0 <= token < config.vocab_size:
            raise UserError(f"token = {token}: must be from 0 to {config.vocab_size - 1}")


def lens(
    config: Model, params: Params, tokens: np.ndarray, positions: Sequence[int], backend: str = "auto"
) -> np.ndarray:
    """What the model would say if it stopped before each layer: log-probabilities float32 [layer, position, vocab_size]
    for what follows each of `positions`, nats; layer n_layer is the model's own answer.

    log softmax(norm(stream before the layer)·W_U), with the final norm, whose scale is computed anew at each layer.
    nostalgebraist 2020, "interpreting GPT: the logit lens". tokens int32 [position]. Raises UserError for a position
    that is none.
    """
    for position in positions:
        _check(config, len(tokens), position, [])
    return np.asarray(_lens(config, backend, params, jnp.asarray(tokens), jnp.asarray(positions)))


@functools.partial(jax.jit, static_argnums=(0, 1))
@jax.default_matmul_precision("highest")
def _lens(config: Model, backend: str, params: Params, tokens: Array, positions: Array) -> Array:
    streams = []

    def listen(layer: int, point: str, value: Array) -> Array:
        if point in ("resid_pre", "resid_final"):
            streams.append(value[0, positions])
        return value

    model = bind(config, params, backend=backend)
    model(tokens[None], tap=listen)
    return jax.nn.log_softmax(model.norm_final(jnp.stack(streams)) @ unembedding(config, params), axis=-1)


def lens_table(log_probs: np.ndarray, token: int) -> pd.DataFrame:
    """One position of `lens`, [layer, vocab_size], against one token: a row a layer, columns layer (before it; the last
    is the model's answer), log_prob (nats) and rank (1 is likeliest) of the token, top and top_log_prob (the likeliest
    token), entropy (nats)."""
    mine, top = log_probs[:, token], log_probs.argmax(axis=-1)
    return pd.DataFrame({
        "layer": np.arange(len(log_probs)),
        "log_prob": mine,
        "rank": 1 + (log_probs > mine[:, None]).sum(axis=-1),
        "top": top,
        "top_log_prob": log_probs.max(axis=-1),
        "entropy": -(np.exp(log_probs) * log_probs).sum(axis=-1),
    })  # fmt: skip
