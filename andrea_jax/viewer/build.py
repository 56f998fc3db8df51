"""From models and a text to a view: two forward passes at most, and no pattern on the device."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array

from andrea_jax.config import BOS, Model
from andrea_jax.data import Tokenizer
from andrea_jax.errors import UserError
from andrea_jax.model import Params
from andrea_jax.trace import Trace, head_outputs, trace
from andrea_jax.viewer import pack
from andrea_jax.viewer.assemble import Side, view_sides
from andrea_jax.viewer.page import View

LEAST = 64  # tokens that a text is filled up to


@dataclass(frozen=True)
class Source:
    """A model to look at, and what to call it."""

    name: str
    config: Model
    params: Params
    dtype: str = "float32"
    backend: str = "auto"


def view_models(
    source: Source,
    tokens: np.ndarray,
    tokenizer: Tokenizer,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    against: Source | None = None,
    scores: pd.DataFrame | None = None,
    title: str,
) -> View:
    """The viewer of a model on tokens int32 [1, seq], alone or against another on the same tokens.

    layers, heads: which to show (None: all). UserError where a number is none of the model's, or the other model has
    another number of layers or heads.
    """
    config = source.config
    chosen = _chosen("layers", layers, config.n_layer), _chosen("heads", heads, max(config.layer_heads))
    if against is not None and against.config.layer_heads != config.layer_heads:
        text = f"against: {against.name} has {against.config.shape}, and {source.name} has {config.shape}"
        raise UserError(text)
    n, filled = tokens.shape[1], _filled(tokens, config.seq_len)
    traced = _trace(source, filled)
    successors = np.append(filled[0, 1:], BOS)
    successors[n - 1] = np.asarray(traced.logits)[0, n - 1].argmax()  # the last one is the guess
    sides = [_cut(side(source, traced, successors, *chosen), n)]
    if against is not None:
        sides.append(_cut(side(against, _trace(against, filled), successors, *chosen), n))
    pieces = [[b"\xe2\x9f\xa8bos\xe2\x9f\xa9" if i == BOS else tokenizer.token_bytes[i] for i in ids.tolist()]
              for ids in (tokens[0], successors[:n])]  # fmt: skip
    return view_sides(
        pieces[0], sides, scores=scores, layers=chosen[0], heads=chosen[1], successors=pieces[1], title=title
    )


def side(source: Source, traced: Trace, successors: np.ndarray, layers: Sequence[int], heads: Sequence[int]) -> Side:
    """What the chosen heads did, of the first sequence of a trace with the points q, k, lse, v, z, resid_final.

    logits: with o = z_h·W_O^h at token t and r the final stream there, o·W_U[:, successor of t] / rms(r); for a layer
    norm o − mean(o) over std(r). It is the head's own path to that logit: what later layers make of o is left out.
    """
    config, params = source.config, source.params
    patterns = np.stack([np.stack([_pattern(traced, layer, head) for head in heads]) for layer in layers])
    w_u = params["W_E"].T if config.tied_embeddings else params["W_U"]
    directions = jnp.asarray(w_u)[:, successors].T.astype(jnp.float32)  # [token, d_model]
    final = traced["resid_final"][0].astype(jnp.float32)
    if config.norm == "layer":
        final = final - final.mean(axis=-1, keepdims=True)
    scale = 1 / jnp.sqrt(jnp.square(final).mean(axis=-1) + 1e-5)  # [token]
    measures = [_measures(config, params, traced, layer, directions, scale) for layer in layers]
    kept = (np.stack(values)[:, list(heads)] for values in zip(*measures, strict=True))
    return Side(source.name, patterns, *kept)


def ablated(source: Source, layer: int, head: int) -> Source:
    """The model with that head's rows of W_O at 0, so that it adds nothing to the stream; its pattern stays as it was.

    Zeroing takes away the head's mean output too, which in layer 0 is most of what it does: a large difference there
    says little. UserError where there is no such head, or no W_O to zero.
    """
    config = source.config
    if not (0 <= layer < config.n_layer and 0 <= head < config.layer_heads[layer]):
        raise UserError(f"ablate: head {layer}.{head}: there is none in a model of {config.shape}")
    if config.w_o == "identity":
        raise UserError('ablate: needs a W_O, and this model has model.w_o = "identity"')
    block = source.params["layers"][str(layer)]
    weights = block["attention"]["projection"]
    w_o = weights["W_O"]
    zeroed = w_o.reshape(config.layer_heads[layer], config.head_dim, -1).at[head].set(0).reshape(w_o.shape)
    changed = {**block, "attention": {"projection": {**weights, "W_O": zeroed}}}
    params = {**source.params, "layers": {**source.params["layers"], str(layer): changed}}
    return Source(f"without head {layer}.{head}", config, params, source.dtype, source.backend)


def _pattern(traced: Trace, layer: int, head: int) -> np.ndarray:
    """[query, key]; all 0 for a head that was pruned away, which the page shows as an empty square."""
    if head < traced.config.layer_heads[layer]:
        return traced.pattern(layer, head)
    return np.zeros((traced.logits.shape[1],) * 2, np.float32)


def _filled(tokens: np.ndarray, most: int) -> np.ndarray:
    """Tokens [1, seq] and BOS after them, which none of them sees, up to a power of two or to `most`: texts of many
    lengths share what was compiled for one."""
    n = tokens.shape[1]
    length = max(n, min(max(LEAST, 1 << (n - 1).bit_length()), most))
    return np.pad(tokens, [(0, 0), (0, length - n)], constant_values=BOS)


def _cut(side: Side, n: int) -> Side:
    """The side of the first n tokens alone."""
    measures = (side.value_norms, side.norms, side.logits)
    cut = (None if values is None else pack.as_array(values)[..., :n] for values in measures)
    return Side(side.name, pack.as_array(side.patterns)[..., :n, :n], *cut)


def _trace(source: Source, tokens: np.ndarray) -> Trace:
    points = ("q", "k", "lse", "v", "z", "resid_final")
    return trace(source.config, source.params, tokens, dtype=source.dtype, backend=source.backend, points=points)


def _measures(
    config: Model, params: Params, traced: Trace, layer: int, directions: Array, scale: Array
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(value_norms, norms, logits) of one layer, float32 [head, token]."""
    weights = params["layers"][str(layer)]["attention"]["projection"]
    v, z = (traced[point][layer].astype(jnp.float32) for point in ("v", "z"))
    values = jnp.repeat(v, config.group, axis=2)  # query head h reads kv head h // group
    of_values, outputs = (head_outputs(config, weights, x)[0] for x in (values, z))  # [token, head, d_model]
    centred = outputs - outputs.mean(axis=-1, keepdims=True) if config.norm == "layer" else outputs
    logits = jnp.einsum("thd,td->th", centred, directions) * scale[:, None]
    norms = (jnp.linalg.norm(x, axis=-1) for x in (of_values, outputs))
    value_norms, norms = (np.asarray(x).T for x in norms)
    return value_norms, norms, np.asarray(logits).T


def _chosen(name: str, numbers: Sequence[int] | None, n: int) -> list[int]:
    if numbers is None:
        return list(range(n))
    if isinstance(numbers, int):
        raise UserError(f"{name} = {numbers}: must be a list of numbers, [{numbers}]")
    for number in numbers:
        if not 0 <= number < n:
            raise UserError(f"{name}: {number} is not one of 0 to {n - 1}")
    return list(numbers)
