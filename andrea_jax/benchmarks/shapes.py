"""Shapes of attention, what they cost, and numbers to fill them with."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from andrea_jax.benchmarks.programs import Call

PASSES = ("forward", "forward + entropy", "forward + backward")


class Shape(NamedTuple):
    """q, k, v [batch, seq, n_head, head_dim]."""

    batch: int
    seq: int
    n_head: int
    head_dim: int

    def __str__(self) -> str:
        return " × ".join(map(str, self))


# Short and long sequences, narrow and wide heads: batch × seq is what a training step of that length has
SHORT = (Shape(32, 1024, 12, 64), Shape(32, 1024, 12, 32), Shape(8, 1024, 12, 72), Shape(16, 2048, 12, 128))
LONG = (Shape(4, 8192, 12, 64), Shape(1, 16384, 12, 64))
SMALL = (Shape(2, 256, 4, 32), Shape(1, 512, 4, 64))  # for a CPU


def flops(shape: Shape, passes: str) -> int:
    """Floating-point operations of causal attention, as everybody counts them.

    Forward: two products, q·kᵀ and P·v, of 2·seq²·head_dim each a head, half of it under the causal mask. Backward:
    five products, 2.5 times as much. Softmax and entropy are not counted.
    """
    forward = 2 * shape.batch * shape.n_head * shape.seq**2 * shape.head_dim
    return forward * 7 // 2 if passes == "forward + backward" else forward


def inputs(shape: Shape, dtype: str) -> tuple[Array, Array, Array, Array]:
    """q, k, v and the cotangent of z, standard normal."""
    return tuple(jax.random.normal(jax.random.key(i), tuple(shape), jnp.dtype(dtype)) for i in range(4))  # pyright: ignore[reportReturnType]


def with_backward(call: Call, n: int) -> Call:
    """(n arguments of `call`, cotangents of its results) -> (results, gradients of the arguments).

    The results are returned so that no form of attention may leave out the product that only they need.
    """

    def both(*arguments):
        result, pull = jax.vjp(call, *arguments[:n])
        return result, pull(jax.tree.unflatten(jax.tree.structure(result), arguments[n:]))

    return both


def dtype_here() -> str:
    """What the benchmarks compute in: bfloat16, and float32 on a CPU, which has no bfloat16 units."""
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"
