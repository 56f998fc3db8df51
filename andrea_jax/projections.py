"""Per-head and fused projections: two ways to store and multiply the same numbers.

Both modules have the same two methods, so a model holds either:

    q, k, v = projection.project(x)     x [batch, seq, d_model] -> [batch, seq, n_head or n_kv_head, head_dim]
    y = projection.combine(z)           z [batch, seq, n_head, head_dim] -> [batch, seq, d_model]

and one that is None where the weights lie apart: qkv = projection.project_fused(x), all heads in one array.

n_head and n_kv_head are those of the layer: a pruned model (`heads_per_layer`) has fewer in some.

Per head, q_h = x·W_Q^h with W_Q [n_head, d_model, head_dim]; fused, the heads' matrices lie side by side in
W_QKV [d_model, (n_head + 2·n_kv_head)·head_dim], columns ordered q | k | v, heads contiguous in each.
`fuse_heads` and `split_heads` convert the weights: exact inverses, bit for bit.
"""

from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from andrea_jax.attention import split
from andrea_jax.config import Model
from andrea_jax.functions import matmul

Weights = dict[str, Array]  # W_Q, W_K, W_V (or W_QKV), W_O where it is learned, and b_... where there are biases


class Projection(Protocol):
    """What attention needs of a projection."""

    n_head: int

    def project_fused(self, x: Array) -> Array | None: ...

    def project(self, x: Array) -> tuple[Array, Array, Array]: ...

    def combine(self, z: Array) -> Array: ...


def initial_weights(config: Model, key: Array, layer: int = 0) -> Weights:
    """Draws the per-head weights of a layer, float32; the fused projection fuses these same numbers.

    W_Q, W_K, W_V ~ N(0, 1/d_model); W_O ~ N(0, 1/(fan_in·2·n_layer)), so that 2·n_layer residual additions
    keep the variance of the stream (the scaling of Radford et al. 2019, section 2.3); biases 0.
    """
    d, h, n_head = config.d_model, config.head_dim, config.layer_heads[layer]
    n_kv = n_head // config.group
    keys = dict(zip("QKVO", jax.random.split(key, 4), strict=True))
    heads = {"Q": n_head, "K": n_kv, "V": n_kv}
    weights = {f"W_{name}": jax.random.normal(keys[name], (n, d, h)) * d**-0.5 for name, n in heads.items()}
    if config.w_o != "identity":
        width, fan_in = (d, n_head * h) if config.w_o == "free" else (h, h)
        scale = (fan_in * 2 * config.n_layer) ** -0.5
        weights["W_O"] = jax.random.normal(keys["O"], (n_head, h, width)) * scale
    if config.biases:
        weights |= {f"b_{name}": jnp.zeros((n, h)) for name, n in heads.items()} | {"b_O": jnp.zeros(d)}
    return weights


def fuse_heads(weights: Weights, form: str = "one") -> Weights:
    """Per-head weights laid side by side: W_QKV for form "one", 2-D W_Q, W_K, W_V for form "three".

    W_O [n_head, head_dim, d_model] becomes [n_head·head_dim, d_model]; a block-diagonal W_O
    [n_head, head_dim, head_dim] keeps its blocks. Copies numbers, computes none.
    """
    fused = {name: value for name, value in weights.items() if name == "b_O"}
    d = weights["W_Q"].shape[1]
    for name in "QKV":
        n, _, h = weights[f"W_{name}"].shape
        fused[f"W_{name}"] = weights[f"W_{name}"].transpose(1, 0, 2).reshape(d, n * h)
        if f"b_{name}" in weights:
            fused[f"b_{name}"] = weights[f"b_{name}"].reshape(n * h)
    if "W_O" in weights:
        n, h, width = weights["W_O"].shape
        fused["W_O"] = weights["W_O"] if width == h != d else weights["W_O"].reshape(n * h, width)
    if form == "one":
        for kind in ("W", "b"):
            if f"{kind}_Q" in fused:
                fused[f"{kind}_QKV"] = jnp.concatenate([fused.pop(f"{kind}_{name}") for name in "QKV"], axis=-1)
    return fused


def split_heads(weights: Weights, n_head: int, n_kv_head: int | None = None) -> Weights:
    """The inverse of `fuse_heads`, for either form."""
    n_kv = n_head if n_kv_head is None else n_kv_head
    heads = {"Q": n_head, "K": n_kv, "V": n_kv}
    flat = dict(weights)
    for kind in ("W", "b"):
        if f"{kind}_QKV" in flat:
            joined = flat.pop(f"{kind}_QKV")
            h = joined.shape[-1] // (n_head + 2 * n_kv)
            parts = jnp.split(joined, [n_head * h, (n_head + n_kv) * h], axis=-1)
            flat |= {f"{kind}_{name}": part for name, part in zip("QKV", parts, strict=True)}
    split = {name: value for name, value in flat.items() if name == "b_O"}
    for name, n in heads.items():
        d, columns = flat[f"W_{name}"].shape
        split[f"W_{name}"] = flat[f"W_{name}"].reshape(d, n, columns // n).transpose(1, 0, 2)
        if f"b_{name}" in flat:
            split[f"b_{name}"] = flat[f"b_{name}"].reshape(n, columns // n)
    if "W_O" in flat:
        w_o = flat["W_O"]
        split["W_O"] = w_o if w_o.ndim == 3 else w_o.reshape(n_head, -1, w_o.shape[-1])
    return split


class _Stored(nnx.Module):
    """Weights as parameters named as in the equations, cast to the dtype of what they multiply."""

    def __init__(self, config: Model, weights: Weights, layer: int):
        self.config, self.n_head = config, config.layer_heads[layer]
        for name, value in weights.items():
            setattr(self, name, nnx.Param(value))

    def project_fused(self, x: Array) -> Array | None:
        """x [batch, seq, d_model] -> q | k | v as one matmul leaves them, [batch, seq, n_head + 2·n_kv_head, head_dim];
        None where there is no such matmul."""
        return None

    def _weight(self, name: str, like: Array) -> Array:
        return getattr(self, name)[...].astype(like.dtype)

    def _plus_bias(self, name: str, x: Array) -> Array:
        """x + b_name over the leading axes, where the model has biases."""
        if not self.config.biases:
            return x
        bias = self._weight(f"b_{name}", x)
        return x + jnp.expand_dims(bias, range(x.ndim - bias.ndim))

    def _combine_blocks(self, z: Array) -> Array:
        """W_O that mixes no heads: identity, or one head_dim × head_dim block a head."""
        if self.config.w_o == "block_diagonal":
            n, h = z.shape[2:]
            z = jnp.einsum("bthk,hkj->bthj", z, self._weight("W_O", z).reshape(n, h, h))  # of one head it is 2-D, fused
        return self._plus_bias("O", z.reshape(*z.shape[:2], -1))


class PerHeadProjection(_Stored):
    """q_h = x·W_Q^h for every head h; y = Σ_h z_h·W_O^h.

    `projection_form` "einsum" makes all heads in one dot, "loop" really runs n_head matmuls a matrix.
    """

    def __init__(self, config: Model, key: Array, layer: int = 0):
        super().__init__(config, initial_weights(config, key, layer), layer)

    def project(self, x: Array) -> tuple[Array, Array, Array]:
        """x [batch, seq, d_model] -> q [batch, seq, n_head, head_dim], k and v [batch, seq, n_kv_head, head_dim]."""
        return self._one("Q", x), self._one("K", x), self._one("V", x)

    def _one(self, name: str, x: Array) -> Array:
        with jax.named_scope(f"W_{name}"):
            w = self._weight(f"W_{name}", x)
            if self.config.form == "loop":
                heads = jnp.stack([matmul(x, w_head) for w_head in w], axis=2)
            else:
                heads = matmul(x, w.swapaxes(0, 1))
            return self._plus_bias(name, heads)

    def combine(self, z: Array) -> Array:
        """z [batch, seq, n_head, head_dim] -> Σ_h z_h·W_O^h [batch, seq, d_model]."""
        with jax.named_scope("W_O"):
            if self.config.w_o != "free":
                return self._combine_blocks(z)
            w_o = self._weight("W_O", z)
            if self.config.form == "loop":
                first, *others = (matmul(z[:, :, h], w_o[h]) for h in range(self.n_head))
                y = sum(others, start=first)
            else:
                y = matmul(z.reshape(*z.shape[:2], -1), w_o.reshape(-1, w_o.shape[-1]))
            return self._plus_bias("O", y)


class FusedProjection(_Stored):
    """[q | k | v] = x·W_QKV, heads by reshape; y = concat(z)·W_O.

    `projection_form` "one" keeps W_QKV [d_model, (n_head + 2·n_kv_head)·head_dim]; "three" keeps
    W_Q, W_K, W_V [d_model, n·head_dim] apart.
    """

    def __init__(self, config: Model, key: Array, layer: int = 0):
        super().__init__(config, fuse_heads(initial_weights(config, key, layer), config.form), layer)

    def project(self, x: Array) -> tuple[Array, Array, Array]:
        """x [batch, seq, d_model] -> q [batch, seq, n_head, head_dim], k and v [batch, seq, n_kv_head, head_dim]."""
        qkv = self.project_fused(x)
        return (self._one("Q", x), self._one("K", x), self._one("V", x)) if qkv is None else split(qkv, self.n_head)

    def project_fused(self, x: Array) -> Array | None:
        return self._one("QKV", x) if self.config.form == "one" else None

    def _one(self, name: str, x: Array) -> Array:
        with jax.named_scope(f"W_{name}"):
            heads = self._plus_bias(name, matmul(x, self._weight(f"W_{name}", x)))
            return heads.reshape(*x.shape[:2], -1, self.config.head_dim)

    def combine(self, z: Array) -> Array:
        """z [batch, seq, n_head, head_dim] -> concat(z)·W_O [batch, seq, d_model]."""
        with jax.named_scope("W_O"):
            if self.config.w_o != "free":
                return self._combine_blocks(z)
            return self._plus_bias("O", matmul(z.reshape(*z.shape[:2], -1), self._weight("W_O", z)))


PROJECTIONS = {"per_head": PerHeadProjection, "fused": FusedProjection}
