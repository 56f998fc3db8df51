"""What the Mosaic kernels share: the static description of a call, tiles, buffers in shared memory, the schedule.

A kernel is persistent: one block a multiprocessor, each with `groups` warpgroups that compute and one that loads. A
block works through its units (a tile of rows of one head) in a fixed order, so that repeated runs are bitwise equal.
Loads run ahead over unit boundaries: they wait only for buffers to become free.

Hopper's matrix instructions multiply 64 rows a warpgroup, read their second operand from swizzled shared memory, and
take the contracted axis in steps of 16. A buffer is swizzled by the widest of 64, 32 and 16 columns that divides its
rows, so that head_dim 80 costs 80 columns and not 128. A head is one piece, and so one instruction where it is the
columns of a product; only head_dim 256, whose product would take too many registers, is cut into two `pieces`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
ROWS = 64  # of a warpgroup's tile

TILE = plgpu.Layout.WGMMA
BY_ROW = plgpu.Layout.WGMMA.reduce(1)  # one number a row of a TILE
BY_COLUMN = plgpu.Layout.WGMMA.reduce(0)

# Finite stand-ins for −inf: no difference of two of them is nan. HIDDEN / max(1, scale·log2 e) is a score that
# exponentiates to exactly 0 whatever the running maximum; FLOOR is the maximum of a row that has seen no key yet.
HIDDEN = -1e38
FLOOR = -1e30


@dataclass(frozen=True)
class Spec:
    """A call but its numbers. `scale` is above 0; head_dim is the padded one."""

    batch: int
    n_query: int
    n_key: int
    n_head: int
    n_kv_head: int
    head_dim: int
    dtype: str
    causal: bool
    scale: float
    entropy: bool
    length: int  # keys that exist, without padding
    limited: bool  # q_offset and length of each sequence are read from two arrays int32 [batch]; else 0 and `length`
    fused: bool  # q, k and v, and their gradients, lie in one array each, heads ordered q | k | v

    @property
    def group(self) -> int:
        return self.n_head // self.n_kv_head

    @property
    def first_heads(self) -> tuple[int, int, int]:
        """Where the heads of q, k and v, or of their gradients, begin in their arrays."""
        return (0, self.n_head, self.n_head + self.n_kv_head) if self.fused else (0, 0, 0)

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """(first column, width) of each."""
        width = self.head_dim if self.head_dim <= 192 else 128
        return tuple((start, width) for start in range(0, self.head_dim, width))

    @property
    def hidden(self) -> float:
        return HIDDEN / max(1.0, self.scale * LOG2E)

    def limits(self, refs, sequence: Array) -> tuple[Array, Array]:
        """(q_offset, number of keys) of a sequence; refs: the two arrays, or none."""
        if not self.limited:
            return jnp.int32(0), jnp.int32(self.length)
        offsets, lengths = refs
        return offsets[sequence], lengths[sequence]

    def seen(self, row: Array, offset: Array, length: Array) -> Array:
        """How many keys the query of this row sees."""
        n = lax.min(row + offset + 1, length) if self.causal else length
        return lax.max(n, jnp.int32(0))


@dataclass(frozen=True)
class Tiles:
    """How the work is cut: `groups` warpgroups of 64 rows each, a loop over `block` columns in `stages` buffers."""

    groups: int
    block: int
    stages: int
    slots: int  # buffers for what a unit keeps: at 2, the next unit's is loaded ahead

    @property
    def rows(self) -> int:
        return ROWS * self.groups

    @property
    def registers(self) -> int:
        """Of a computing thread; the loading warpgroup keeps 24."""
        return {1: 240, 2: 240, 3: 160}[self.groups]


def div(a: Array, b: int) -> Array:
    return lax.div(a, jnp.int32(b))


def rem(a: Array, b: int) -> Array:
    return lax.rem(a, jnp.int32(b))


def cdiv(a: Array, b: int) -> Array:
    return div(a + (b - 1), b)


def loop(start: Array | int, stop: Array | int, body: Callable[[Array], None]) -> None:
    lax.fori_loop(jnp.int32(start), jnp.int32(stop), lambda i, _: body(i), None)


def buffer(shape: tuple[int, ...], dtype):
    """Shared memory that matrix instructions read: [..., rows, columns], swizzled by its last axis."""
    width = next(width for width in (64, 32, 16) if shape[-1] % width == 0)
    transforms = (plgpu.TilingTransform((8, width)), plgpu.SwizzleTransform(2 * width))  # pyright: ignore[reportAbstractUsage]
    return plgpu.SMEM(shape, dtype, transforms=transforms)


def head_buffers(spec: Spec, *shape: int) -> list:
    """A buffer [*shape, width] for each piece of a head."""
    return [buffer((*shape, width), spec.dtype) for _, width in spec.pieces]


def accumulators(spec: Spec) -> list:
    """A tile of 64 rows by head_dim, float32, in registers, by pieces."""
    return [plgpu.WGMMAAccumulatorRef((ROWS, width), jnp.float32) for _, width in spec.pieces]


def load_head(spec: Spec, ref, rows: tuple, head: Array, buffers, at: tuple, barrier) -> None:
    """Starts copying rows (sequence, slice) of one head into `buffers[piece].at[at]`."""
    for (start, width), piece in zip(spec.pieces, buffers, strict=True):
        plgpu.copy_gmem_to_smem(ref.at[(*rows, head, pl.ds(start, width))], piece.at[at], barrier)


def store_head(spec: Spec, values, buffers, at: tuple, ref, rows: tuple, head: Array) -> None:
    """Writes a tile, by pieces, through `buffers[piece].at[at]` to rows (sequence, slice) of one head; rows beyond the
    array's end are dropped. The caller has seen to it that an earlier store from these buffers was read."""
    for piece, value in zip(buffers, values, strict=True):
        piece.at[at][...] = value.astype(spec.dtype)
    plgpu.commit_smem()
    for (start, width), piece in zip(spec.pieces, buffers, strict=True):
        plgpu.copy_smem_to_gmem(piece.at[at], ref.at[(*rows, head, pl.ds(start, width))])


def down(x: Array, shape: tuple[int, ...]) -> Array:
    """One number a row, along the columns."""
    return lax.broadcast_in_dim(x, shape, [0])


def across(x: Array, shape: tuple[int, ...]) -> Array:
    """One number a column, along the rows."""
    return lax.broadcast_in_dim(x, shape, [1])


def indices(shape: tuple[int, ...], axis: int, start: Array) -> Array:
    return plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=TILE) + start


def filled(shape: tuple[int, ...], value: float, layout) -> Array:
    return plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)


def multiply(values: Array, staged, accs, operands) -> None:
    """accs[piece] += values · operands[piece], values [64, n] from registers.

    JAX's interpreter of Mosaic kernels multiplies only what lies in shared memory: there it goes through `staged`.
    """
    source = values
    if staged is not None:
        staged[...] = values
        plgpu.commit_smem()
        source = staged
    for acc, operand in zip(accs, operands, strict=True):
        plgpu.wgmma(acc, source, operand)


@dataclass(frozen=True)
class Schedule:
    """Which units a block takes: all tiles of `n_tiles` × `n_heads`, on at most `blocks` blocks.

    Where there are more heads than blocks, a block takes whole heads one after the other (keys and values stay in the
    L2 cache), large and small tiles in turn; else all tiles by falling size, dealt out to and fro. Both balance a
    causal mask's triangle within a few per cent.
    """

    n_tiles: int
    n_heads: int  # over the batch
    blocks: int
    large_last: bool  # the last tile is the one with the most work

    @property
    def grid(self) -> int:
        return min(self.blocks, self.n_tiles * self.n_heads)

    @property
    def by_head(self) -> bool:
        return self.n_heads >= self.grid

    def _first(self, block: Array) -> Array:
        return div(block * jnp.int32(self.n_tiles * self.n_heads), self.grid)

    def count(self, block: Array) -> Array:
        """How many units this block takes."""
        if self.by_head:
            return self._first(block + 1) - self._first(block)
        rounds, left = divmod(self.n_tiles * self.n_heads, self.grid)
        place = block if rounds % 2 == 0 else self.grid - 1 - block
        return jnp.int32(rounds) + (place < left).astype(jnp.int32)

    def unit(self, i: Array, block: Array) -> tuple[Array, Array]:
        """(head over the batch, tile) of the block's i-th unit."""
        if self.by_head:
            at = self._first(block) + i
            head, place = div(at, self.n_tiles), rem(at, self.n_tiles)
            tile = lax.select(rem(place, 2) == 0, self.n_tiles - 1 - div(place, 2), div(place, 2))
            return head, tile
        turn = lax.select(rem(i, 2) == 0, block, self.grid - 1 - block)
        at = i * self.grid + turn
        tile = div(at, self.n_heads)
        return rem(at, self.n_heads), self.n_tiles - 1 - tile if self.large_last else tile


def run(body, spec: Spec, tiles: Tiles, schedule: Schedule, out: list, scratch: dict, interpret, *operands):
    """Launches body(refs): refs has the operands and outputs as a tuple `arrays` and the buffers by their names."""

    def kernel(*arrays, **buffers):
        body(SimpleNamespace(arrays=arrays, **buffers))

    kernel.__name__ = body.__name__
    return plgpu.kernel(
        kernel, out_type=out, scratch_types=scratch, grid=(schedule.grid,), grid_names=("block",),
        num_threads=tiles.groups + 1, thread_name="group",
        compiler_params=plgpu.CompilerParams(approx_math=True), interpret=interpret,
    )(*operands)  # fmt: skip


def roles(tiles: Tiles, compute: Callable[[Array], None], load: Callable[[], None]) -> None:
    """Runs compute(warpgroup) on the computing warpgroups and load() on the last, with their shares of registers."""
    group = lax.axis_index("group")

    @pl.when(group < tiles.groups)
    def _():
        plgpu.set_max_registers(tiles.registers, action="increase")
        compute(group)
        plgpu.wait_smem_to_gmem(0)

    @pl.when(group == tiles.groups)
    def _():
        plgpu.set_max_registers(24, action="decrease")
        load()


def drain(count: Array, buffers: int, *barriers) -> None:
    """Waits until the last `buffers` of `count` uses were freed: a block must not end with barriers in flight."""

    def wait(i: Array) -> None:
        for barrier in barriers:
            plgpu.barrier_wait(barrier.at[rem(i, buffers)])

    loop(lax.max(count - buffers, jnp.int32(0)), count, wait)


def row_type(spec: Spec, tiles: Tiles) -> jax.ShapeDtypeStruct:
    """float32 [batch, n_head, query], padded to whole tiles: a copy needs rows of a multiple of 16 bytes."""
    padded = -(-spec.n_query // tiles.rows) * tiles.rows
    return jax.ShapeDtypeStruct((spec.batch, spec.n_head, padded), jnp.float32)
