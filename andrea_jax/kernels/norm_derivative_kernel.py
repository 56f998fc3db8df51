"""The derivative of the RMS norm together with what reaches x past it, in one pass over memory (Pallas on Triton).

XLA makes two passes over y and g, of which the first keeps a number a row.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from andrea_jax.kernels.norm_kernel import fits, rows_of

__all__ = ["fits", "launch"]


@functools.partial(jax.jit, static_argnames="interpret")  # traced and lowered once for all layers
def launch(y: Array, r: Array, g: Array, past: Array, *, interpret: bool = False) -> Array:
    """`formulas.norm_derivative`; y, g, past [..., d] of one dtype, r [...]."""
    d, n = y.shape[-1], y.size // y.shape[-1]
    high, wide, how = rows_of(d)
    block, one = pl.BlockSpec((high, wide), lambda i: (i, 0)), pl.BlockSpec((high,), lambda i: (i,))
    out = pl.pallas_call(
        functools.partial(_kernel, n=n, d=d), out_shape=jax.ShapeDtypeStruct((n, d), y.dtype),
        grid=(pl.cdiv(n, high),), in_specs=[block, one, block, block], out_specs=block, interpret=interpret,
        name="norm_derivative", compiler_params=how,
    )(y.reshape(n, d), r.reshape(n), g.reshape(n, d), past.reshape(n, d))  # fmt: skip
    return out.reshape(y.shape)


def _kernel(y_ref, r_ref, g_ref, past_ref, out_ref, *, n: int, d: int) -> None:
    high, wide = y_ref.shape
    row = pl.program_id(0) * high + jnp.arange(high)
    there = (jnp.arange(wide)[None, :] < d) & (row < n)[:, None]
    y, g, past = (triton.load(ref, mask=there, other=0.0).astype(jnp.float32) for ref in (y_ref, g_ref, past_ref))
    r = triton.load(r_ref, mask=row < n, other=0.0)[:, None]
    along = jnp.sum(y * g, axis=1, keepdims=True) / d
    triton.store(out_ref, (past + r * (g - y * along)).astype(out_ref.dtype), mask=there)
