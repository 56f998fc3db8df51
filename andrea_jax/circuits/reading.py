"""The stream as a sum of what wrote to it, read through a linear map.

    stream = token embedding + position embedding + Σ heads + Σ attention biases + Σ MLPs
    norm(stream)·D = Σ_c s_t·(c·D') + b·D

s_t = 1/rms of the stream at position t (of the centred stream, for a "layer" norm); D' = D with the norm's gain and
centring in it; b the norm's bias. With s_t taken from the pass itself, the norm is linear, and the parts add up to what
the model computes. Every layer has its own s_t: that of another layer would not do.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from andrea_jax.circuits.factors import norm_weights, output_matrices, through_norm
from andrea_jax.config import Model
from andrea_jax.model import Params, bind


class Component(NamedTuple):
    """Something that writes to the stream: kind "token", "position", "head", "bias" (b_O, which belongs to no head of
    its layer) or "mlp" (with its b_out); layer and head where it has them. Kind "norm" is the bias of the norm read
    through, no writer at all."""

    kind: str
    layer: int | None = None
    head: int | None = None

    @property
    def name(self) -> str:
        """ "token", "position", "head 1.2", "bias 1", "MLP 1"."""
        if self.layer is None:
            return self.kind
        where = f"{self.layer}" if self.head is None else f"{self.layer}.{self.head}"
        return f"{ {'mlp': 'MLP'}.get(self.kind, self.kind) } {where}"


@dataclass(frozen=True)
class Reading:
    """norm(stream)·D by component: parts float32 [component, position, column], in the order of `components`; they sum
    to whole [position, column], which the model's own stream gives."""

    components: list[Component]
    parts: np.ndarray
    whole: np.ndarray


def read(
    config: Model, params: Params, tokens: np.ndarray, stage: int, directions: Array, backend: str = "auto"
) -> Reading:
    """The stream before layer `stage` (n_layer: at the end) through its norm and directions [d_model, column], for one
    sequence of tokens int32 [position]. One forward pass in float32; compiled once a stage and shape."""
    parts, whole = _read(config, backend, stage, params, jnp.asarray(tokens), directions)
    return Reading(_components(config, stage), np.asarray(parts), np.asarray(whole))


def _components(config: Model, stage: int) -> list[Component]:
    """In the order in which they write, before layer `stage`."""
    found = [Component("token")] + [Component("position")] * (config.positions == "learned")
    for i in range(stage):
        found += [Component("head", i, head) for head in range(config.layer_heads[i])]
        found += [Component("bias", i)] * config.biases + [Component("mlp", i)] * (config.mlp_width > 0)
    return found + [Component("norm")] * (config.norm_weights and config.norm == "layer")


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
@jax.default_matmul_precision("highest")  # GPUs would round the factors of a float32 product
def _read(
    config: Model, backend: str, stage: int, params: Params, tokens: Array, directions: Array
) -> tuple[Array, Array]:
    linear = through_norm(config, params, stage, directions)
    embeddings = [params["W_E"][tokens]] + [params["W_P"][: len(tokens)] for _ in range(config.positions == "learned")]
    parts = [x @ linear for x in embeddings]
    stream = {}

    def listen(layer: int, point: str, value: Array) -> Array:
        if point in ("resid_pre", "resid_final"):
            stream[layer] = value
        if layer < stage and point == "z":
            parts.extend(jnp.einsum("thk,hkd,dm->htm", value[0], output_matrices(config, params, layer), linear))
            if config.biases:
                bias = params["layers"][str(layer)]["attention"]["projection"]["b_O"] @ linear
                parts.append(jnp.broadcast_to(bias[None], parts[0].shape))
        if layer < stage and point == "mlp_out":
            parts.append(value[0] @ linear)
        return value

    model = bind(config, params, backend=backend)
    model(tokens[None], tap=listen)
    norm = model.norm_final if stage == config.n_layer else model.layers[str(stage)].norm_attention
    whole = norm(stream[stage])[0] @ directions
    centre = stream[stage].mean(axis=-1, keepdims=True) if config.norm == "layer" else 0
    scale = jax.lax.rsqrt(jnp.square(stream[stage] - centre).mean(axis=-1) + 1e-5)  # that of model.norm
    scaled = jnp.stack(parts) * scale[0, :, None][None]
    if config.norm_weights and config.norm == "layer":
        bias = norm_weights(config, params, stage)["b_norm"] @ directions
        scaled = jnp.concatenate([scaled, jnp.broadcast_to(bias[None, None], scaled[:1].shape)])
    return scaled, whole
