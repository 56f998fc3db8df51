"""What the model computes, without parameters: a product, norm, ReLU, rotary positions.

Each in a form that takes few passes over memory; docs/log.md has what that gave.
"""

import jax
import jax.numpy as jnp
from jax import Array

from andrea_jax import kernels
from andrea_jax.kernels import formulas


def matmul(x: Array, w: Array) -> Array:
    """x·w over the last axis of x [batch, seq, m] and the first of w [m, ...], as one product of two matrices.

    As one, because the derivative by w then sums over one axis, batch·seq. With two axes to sum over XLA on a CPU
    transposes one operand and takes a routine three times as slow, which was 40% of the quickstart's step.
    """
    rows = x.reshape(-1, x.shape[-1])
    product = _narrowing(rows, w) if w.ndim == 2 and w.shape[0] > w.shape[1] else jnp.tensordot(rows, w, axes=1)
    return product.reshape(*x.shape[:-1], *w.shape[1:])


@jax.custom_vjp
def _narrowing(rows: Array, w: Array) -> Array:
    """rows·w. On a CPU the derivative by w, tall, is computed as its transpose, wide, and turned: 0.6 of the time."""
    return rows @ w


def _narrowing_backward(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    rows, w = saved

    def turned(rows: Array, g: Array) -> Array:
        return jax.lax.optimization_barrier(jnp.einsum("nk,nm->km", g, rows)).T  # XLA would swap the operands back

    return g @ w.T, jax.lax.platform_dependent(rows, g, cpu=turned, default=lambda rows, g: rows.T @ g)


_narrowing.defvjp(lambda rows, w: (rows @ w, (rows, w)), _narrowing_backward)


def norm(x: Array, kind: str) -> Array:
    """x / rms(x), or (x − mean(x)) / std(x) for kind "layer"; over the last axis in float32, epsilon 1e-5, no gain."""
    if kind == "layer":
        wide = x.astype(jnp.float32)
        return _over_rms(wide - wide.mean(axis=-1, keepdims=True)).astype(x.dtype)
    return _over_rms(x)


# What the backward pass keeps of a norm is its result, which the product behind it keeps anyway, and 1 / rms(x): not x,
# so that what is added to x is added in place.


@jax.custom_vjp
def _over_rms(x: Array) -> Array:
    return formulas.norm(x)[0]


def _over_rms_forward(x: Array) -> tuple[Array, tuple[Array, Array]]:
    y, r = kernels.norm(x)
    return y, (y, r)


def _over_rms_backward(kept: tuple[Array, Array], g: Array) -> tuple[Array]:
    y, r = kept
    return (formulas.norm_derivative(y, r, g, None),)


_over_rms.defvjp(_over_rms_forward, _over_rms_backward)


@jax.custom_vjp
def beside_norm(x: Array) -> tuple[Array, Array]:
    """(x, x / rms(x)): what goes past a layer, and what goes into it. Their gradients are joined in one pass."""
    return x, formulas.norm(x)[0]


def _beside_norm_forward(x: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    y, kept = _over_rms_forward(x)
    return (x, y), kept


def _beside_norm_backward(kept: tuple[Array, Array], gradients: tuple[Array, Array]) -> tuple[Array]:
    (y, r), (past, g) = kept, gradients
    return (kernels.norm_derivative(y, r, g, past),)


beside_norm.defvjp(_beside_norm_forward, _beside_norm_backward)


@jax.custom_vjp
def relu_matmul(x: Array, w: Array) -> Array:
    """max(x, 0)·w, x [batch, seq, m], w [m, n]. Its derivative reads max(x, 0), so x is never stored, and on a GPU the
    product that makes x ends with the max."""
    return matmul(jnp.maximum(x, 0), w)


def _relu_matmul_forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
    positive = jnp.maximum(x, 0)
    return matmul(positive, w), (positive, w)


def _relu_matmul_backward(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    positive, w = saved
    _, dw = jax.vjp(matmul, positive, w)[1](g)
    return kernels.gated_product(g, w, positive), dw


relu_matmul.defvjp(_relu_matmul_forward, _relu_matmul_backward)


def rotate(x: Array, positions: Array, base: float) -> Array:
    """Rotary positions (Su et al. 2021, section 3.2): component j pairs with j + head_dim/2, and the pair turns by
    position·base^(−2j/head_dim).

    x [batch, seq, n_head, head_dim], positions [seq] -> the same shape and dtype, computed in float32.
    """
    half = x.shape[-1] // 2
    angle = positions[:, None].astype(jnp.float32) * base ** (-jnp.arange(half, dtype=jnp.float32) / half)[None]
    cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
    a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
