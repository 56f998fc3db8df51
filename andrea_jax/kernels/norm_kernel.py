"""The derivative of the RMS norm together with what reaches x past it, in one pass over memory (Pallas on Triton).

XLA makes two passes over x and g, of which the first keeps two numbers a row, and may add the rest in a third.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from andrea_jax.kernels.formulas import EPSILON

AT_ONCE = 2048  # numbers of each array that a block reads
WIDEST = 16384


def fits(x: Array, g: Array, past: Array) -> bool:
    return x.shape[-1] <= WIDEST and x.dtype == g.dtype == past.dtype


@functools.partial(jax.jit, static_argnames="interpret")  # traced and lowered once for all layers
def launch(x: Array, g: Array, past: Array, *, interpret: bool = False) -> Array:
    """`formulas.norm_derivative`; x, g, past [..., d] of one dtype."""
    d, n = x.shape[-1], x.size // x.shape[-1]
    wide = pl.next_power_of_2(d)
    high = max(1, AT_ONCE // wide)
    block = pl.BlockSpec((high, wide), lambda i: (i, 0))
    out = pl.pallas_call(
        functools.partial(_kernel, n=n, d=d), out_shape=jax.ShapeDtypeStruct((n, d), x.dtype),
        grid=(pl.cdiv(n, high),), in_specs=[block] * 3, out_specs=block, interpret=interpret, name="norm_derivative",
        compiler_params=triton.CompilerParams(num_warps=max(4, wide // 512)),
    )(*(array.reshape(n, d) for array in (x, g, past)))  # fmt: skip
    return out.reshape(x.shape)


def _kernel(x_ref, g_ref, past_ref, out_ref, *, n: int, d: int) -> None:
    high, wide = x_ref.shape
    row = pl.program_id(0) * high + jnp.arange(high)[:, None]
    there = (jnp.arange(wide)[None, :] < d) & (row < n)
    x, g, past = (triton.load(ref, mask=there, other=0.0).astype(jnp.float32) for ref in (x_ref, g_ref, past_ref))
    r = jax.lax.rsqrt(jnp.sum(x * x, axis=1, keepdims=True) / d + EPSILON)
    along = r * r * r * (jnp.sum(x * g, axis=1, keepdims=True) / d)
    triton.store(out_ref, (past + (r * g - x * along)).astype(out_ref.dtype), mask=there)
