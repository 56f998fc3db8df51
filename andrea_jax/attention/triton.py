"""Attention in Triton kernels, called through jax-triton: CUDA devices from compute capability 8.0 on.

The kernels are in `triton_kernels.py`. jax-triton knows neither gradients nor `vmap` nor sharding, so they are taught
here: `custom_vjp` gives the first, `batching` the others. Forward mode and second derivatives are missing; backend
"reference" has them.
"""

from collections.abc import Mapping
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from math import log
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, ShapeDtypeStruct

from andrea_jax.attention.backends import Backend, Call, parts, split
from andrea_jax.attention.batching import for_each_batch_and_head, once
from andrea_jax.attention.keeping import kept
from andrea_jax.attention.tiles import TritonTile, TritonTiles, triton_tiles

KERNELS = "andrea_jax.attention.triton_kernels"
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
    return _attention(static, (q, k, v), first, kv_length)


def attention_fused(
    qkv: Array, n_head: int, *, causal: bool, scale: float, entropy: bool
) -> tuple[Array, Array, Array | None]:
    """(z, lse, entropy or None); arguments and shapes as in `andrea_jax.attention.attention_fused`."""
    if scale < 0:  # what is changed is copied anyway
        q, k, v = split(qkv, n_head)
        return attention(q, k, v, causal=causal, scale=scale, q_offset=0, kv_length=None, entropy=entropy)
    call = Call.of(qkv, causal, 0)
    assert call.cuda is not None  # or _why_not has refused the call
    static = _Static(causal, scale, entropy, triton_tiles(call.cuda, call.dtype, call.head_dim), n_head)
    return _attention(static, (qkv,), None, None)


class _Static(NamedTuple):
    causal: bool
    scale: float
    entropy: bool
    tiles: TritonTiles
    n_head: int | None = None  # where q, k and v are parts of one array; how else to tell q's heads from the others?

    @property
    def fused(self) -> bool:
        return self.n_head is not None


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(static: _Static, tensors, q_offset, kv_length):
    """tensors: q, k and v, or all three in one."""
    return _forward(static, tensors, q_offset, kv_length)[0]


def _forward(static: _Static, tensors, *limits):
    launch = once(_launch_forward, static)
    z, t_sum, entropy = kept(for_each_batch_and_head(launch, *tensors, *limits, fused=static.fused))
    lse = jnp.where(t_sum == UNSEEN, -jnp.inf, t_sum * log(2))  # its own scores in the backward need t_sum unrounded
    return (z, lse, entropy), (*tensors, *limits, z, t_sum, entropy)


def _backward(static: _Static, saved, cotangents):
    launch = once(_launch_backward, static)
    return for_each_batch_and_head(launch, *saved, *cotangents, fused=static.fused), None, None


_attention.defvjp(_forward, _backward)


# -- launches ----------------------------------------------------------------------------------------------------------


def _launch_forward(static: _Static, *arrays):
    q, k, v, (q_offset, kv_length) = parts(arrays, static.fused)
    heads, tile = _Heads.of(static, q, k), static.tiles.forward
    z, row = _like(q, heads.n_head), _row_of(q, heads.n_head)
    inputs = _inputs(static, heads, tile, q, k, v, q_offset, kv_length) | {"entropy": None}
    outputs = {"z": z, "t_sum": row} | ({"entropy": row} if static.entropy else {})
    z, t_sum, *entropy = _launch("forward", _programs(z, tile.queries), tile, inputs, outputs)
    return z, t_sum, *(entropy or [None])


def _launch_backward(static: _Static, *arrays):
    q, k, v, (q_offset, kv_length, z, t_sum, entropy, dz, dlse, dentropy) = parts(arrays, static.fused)
    heads, tile = _Heads.of(static, q, k), static.tiles.backward_queries
    rest = {"z": z, "t_sum": t_sum, "entropy": entropy, "dz": dz, "dlse": dlse, "dentropy": dentropy}
    inputs = _inputs(static, heads, tile, q, k, v, q_offset, kv_length) | rest
    outputs = {"dq": _like(q), "rows": ShapeDtypeStruct((*t_sum.shape, 4), t_sum.dtype)}
    dq, rows = _launch("backward_queries", _programs(z, tile.queries), tile, inputs, outputs)

    tile = static.tiles.backward_keys
    rest = {"dz": dz, "rows": rows, "dentropy": dentropy, "dv": None, "RAGGED": q.shape[1] % tile.queries > 0}
    inputs = _inputs(static, heads, tile, q, k, v, q_offset, kv_length) | rest
    programs = _programs(_like(k, heads.n_kv_head), tile.keys)
    if heads.fused:  # all gradients into the memory of dq
        return _launch("backward_keys", programs, tile, inputs, {"dk": dq})
    return dq, *_launch("backward_keys", programs, tile, inputs, {"dk": _like(k), "dv": _like(v)})


class _Heads(NamedTuple):
    """How many heads, and where they lie in the arrays."""

    n_head: int
    n_kv_head: int
    fused: bool

    @staticmethod
    def of(static: _Static, q: Array, k: Array) -> "_Heads":
        if static.n_head is None:
            return _Heads(q.shape[2], k.shape[2], False)
        return _Heads(static.n_head, (k.shape[2] - static.n_head) // 2, True)

    def constants(self) -> dict[str, Input]:
        n_head, n_kv_head, fused = self
        rows = {"Q_HEADS": n_head, "KV_HEADS": n_kv_head, "K_FIRST": 0, "V_FIRST": 0}
        if fused:
            n = n_head + 2 * n_kv_head
            rows = {"Q_HEADS": n, "KV_HEADS": n, "K_FIRST": n_head, "V_FIRST": n_head + n_kv_head}
        return {"N_HEAD": n_head, "N_KV_HEAD": n_kv_head, **rows}


def _inputs(static: _Static, heads: _Heads, tile: TritonTile, q, k, v, q_offset, kv_length) -> dict[str, Input]:
    arrays = {"q": q, "k": k, "v": v, "q_offset": q_offset, "kv_length": kv_length}
    sizes = {"n_query": q.shape[1], "n_key": k.shape[1], "QUERIES": tile.queries, "KEYS": tile.keys}
    numbers = {"HEAD_DIM": q.shape[3], "SCALE": static.scale / log(2), "CAUSAL": static.causal}
    return arrays | sizes | heads.constants() | numbers


def _programs(x: ShapeDtypeStruct | Array, rows: int) -> int:
    batch, length, n_head, _ = x.shape
    return -(-length // rows) * n_head * batch


def _like(x: Array, heads: int | None = None) -> ShapeDtypeStruct:
    batch, length, n, head_dim = x.shape
    return ShapeDtypeStruct((batch, length, heads or n, head_dim), x.dtype)


def _row_of(q: Array, n_head: int) -> ShapeDtypeStruct:
    return ShapeDtypeStruct((q.shape[0], n_head, q.shape[1]), jnp.float32)


def _launch(
    kernel: str,
    programs: int,
    tile: TritonTile,
    inputs: dict[str, Input],
    outputs: Mapping[str, ShapeDtypeStruct | Array],
) -> tuple[Array, ...]:
    """Runs a kernel, a name of `triton_kernels.py` or "module:name". What `outputs` names is not passed on from
    `inputs`; an array among them is written over, where the kernel writes."""
    module, _, name = kernel.rpartition(":")
    over = {key: jax.new_ref(x) for key, x in outputs.items() if isinstance(x, Array)}
    fresh = {key: x for key, x in outputs.items() if key not in over}
    found = jax_triton()(
        **{key: x for key, x in inputs.items() if key not in outputs},
        **over,
        kernel=getattr(import_module(module or KERNELS), name),
        out_type=tuple(fresh.values()),
        grid=programs,
        num_warps=tile.warps,
        num_stages=tile.stages,
        backend_options={"maxnreg": tile.registers, "enable_fp_fusion": True},  # off by default from Triton 3.10 on
    )
    written = dict(zip(fresh, found, strict=True)) | {key: jax.freeze(ref) for key, ref in over.items()}
    return tuple(written[key] for key in outputs)


@cache
def jax_triton():
    """jax-triton's way to call a kernel. Both are imported where they are used, for most runs need neither."""
    library = import_module("jax_triton.triton_lib")
    # jax-triton 0.4.1 gives up on CUDA where Triton lacks a name, as before 3.7, that only tensor descriptors need
    vars(library)["cb"] = import_module("triton.backends.nvidia.compiler")
    return library.triton_call


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


BACKEND = Backend("triton", attention, _why_not, attend_fused=attention_fused)
