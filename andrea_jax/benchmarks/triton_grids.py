# type: ignore  # the language of Triton, not Python's
"""The forward Triton kernel on another grid, for `benchmarks.grids`. This file imports triton, and not JAX."""

import triton
import triton.language as tl
from triton.language import constexpr

from andrea_jax.attention.triton_kernels import forward_tile


@triton.jit
def forward_of_a_head(
    q, k, v, q_offset, kv_length, z, t_sum, entropy, n_query, n_key,
    SCALE: constexpr, CAUSAL: constexpr, N_HEAD: constexpr, N_KV_HEAD: constexpr, HEAD_DIM: constexpr,
    Q_HEADS: constexpr, KV_HEADS: constexpr, K_FIRST: constexpr, V_FIRST: constexpr,
    QUERIES: constexpr, KEYS: constexpr,
):  # fmt: skip
    """As `triton_kernels.forward`, but a program owns one head of one sequence and computes its tiles in turn."""
    head, batch = tl.program_id(0) % N_HEAD, tl.program_id(0) // N_HEAD
    for start in range(0, n_query, QUERIES):
        forward_tile(
            start, head, batch, q, k, v, q_offset, kv_length, z, t_sum, entropy, n_query, n_key,
            SCALE, CAUSAL, N_HEAD, N_KV_HEAD, HEAD_DIM, Q_HEADS, KV_HEADS, K_FIRST, V_FIRST, QUERIES, KEYS,
        )  # fmt: skip
