"""Kernels that differ in their grid alone: what a program owns (C12)."""

from jax import Array

from andrea_jax.attention import attention, triton
from andrea_jax.attention.backends import Call
from andrea_jax.attention.tiles import triton_tiles
from andrea_jax.benchmarks.peers import Attend
from andrea_jax.errors import UserError


def by_tile(q: Array, k: Array, v: Array) -> Array:
    """z of causal attention: a program for each tile of queries of each head, as backend "triton" has it."""
    return attention(q, k, v, backend="triton")[0]


def by_head(q: Array, k: Array, v: Array) -> Array:
    """The same numbers by the same kernel: a program for each head of each sequence, one tile after the other.

    Raises UserError where backend "triton" cannot run.
    """
    call, (batch, _, n_head, head_dim) = Call.of(q, True, 0), q.shape
    reason = triton.BACKEND.why_not(call)
    if reason is not None or call.cuda is None:
        raise UserError(f'the grids of "triton" cannot run here: it {reason}')
    static = triton._Static(True, head_dim**-0.5, False, triton_tiles(call.cuda, call.dtype, head_dim))
    heads, tile = triton._Heads.of(static, q, k), static.tiles.forward
    inputs = triton._inputs(static, heads, tile, q, k, v, None, None) | {"entropy": None}
    outputs = {"z": triton._like(q), "t_sum": triton._row_of(q, n_head)}
    return triton._launch(
        "andrea_jax.benchmarks.triton_grids:forward_of_a_head", batch * n_head, tile, inputs, outputs
    )[0]


# (q, k, v) -> z, by name, beside the backend they belong to; the first is what the others are compared with
GRIDS: dict[str, dict[str, Attend]] = {"triton": {"a program a tile": by_tile, "a program a head": by_head}}
