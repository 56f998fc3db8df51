"""Attention by the project's own Pallas kernels on Mosaic GPU: Hopper (compute capability 9.0), bfloat16 and float16.

q, k and v are read where they lie, [batch, seq, n_head, head_dim]: a head is a stride, nothing is transposed, and one
launch serves all heads. Where they are parts of one array, q | k | v, it is read in place, and their gradients are
written into one such array. lse and entropy come from the kernel in float32. Backward is two kernels (dq; dk and dv)
without atomic additions. The equations are those of `chunked`.

head_dim is padded to 16, 32, 48, 64, 80, 96, 128, 160, 192 or 256, and lengths to a multiple of 8, where they are not
(the copy engine moves whole tiles of 8 rows); the padding is cut off again.
"""

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from andrea_jax.attention.backends import Backend, Call, parts, split
from andrea_jax.attention.batching import for_each_batch_and_head, once
from andrea_jax.attention.keeping import kept

HEAD_DIMS = (16, 32, 48, 64, 80, 96, 128, 160, 192, 256)
LONG = 4096  # queries from which three warpgroups a block pay off in the dq kernel (docs/log.md)
_interpreter: list = []  # what `interpreted` has set


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
    if scale <= 0:  # the kernels fold the scale into the maximum of the scores
        q, scale = (-q, -scale) if scale else (0 * q, 1.0)
    limits = (None, None)
    if kv_length is not None or not (isinstance(q_offset, int) and q_offset == 0):
        length = jnp.full(q.shape[:1], k.shape[1], jnp.int32)
        limits = (
            jnp.full(q.shape[:1], q_offset, jnp.int32),
            length if kv_length is None else jnp.clip(kv_length, 0, length),
        )
    static = _Static(causal, scale, entropy, k.shape[1], _interpreter[-1] if _interpreter else None)
    z, lse, *rest = _attention(static, tuple(_padded(x) for x in (q, k, v)), *limits)
    n_query, head_dim = q.shape[1], q.shape[3]
    return z[:, :n_query, :, :head_dim], lse[..., :n_query], rest[0][..., :n_query] if rest else None


def attention_fused(
    qkv: Array, n_head: int, *, causal: bool, scale: float, entropy: bool
) -> tuple[Array, Array, Array | None]:
    """(z, lse, entropy or None); arguments and shapes as in `andrea_jax.attention.attention_fused`."""
    if scale <= 0 or _padding(qkv.shape) is not None:  # what is changed or padded is copied anyway
        q, k, v = split(qkv, n_head)
        return attention(q, k, v, causal=causal, scale=scale, q_offset=0, kv_length=None, entropy=entropy)
    static = _Static(causal, scale, entropy, qkv.shape[1], _interpreter[-1] if _interpreter else None, n_head)
    z, lse, *rest = _attention(static, (qkv,), None, None)
    return z, lse, rest[0] if rest else None


@contextlib.contextmanager
def interpreted(params) -> Iterator[None]:
    """Inside it the kernels run in JAX's interpreter on the CPU; `params` is a `plgpu.InterpretGPUParams`."""
    _interpreter.append(params)
    try:
        yield
    finally:
        _interpreter.pop()


class _Static(NamedTuple):
    causal: bool
    scale: float
    entropy: bool
    length: int  # of the keys, without padding
    interpreter: object
    n_head: int | None = None  # where q, k and v are parts of one array; how else to tell q's heads from the others?

    @property
    def fused(self) -> bool:
        return self.n_head is not None


def _padding(shape: tuple[int, ...]) -> tuple[tuple[int, int], ...] | None:
    """What to add behind the last position and the last component, up to what the kernels take; None: nothing."""
    head_dim = next(size for size in HEAD_DIMS if size >= shape[3])
    more = ((0, 0), (0, -shape[1] % 8), (0, 0), (0, head_dim - shape[3]))
    return more if any(after for _, after in more) else None


def _padded(x: Array) -> Array:
    more = _padding(x.shape)
    return x if more is None else jnp.pad(x, more)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(static: _Static, tensors, q_offset, kv_length):
    """tensors: q, k and v, or all three in one."""
    return _forward(static, tensors, q_offset, kv_length)[0]


def _forward(static: _Static, tensors, *limits):
    launch = once(_launch_forward, static)
    outputs = kept(for_each_batch_and_head(launch, *tensors, *limits, fused=static.fused))
    return outputs, (tensors, limits, outputs)


def _backward(static: _Static, saved, cotangents):
    tensors, limits, (z, *rows) = saved
    dz = cotangents[0].astype(z.dtype)
    numbers = _row_numbers(static.scale, z, dz, rows, cotangents[1:])
    launch = once(_launch_backward, static)
    return for_each_batch_and_head(launch, *tensors, *limits, dz, *numbers, fused=static.fused), None, None


_attention.defvjp(_forward, _backward)


def _launch_forward(static: _Static, *arrays):
    from andrea_jax.attention.mosaic_forward import forward  # Pallas is loaded where it is used

    q, k, v, limits = parts(arrays, static.fused)
    spec = _spec(static, q, k, limits)
    arguments = (static.interpreter, q, k, v, limits if spec.limited else ())
    z, *rows = forward(spec, _forward_tiles(spec.head_dim), _blocks(), *arguments)
    return z, *(row[..., : q.shape[1]] for row in rows)


def _launch_backward(static: _Static, *arrays):
    from andrea_jax.attention.mosaic_backward import backward_kv, backward_q

    q, k, v, (q_offset, kv_length, dz, *numbers) = parts(arrays, static.fused)
    spec = _spec(static, q, k, (q_offset, kv_length))
    tiles_q, tiles_kv = _backward_tiles(spec.head_dim, spec.n_query)
    whole = math.lcm(tiles_q.rows, tiles_kv.block, 128)
    rows = [jnp.pad(x, ((0, 0), (0, 0), (0, -spec.n_query % whole))) for x in numbers]
    limits = (q_offset, kv_length) if spec.limited else ()
    arguments = (_blocks(), static.interpreter, q, k, v, dz, rows, limits)
    dq = backward_q(spec, tiles_q, *arguments)
    at_once = (("k", "v"),) if spec.head_dim <= 128 else (("k",), ("v",))
    if not spec.fused:
        return dq, *(x for wanted in at_once for x in backward_kv(spec, tiles_kv, *arguments, wanted))
    together = jax.new_ref(dq)  # what follows is written into its memory
    for wanted in at_once:
        backward_kv(spec, tiles_kv, *arguments, wanted, together)
    return (jax.freeze(together),)


def _row_numbers(scale: float, z: Array, dz: Array, rows, drows) -> list[Array]:
    """What the backward kernels need of each row: lse / log 2, shift and, with an entropy, slope (`mosaic_gradients`),
    float32 [batch, n_head, query]."""
    lse = jnp.where(jnp.isneginf(rows[0]), 0.0, rows[0])  # of a row without keys, all of whose scores are hidden
    shift = jnp.einsum("bqhd,bqhd->bhq", z.astype(jnp.float32), dz.astype(jnp.float32)) - drows[0]
    found = [lse / jnp.log(2.0), shift]
    if len(rows) == 2:
        found[1] = shift + drows[1] * (rows[1] - lse)
        found.append(drows[1] * scale)
    return found


def _spec(static: _Static, q: Array, k: Array, limits):
    from andrea_jax.attention.mosaic_parts import Spec

    (batch, n_query, n_head, head_dim), (_, n_key, n_kv_head, _) = q.shape, k.shape
    if static.n_head is not None:
        n_head, n_kv_head = static.n_head, (n_head - static.n_head) // 2
    return Spec(
        batch, n_query, n_key, n_head, n_kv_head, head_dim, q.dtype.name, static.causal, static.scale, static.entropy,
        static.length, limits[0] is not None, static.fused,
    )  # fmt: skip


def _forward_tiles(head_dim: int):
    from andrea_jax.attention.mosaic_parts import Tiles

    if head_dim <= 128:
        return Tiles(groups=2, block=128, stages=2, slots=2 if head_dim <= 96 else 1)
    return Tiles(groups=2 if head_dim <= 192 else 1, block=64, stages=2, slots=1)


def _backward_tiles(head_dim: int, n_query: int):
    """For dq, and for dk and dv: what fits into 227 KB of shared memory and was fastest on an H200 (docs/log.md)."""
    from andrea_jax.attention.mosaic_parts import Tiles

    if head_dim <= 64:
        tiles = Tiles(groups=2, block=64, stages=4, slots=2)
        return (Tiles(groups=3, block=64, stages=4, slots=1) if n_query >= LONG else tiles), tiles
    if head_dim <= 96:
        tiles = Tiles(groups=2, block=64, stages=3, slots=2)
    else:
        tiles = Tiles(groups=2 if head_dim <= 128 else 1, block=64, stages=2, slots=1)
    return tiles, tiles


def _blocks() -> int:
    """One block a multiprocessor; an H200's number where there is no GPU (the interpreter, lowering on a CPU host)."""
    device = jax.devices()[0]
    return device.core_count if device.platform == "gpu" else 132


def _why_not(call: Call) -> str | None:
    if not _interpreter:
        if call.cuda is None:
            return f"needs a CUDA device, and this one is {call.device}"
        if call.cuda != (9, 0):
            return "needs Hopper's matrix instructions (compute capability 9.0), and {} has {}.{}".format(
                call.device, *call.cuda
            )
    if call.dtype not in ("bfloat16", "float16"):
        return (
            f"needs bfloat16 or float16 inputs, not {call.dtype} (its matrix instructions would round float32 to TF32)"
        )
    if call.head_dim % 8 or not 16 <= call.head_dim <= 256:
        return f"needs a head_dim that is a multiple of 8 from 16 to 256, not {call.head_dim}"
    return None


def _faster(call: Call) -> str | None:
    """cuDNN with wide heads, for which the kernels have too few registers (docs/log.md)."""
    return "cudnn" if call.head_dim > 96 else None


BACKEND = Backend("mosaic", attention, _why_not, _faster, attention_fused)
