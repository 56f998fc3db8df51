"""Attention in Triton kernels, called through jax-triton: CUDA devices from compute capability 8.0 on.

The kernels are in `triton_kernels.py`. jax-triton knows neither gradients nor `vmap` nor sharding, so they are taught
here: `custom_vjp` gives the first, `batching` the others. Forward mode and second derivatives are missing; backend
"reference" has them.
"""

from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from math import log
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, ShapeDtypeStruct

from andrea_jax.attention.backends import Backend, Call
from andrea_jax.attention.batching import for_each_batch_and_head
from andrea_jax.attention.tiles import TritonTile, TritonTiles, triton_tiles

UNSEEN = 1e30  # as in `triton_kernels.py`

type Input = Array | int | float | bool | None


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool,
    scale: float,
    q_offset: int | Array,
    kv_length: Array | None,
    entropy: bool,
) -> tuple[Array, Array, Array | None]:
    """(z, lse, entropy or None); arguments and shapes as in `andrea_jax.attention.attention`."""
    call = Call.of(q, causal, q_offset)
    assert call.cuda is not None  # or _why_not has refused the call
    if scale < 0:  # the kernels take the largest score of a row before they scale it
        q, scale = -q, -scale
    moved = causal and not call.from_zero
    first = jnp.broadcast_to(jnp.asarray(q_offset, jnp.int32), q.shape[:1]) if moved else None
    static = _Static(causal, scale, entropy, triton_tiles(call.cuda, call.dtype, call.head_dim))
    return _attention(static, q, k, v, first, kv_length)


class _Static(NamedTuple):
    causal: bool
    scale: float
    entropy: bool
    tiles: TritonTiles


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(static: _Static, q, k, v, q_offset, kv_length):
    return _forward(static, q, k, v, q_offset, kv_length)[0]


def _forward(static: _Static, *inputs):
    z, t_sum, entropy = for_each_batch_and_head(partial(_launch_forward, static), *inputs)
    lse = jnp.where(t_sum == UNSEEN, -jnp.inf, t_sum * log(2))  # its own scores in the backward need t_sum unrounded
    return (z, lse, entropy), (*inputs, z, t_sum, entropy)


def _backward(static: _Static, saved, cotangents):
    dq, dk, dv = for_each_batch_and_head(partial(_launch_backward, static), *saved, *cotangents)
    return dq, dk, dv, None, None


_attention.defvjp(_forward, _backward)


# -- launches ----------------------------------------------------------------------------------------------------------


def _launch_forward(static: _Static, q, k, v, q_offset, kv_length):
    tile, row = static.tiles.forward, _row_of(q)
    inputs = _inputs(static, tile, q, k, v, q_offset, kv_length) | {"entropy": None}
    outputs = {"z": _like(q), "t_sum": row} | ({"entropy": row} if static.entropy else {})
    z, t_sum, *entropy = _launch("forward", _programs(q, tile.queries), tile, inputs, outputs)
    return z, t_sum, *(entropy or [None])


def _launch_backward(static: _Static, q, k, v, q_offset, kv_length, z, t_sum, entropy, dz, dlse, dentropy):
    tile, row = static.tiles.backward_queries, _row_of(q)
    rest = {"z": z, "t_sum": t_sum, "entropy": entropy, "dz": dz, "dlse": dlse, "dentropy": dentropy}
    inputs = _inputs(static, tile, q, k, v, q_offset, kv_length) | rest
    outputs = {"dq": _like(q), "rows": ShapeDtypeStruct((*row.shape, 4), row.dtype)}
    dq, rows = _launch("backward_queries", _programs(q, tile.queries), tile, inputs, outputs)

    tile = static.tiles.backward_keys
    rest = {"dz": dz, "rows": rows, "dentropy": dentropy, "RAGGED": q.shape[1] % tile.queries > 0}
    inputs = _inputs(static, tile, q, k, v, q_offset, kv_length) | rest
    outputs = {"dk": _like(k), "dv": _like(v)}
    return dq, *_launch("backward_keys", _programs(k, tile.keys), tile, inputs, outputs)


def _inputs(static: _Static, tile: TritonTile, q, k, v, q_offset, kv_length) -> dict[str, Input]:
    arrays = {"q": q, "k": k, "v": v, "q_offset": q_offset, "kv_length": kv_length}
    sizes = {"n_query": q.shape[1], "n_key": k.shape[1], "QUERIES": tile.queries, "KEYS": tile.keys}
    heads = {"N_HEAD": q.shape[2], "N_KV_HEAD": k.shape[2], "HEAD_DIM": q.shape[3]}
    return arrays | sizes | heads | {"SCALE": static.scale / log(2), "CAUSAL": static.causal}


def _programs(x: Array, rows: int) -> int:
    batch, length, n_head, _ = x.shape
    return -(-length // rows) * n_head * batch


def _like(x: Array) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(x.shape, x.dtype)


def _row_of(q: Array) -> ShapeDtypeStruct:
    batch, n_query, n_head, _ = q.shape
    return ShapeDtypeStruct((batch, n_head, n_query), jnp.float32)


def _launch(
    kernel: str, programs: int, tile: TritonTile, inputs: dict[str, Input], outputs: dict[str, ShapeDtypeStruct]
) -> tuple[Array, ...]:
    """Runs a kernel of `triton_kernels.py`. What `outputs` names is not passed on from `inputs`."""
    triton_call, kernels = jax_triton()
    return triton_call(
        **{name: x for name, x in inputs.items() if name not in outputs},
        kernel=getattr(kernels, kernel),
        out_type=tuple(outputs.values()),
        grid=programs,
        num_warps=tile.warps,
        num_stages=tile.stages,
        backend_options={"maxnreg": tile.registers, "enable_fp_fusion": True},  # off by default from Triton 3.10 on
    )


@cache
def jax_triton():
    """jax-triton's way to call a kernel, and the kernels: imported here, because most runs need neither."""
    library = import_module("jax_triton.triton_lib")
    # jax-triton 0.4.1 gives up on CUDA where Triton lacks a name, as before 3.7, that only tensor descriptors need
    vars(library)["cb"] = import_module("triton.backends.nvidia.compiler")
    return library.triton_call, import_module("andrea_jax.attention.triton_kernels")


def _why_not(call: Call) -> str | None:
    if call.cuda is None:
        return f"needs a CUDA device, and this one is {call.device}"
    if call.cuda < (8, 0):
        return "needs compute capability 8.0, and {} has {}.{}".format(call.device, *call.cuda)
    if call.dtype not in ("bfloat16", "float16", "float32"):
        return f"needs bfloat16, float16 or float32 inputs, not {call.dtype}"
    if call.head_dim % 8 or not 16 <= call.head_dim <= 256:
        return f"needs a head_dim that is a multiple of 8 from 16 to 256, not {call.head_dim}"
    if not (find_spec("triton") and find_spec("jax_triton")):
        return "needs the package jax-triton, which is not installed"
    return None


BACKEND = Backend("triton", attention, _why_not)
