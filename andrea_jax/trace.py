"""A forward pass that returns what the heads did, as values.

    traced = trace(config, params, tokens, points=("q", "k", "lse"))
    traced["q"]                        [n_layer, batch, seq, n_head, head_dim]
    traced.pattern(layer=4, head=7)    [query, key] of the first sequence

The pass is the model's own: same attention backend, same logits, bit for bit. No T × T pattern is ever made on the
device; `Trace.pattern` rebuilds the rows that a person wants to see, from q, k and the log-sum-exp.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from andrea_jax.config import Model
from andrea_jax.errors import UserError, did_you_mean
from andrea_jax.model import Params, bind

HEAD_AXIS = {"q": 2, "k": 2, "v": 2, "z": 2, "head_output": 2, "lse": 1, "entropy": 1}  # without that of the layers
POINTS = ("resid_pre", "q", "k", "v", "lse", "entropy", "z", "head_output", "attention_out", "mlp_out", "resid_final")


@dataclass(frozen=True)
class Trace:
    """What was recorded. `logits` float32 [batch, seq, vocab_size]; `values[point]`, in the dtype of the pass:

    resid_pre, attention_out, mlp_out [n_layer, batch, seq, d_model] · q and k (after rotary), v, z
    [n_layer, batch, seq, n_head or n_kv_head, head_dim] · lse, entropy float32 [n_layer, batch, n_head, seq], nats ·
    head_output = z_h·W_O^h [n_layer, batch, seq, n_head, d_model]; sums over heads to attention_out without its bias ·
    resid_final [batch, seq, d_model]. Past the last head of a pruned layer (config.layer_heads) all values are 0.
    """

    config: Model
    logits: Array
    values: dict[str, Array]

    def __getitem__(self, point: str) -> Array:
        if point not in self.values:
            raise UserError(f'trace has no "{point}"; it recorded {", ".join(self.values)}')
        return self.values[point]

    def __repr__(self) -> str:
        recorded = {"logits": self.logits, **self.values}
        shapes = [f"  {name:<14} {value.dtype} {list(value.shape)}" for name, value in recorded.items()]
        return "\n".join([f"Trace of {self.config.shape}", *shapes])

    def pattern(self, layer: int, head: int, *, sequence: int = 0, queries: slice = slice(None)) -> np.ndarray:
        """A[q, k] = exp(q·k/√head_dim − lse[q]), 0 for k > q: float32 [query, key]. Needs the points q, k and lse.

        Raises UserError for a layer, head or sequence that is none of the trace's.
        """
        sizes = {"layer": (layer, self.config.n_layer), "sequence": (sequence, len(self.logits))}
        for name, (value, size) in sizes.items():
            _check_index(name, value, size)
        _check_index("head", head, self.config.layer_heads[layer])
        q, k, lse = (np.asarray(self[point][layer, sequence].astype(jnp.float32)) for point in ("q", "k", "lse"))
        kv_head = head // self.config.group
        positions = np.arange(len(q))
        scores = q[queries, head] @ k[:, kv_head].T * np.float32(self.config.head_dim**-0.5)
        visible = positions[None] <= positions[queries, None]
        return np.where(visible, np.exp(np.where(visible, scores, -np.inf) - lse[head, queries, None]), 0)


def _check_index(name: str, value: int, size: int) -> None:
    if not 0 <= value < size:  # jax would clamp it in silence
        raise UserError(f"pattern: {name} = {value}: must be from 0 to {size - 1}")


def trace(
    config: Model,
    params: Params,
    tokens: Array | np.ndarray,
    *,
    dtype: str = "float32",
    backend: str = "auto",
    points: Sequence[str] | str = ("q", "k", "lse"),
    entropy: bool = False,
) -> Trace:
    """Runs the model on tokens int32 [batch, seq] and records the `points`, one or more, of every layer; `entropy` adds
    that point.

    Compiled once a config and shape. Raises UserError for a point that the model does not have, and for an id outside
    its vocabulary.
    """
    points = (points,) if isinstance(points, str) else points
    asked = tuple(dict.fromkeys([*points, "entropy"] if entropy else points))
    for point in asked:
        if point not in POINTS:
            raise UserError(f'no trace point "{point}"{did_you_mean(point, POINTS)}; there are {", ".join(POINTS)}')
        if point == "mlp_out" and not config.mlp_width:
            raise UserError('no trace point "mlp_out" in an attention-only model (model.d_mlp = 0)')
    refuse_unknown_ids(config, np.asarray(tokens))
    logits, values = _trace(config, str(jnp.dtype(dtype)), backend, asked, params, jnp.asarray(tokens))
    return Trace(config, logits, values)


def refuse_unknown_ids(config: Model, tokens: np.ndarray) -> None:
    """UserError where an id is none of the vocabulary's: JAX would read the nearest row of W_E in silence."""
    outside = tokens[(tokens < 0) | (tokens >= config.vocab_size)]
    if outside.size:
        raise UserError(f"tokens: id {outside.flat[0]}: must be from 0 to {config.vocab_size - 1}")


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _trace(
    config: Model, dtype: str, backend: str, points: tuple[str, ...], params: Params, tokens: Array
) -> tuple[Array, dict[str, Array]]:
    logits, recorded = record(config, dtype, backend, points, params, tokens)
    return logits, {point: v[0] if point == "resid_final" else stack(config, point, v) for point, v in recorded.items()}


def record(
    config: Model, dtype: str, backend: str, points: tuple[str, ...], params: Params, tokens: Array
) -> tuple[Array, dict[str, list[Array]]]:
    """(logits, point -> its value in every layer) of one pass, for use inside jit."""
    recorded: dict[str, list[Array]] = {point: [] for point in points}

    def tap(layer: int, point: str, value: Array) -> Array:
        if point in recorded:
            recorded[point].append(value)
        if point == "z" and "head_output" in recorded:
            weights = params["layers"][str(layer)]["attention"]["projection"]
            recorded["head_output"].append(head_outputs(config, weights, value))
        return value

    model = bind(config, params, dtype=dtype, backend=backend)
    return model(tokens, tap=tap, entropy="entropy" in points), recorded


def stack(config: Model, point: str, layers: Sequence[Array]) -> Array:
    """[n_layer, ...] from a value of each layer; a pruned layer's heads are filled up with 0 to the model's."""
    if point in HEAD_AXIS:
        axis, n = HEAD_AXIS[point], config.kv_heads if point in ("k", "v") else config.n_head
        layers = [jnp.pad(x, [(0, n - x.shape[a] if a == axis else 0) for a in range(x.ndim)]) for x in layers]
    return jnp.stack(layers)


def head_outputs(config: Model, weights: Params, z: Array) -> Array:
    """What each head adds to the stream: z [batch, seq, n_head, head_dim] -> z_h·W_O^h [batch, seq, n_head, d_model].

    `weights` are one layer's attention weights, of either projection. b_O belongs to no head and is left out. Where
    W_O is not free, a head writes to its own head_dim components only. z past the last head of a pruned layer, as a
    trace has it, gives 0.
    """
    if config.w_o == "free":
        w_o = weights["W_O"].reshape(-1, config.head_dim, config.d_model)
        w_o = jnp.pad(w_o, ((0, z.shape[2] - len(w_o)), (0, 0), (0, 0)))
        return jnp.einsum("bthk,hkd->bthd", z, w_o.astype(z.dtype))
    if config.w_o == "block_diagonal":
        blocks = weights["W_O"].reshape(config.n_head, config.head_dim, config.head_dim)  # 2-D where fused, one head
        z = jnp.einsum("bthk,hkj->bthj", z, blocks.astype(z.dtype))
    apart = jnp.einsum("bthk,hg->bthgk", z, jnp.eye(config.n_head, dtype=z.dtype))
    return apart.reshape(*z.shape[:3], config.d_model)
