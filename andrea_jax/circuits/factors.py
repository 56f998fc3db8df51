"""The matrices by which heads read and write, kept as products of thin factors.

    W_QK^h = W_Q^h·(W_K^h)ᵀ   [d_model, d_model]   x_q·W_QK·x_kᵀ is the score of a query and a key, times √head_dim
    W_OV^h = W_V^h·W_O^h      [d_model, d_model]   x_k·W_OV is what the head writes for a key it attends to

Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", section "Attention heads as information
movement" (there matrices act on columns; here, as in the code, on rows). Both have rank head_dim at most, so that
eigenvalues, singular values and norms need head_dim × head_dim matrices only. Of the norm before the layer they hold
what is linear, its gain and the centring of a "layer" norm; its scale, rotary positions and all biases they ignore.
Everything here is float64 numpy, whatever the model computes in; the weights themselves are float32.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from andrea_jax.config import Model
from andrea_jax.model import Params
from andrea_jax.projections import split_heads

READS = ("W_Q", "W_K", "W_V")  # what reads the stream, through the norm


@dataclass(frozen=True)
class Factored:
    """The matrices left·right, never multiplied out: left [..., row, r], right [..., r, column], r small."""

    left: np.ndarray
    right: np.ndarray

    def matrix(self) -> np.ndarray:
        """left·right [..., row, column]."""
        return self.left @ self.right

    @property
    def T(self) -> "Factored":
        """The transposed matrices."""
        return Factored(self.right.swapaxes(-1, -2), self.left.swapaxes(-1, -2))

    def __matmul__(self, other: "Factored") -> "Factored":
        """The products self·other, with the rank of self."""
        return Factored(self.left, (self.right @ other.left) @ other.right)

    def core(self) -> np.ndarray:
        """[..., r, r] matrices with the singular values of left·right, made of the triangular factors of both sides."""
        return triangle(self.left) @ triangle(self.T.left).swapaxes(-1, -2)

    def norm(self) -> np.ndarray:
        """Frobenius norms [...]."""
        return np.linalg.norm(self.core(), axis=(-2, -1))

    def singular_values(self) -> np.ndarray:
        """The r largest singular values, descending [..., r]; all others are 0."""
        return np.linalg.svd(self.core(), compute_uv=False)

    def eigenvalues(self) -> np.ndarray:
        """r eigenvalues of the square matrices, complex [..., r]: those of right·left; all others are 0."""
        return np.linalg.eigvals(self.right @ self.left)


def triangle(tall: np.ndarray) -> np.ndarray:
    """The triangular factor R [..., r, r] of tall [..., row, r] = Q·R: it keeps all lengths, ‖tall·y‖ = ‖R·y‖."""
    return np.linalg.qr(tall, mode="r")


@dataclass(frozen=True)
class HeadWeights:
    """One layer's weights, a matrix a head, float64: W_Q, W_K, W_V [n_head, d_model, head_dim] with the norm's gain and
    centring in them, W_O [n_head, head_dim, d_model]. Heads that share a key–value head each have their copy of it;
    where W_O is not free, a head writes to its own components only."""

    W_Q: np.ndarray
    W_K: np.ndarray
    W_V: np.ndarray
    W_O: np.ndarray

    @property
    def qk(self) -> Factored:
        """W_Q·W_Kᵀ of every head, [n_head, d_model, d_model]; see the module for what it ignores."""
        return Factored(self.W_Q, self.W_K.swapaxes(-1, -2))

    @property
    def ov(self) -> Factored:
        """W_V·W_O of every head, [n_head, d_model, d_model]; see the module for what it ignores."""
        return Factored(self.W_V, self.W_O)


def by_head(config: Model, params: Params) -> list[HeadWeights]:
    """Every layer's weights, head by head; the same numbers for either projection."""
    return [_layer(config, params, layer) for layer in range(config.n_layer)]


def _layer(config: Model, params: Params, layer: int) -> HeadWeights:
    split = per_head(config, params, layer)
    read = {name: np.asarray(through_norm(config, params, layer, split[name]), np.float64) for name in READS}
    read |= {name: np.repeat(read[name], config.group, axis=0) for name in ("W_K", "W_V")}
    return HeadWeights(**read, W_O=np.asarray(output_matrices(config, params, layer), np.float64))


def per_head(config: Model, params: Params, layer: int) -> Params:
    """A layer's attention weights as the per-head projection stores them, of either projection."""
    weights, n_head = params["layers"][str(layer)]["attention"]["projection"], config.layer_heads[layer]
    return weights if config.projection == "per_head" else split_heads(weights, n_head, n_head // config.group)


def output_matrices(config: Model, params: Params, layer: int) -> Array:
    """W_O of every head of a layer, [n_head, head_dim, d_model], of either projection and for every `w_o`."""
    n, h = config.layer_heads[layer], config.head_dim
    weights = params["layers"][str(layer)]["attention"]["projection"]
    if config.w_o == "free":
        return weights["W_O"].reshape(n, h, config.d_model)
    blocks = weights["W_O"].reshape(n, h, h) if config.w_o == "block_diagonal" else jnp.eye(h)[None]
    return (jnp.eye(n)[:, None, :, None] * blocks[:, :, None]).reshape(n, h, config.d_model)


def through_norm(config: Model, params: Params, stage: int, reads: Array) -> Array:
    """What norm(x)·reads is of x but for the scale: reads [..., d_model, column] with the gain and the centring of the
    norm before layer `stage` (n_layer: the final one)."""
    if config.norm_weights:
        reads = norm_weights(config, params, stage)["gain"][:, None] * reads
    return reads - reads.mean(axis=-2, keepdims=True) if config.norm == "layer" else reads


def norm_weights(config: Model, params: Params, stage: int) -> Params:
    """gain and, of a "layer" norm, b_norm of the norm before layer `stage` (n_layer: the final one)."""
    return params["norm_final"] if stage == config.n_layer else params["layers"][str(stage)]["norm_attention"]


def unembedding(config: Model, params: Params) -> Array:
    """W_U [d_model, vocab_size], which is W_Eᵀ where the embeddings are tied."""
    return params["W_E"].T if config.tied_embeddings else params["W_U"]
