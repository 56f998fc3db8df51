"""The RMS norm and 1 / rms(x), which its derivative needs, in one pass over memory (Pallas on Triton)."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from andrea_jax.kernels.formulas import EPSILON

AT_ONCE = 2048  # numbers of each array that a block reads
WIDEST = 16384


def fits(*arrays: Array) -> bool:
    return arrays[0].shape[-1] <= WIDEST


def rows_of(d: int) -> tuple[int, int, triton.CompilerParams]:
    """How many rows a block takes, how many columns with those that are not there, and its warps."""
    wide = pl.next_power_of_2(d)
    return max(1, AT_ONCE // wide), wide, triton.CompilerParams(num_warps=max(4, wide // 512))


@functools.partial(jax.jit, static_argnames="interpret")  # traced and lowered once for all layers
def launch(x: Array, *, interpret: bool = False) -> tuple[Array, Array]:
    """`formulas.norm`; x [..., d]."""
    d, n = x.shape[-1], x.size // x.shape[-1]
    high, wide, how = rows_of(d)
    block, one = pl.BlockSpec((high, wide), lambda i: (i, 0)), pl.BlockSpec((high,), lambda i: (i,))
    y, r = pl.pallas_call(
        functools.partial(_kernel, n=n, d=d),
        out_shape=[jax.ShapeDtypeStruct((n, d), x.dtype), jax.ShapeDtypeStruct((n,), jnp.float32)],
        grid=(pl.cdiv(n, high),), in_specs=[block], out_specs=[block, one], interpret=interpret, name="norm",
        compiler_params=how,
    )(x.reshape(n, d))  # fmt: skip
    return y.reshape(x.shape), r.reshape(x.shape[:-1])


def _kernel(x_ref, y_ref, r_ref, *, n: int, d: int) -> None:
    high, wide = x_ref.shape
    row = pl.program_id(0) * high + jnp.arange(high)
    there = (jnp.arange(wide)[None, :] < d) & (row < n)[:, None]
    x = triton.load(x_ref, mask=there, other=0.0).astype(jnp.float32)
    r = jax.lax.rsqrt(jnp.sum(x * x, axis=1) / d + EPSILON)
    triton.store(y_ref, (x * r[:, None]).astype(y_ref.dtype), mask=there)
    triton.store(r_ref, r, mask=row < n)
