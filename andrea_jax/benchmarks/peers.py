"""Other people's attention, to compare with: each is timed where it can be imported, and its absence is said.

q, k, v are [batch, seq, n_head, head_dim] for the peers in JAX and [batch, n_head, seq, head_dim], contiguous, for
those in torch (`torch_peers`): what the users of each have.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec

import jax
from jax import Array

from andrea_jax.attention import triton
from andrea_jax.benchmarks import torch_peers
from andrea_jax.errors import UserError, did_you_mean

Attend = Callable[[Array, Array, Array], Array]

TORCH = tuple(torch_peers.KERNELS)
PEERS = ("jax-xla", "jax-cudnn", "fa3", "tokamax", *TORCH)


def known(names: Sequence[str], choices: Sequence[str], what: str) -> tuple[str, ...]:
    """The names; raises UserError for one that is none of the choices."""
    for name in names:
        if name not in choices:
            listed = ", ".join(f'"{choice}"' for choice in choices)
            raise UserError(f'{what} must be one of {listed}, not "{name}"{did_you_mean(name, choices)}')
    return tuple(names)


def why_absent(name: str) -> str | None:
    """Why the peer cannot be timed here; None where it can."""
    if name != "jax-xla" and jax.default_backend() != "gpu":
        return "needs a CUDA device"
    try:
        torch_peers.load() if name in TORCH else load(name)
    except Exception as error:  # whatever importing somebody's package raises
        return f"cannot be imported: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None


def load(name: str) -> Attend:
    """Causal attention of a JAX peer. Raises what importing it raises."""
    if name == "fa3":  # FlashAttention-3 through XLA's FFI, PyPI dew-flash-attn-cu13
        from dew_flash_attn import flash_mha  # pyright: ignore[reportMissingImports]

        return partial(flash_mha, is_causal=True)
    if name == "tokamax":
        if find_spec("jax_triton"):
            triton.jax_triton()  # before tokamax imports it
        from tokamax import dot_product_attention  # pyright: ignore[reportMissingImports]

        return partial(dot_product_attention, is_causal=True, implementation="mosaic")
    implementation = "xla" if name == "jax-xla" else "cudnn"
    return lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)
