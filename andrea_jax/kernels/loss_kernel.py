"""Cross-entropy of logits and its derivative in one pass over them (Pallas on Triton): a row lies in registers, cut
into powers of two. XLA reads the logits three times.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

ALIGNED = 64
WIDEST = 65536


def fits(logits: Array, targets: Array) -> bool:
    return logits.shape[-1] % ALIGNED == 0 and logits.shape[-1] <= WIDEST


@functools.partial(jax.jit, static_argnames=("vocab", "dtype", "interpret"))
def launch(logits: Array, targets: Array, *, vocab: int, dtype, interpret: bool = False) -> tuple[Array, Array]:
    """`formulas.cross_entropy`."""
    n, width = targets.size, logits.shape[-1]
    warps = max(4, pl.next_power_of_2(width) // 4096)
    row, one = pl.BlockSpec((None, width), lambda i: (i, 0)), pl.BlockSpec((None,), lambda i: (i,))
    loss, d_logits = pl.pallas_call(
        functools.partial(_kernel, vocab=vocab),
        out_shape=[jax.ShapeDtypeStruct((n,), jnp.float32), jax.ShapeDtypeStruct((n, width), dtype)],
        grid=(n,), in_specs=[row, one], out_specs=[one, row], interpret=interpret, name="cross_entropy",
        compiler_params=triton.CompilerParams(num_warps=warps),
    )(logits.reshape(n, width), targets.reshape(n))  # fmt: skip
    return loss.reshape(targets.shape), d_logits.reshape(logits.shape)


def _powers_of_two(width: int) -> list[tuple[int, int]]:
    """(start, size) of parts that are powers of two, the largest first."""
    parts, start = [], 0
    while start < width:
        size = 1 << ((width - start).bit_length() - 1)
        parts.append((start, size))
        start += size
    return parts


def _kernel(logits_ref, target_ref, loss_ref, d_ref, *, vocab: int) -> None:
    target, parts = target_ref[...], _powers_of_two(logits_ref.shape[0])
    columns = [start + jnp.arange(size) for start, size in parts]
    logits = [logits_ref[pl.ds(start, size)] for start, size in parts]
    logits = [jnp.where(column < vocab, part, -jnp.inf) for column, part in zip(columns, logits, strict=True)]
    top = functools.reduce(jnp.maximum, [part.max() for part in logits])
    powers = [jnp.exp(part - top) for part in logits]
    total = sum(part.sum() for part in powers)
    chosen = sum(jnp.where(column == target, part, 0.0).sum() for column, part in zip(columns, logits, strict=True))
    loss_ref[...] = top + jnp.log(total) - chosen
    for (start, size), column, part in zip(parts, columns, powers, strict=True):
        d_ref[pl.ds(start, size)] = (part / total - (column == target)).astype(d_ref.dtype)
