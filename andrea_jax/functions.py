"""What the model computes, without parameters: a product, norm, ReLU, rotary positions.

Each in a form that XLA turns into few passes over memory; docs/log.md has what that gave.
"""

import jax
import jax.numpy as jnp
from jax import Array


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


@jax.custom_vjp
def _over_rms(x: Array) -> Array:
    wide = x.astype(jnp.float32)
    return (wide * _inverse_rms(wide)).astype(x.dtype)


def _inverse_rms(wide: Array) -> Array:
    return jax.lax.rsqrt(jnp.square(wide).mean(axis=-1, keepdims=True) + 1e-5)


def _over_rms_backward(x: Array, g: Array) -> tuple[Array]:
    """With r = 1 / rms(x): r·g − x·r³·mean(x·g)."""
    x, g = jax.lax.optimization_barrier((x, g))  # keeps XLA from sharing r with the forward pass: there and here the
    wide, g32 = x.astype(jnp.float32), g.astype(jnp.float32)  # sums are then one pass each, and r is not stored
    r = _inverse_rms(wide)
    return ((r * g32 - wide * (r**3 * (wide * g32).mean(axis=-1, keepdims=True))).astype(x.dtype),)


_over_rms.defvjp(lambda x: (_over_rms(x), x), _over_rms_backward)


@jax.custom_jvp
def relu(x: Array) -> Array:
    """max(x, 0), whose derivative reads the result: so x is never stored, and on a GPU the product ends with the max.

    (Not "result > 0", which XLA turns back into x > 0.)
    """
    return jnp.maximum(x, 0)


relu.defjvps(lambda g, ans, x: jnp.where(ans != 0, g, jnp.zeros_like(g)))


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
