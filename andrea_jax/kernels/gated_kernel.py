"""(g · wᵀ) where a gate is not 0, and else 0: the derivative that goes back through a ReLU, in one Mosaic kernel.

XLA computes the product with a library, which has no such ending, and then reads and writes the result once more. Here
each tile meets its gate in shared memory while it is still in registers.

A kernel is persistent, one block a multiprocessor: two warpgroups compute 64 rows each of a tile of 128 × 192, one
loads ahead, over the borders of tiles. The result takes the gate's place in shared memory and is copied out while the
next tile is multiplied.
"""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

GROUPS, ROWS = 2, 64
HIGH, WIDE, DEEP = GROUPS * ROWS, 192, 64  # a tile's rows and columns, and how much of the summed axis a step takes
STAGES = 4
BLOCKS = 132  # multiprocessors of an H100 and an H200
ASIDE = 4  # steps of a tile before its gate is asked for: by then the result before it has left


def fits(g: Array, w: Array, gate: Array) -> bool:
    """Whether these are bfloat16 and whole tiles."""
    if not g.dtype == w.dtype == gate.dtype == jnp.bfloat16:
        return False
    rows, k = g.size // g.shape[-1], g.shape[-1]
    return rows % HIGH == w.shape[0] % WIDE == k % DEEP == 0 and k > ASIDE * DEEP


@functools.partial(jax.jit, static_argnames=("blocks", "interpret"))  # traced and lowered once for all layers
def launch(g: Array, w: Array, gate: Array, *, blocks: int = BLOCKS, interpret=False) -> Array:
    """`formulas.gated_product` of arrays that fit."""
    rows, k = g.size // g.shape[-1], g.shape[-1]
    shape = rows // HIGH, w.shape[0] // WIDE, k // DEEP
    scratch = {
        "g": _buffer((STAGES, GROUPS, ROWS, DEEP)), "w": _buffer((STAGES, WIDE, DEEP)),
        "gate": _buffer((GROUPS, ROWS, WIDE)),
        "full": plgpu.Barrier(num_arrivals=GROUPS + 1, num_barriers=STAGES),
        "free": plgpu.Barrier(num_arrivals=GROUPS, num_barriers=STAGES),
        "gate_full": plgpu.Barrier(num_barriers=GROUPS), "gate_free": plgpu.Barrier(num_barriers=GROUPS),
    }  # fmt: skip

    def gated_product(*arrays, **buffers):
        kernel = _Gated(shape, blocks, SimpleNamespace(arrays=arrays, **buffers))
        group = lax.axis_index("group")

        @pl.when(group < GROUPS)
        def _():
            plgpu.set_max_registers(240, action="increase")
            kernel.compute(group)
            plgpu.wait_smem_to_gmem(0)

        @pl.when(group == GROUPS)
        def _():
            plgpu.set_max_registers(24, action="decrease")
            kernel.load()

    out = plgpu.kernel(
        gated_product, out_type=jax.ShapeDtypeStruct((rows, w.shape[0]), g.dtype), scratch_types=scratch,
        grid=(min(blocks, shape[0] * shape[1]),), grid_names=("block",), num_threads=GROUPS + 1, thread_name="group",
        interpret=interpret,
    )(g.reshape(rows, k), w, gate.reshape(rows, -1))  # fmt: skip
    return out.reshape(gate.shape)


def _buffer(shape: tuple[int, ...]):
    width = min(64, shape[-1])
    transforms = (plgpu.TilingTransform((8, width)), plgpu.SwizzleTransform(2 * width))  # pyright: ignore[reportAbstractUsage]
    return plgpu.SMEM(shape, jnp.bfloat16, transforms=transforms)


def _loop(start, stop, body) -> None:
    lax.fori_loop(jnp.int32(start), jnp.int32(stop), lambda i, _: body(i), None)


class _Gated:
    """The kernel while it is traced: a unit is a tile of the result."""

    def __init__(self, shape: tuple[int, int, int], blocks: int, refs):
        self.n_high, self.n_wide, self.steps = shape
        self.refs = refs
        self.g_ref, self.w_ref, self.gate_ref, self.out_ref = refs.arrays
        self.block, self.grid = lax.axis_index("block"), min(blocks, self.n_high * self.n_wide)
        units = self.n_high * self.n_wide
        self.units = lax.div(units - 1 - self.block, jnp.int32(self.grid)) + 1

    def place(self, i: Array) -> tuple[Array, Array]:
        """First row and first column of the block's i-th tile: at a time, all blocks work on the same few rows of g."""
        at = i * self.grid + self.block
        return lax.div(at, jnp.int32(self.n_wide)) * HIGH, lax.rem(at, jnp.int32(self.n_wide)) * WIDE

    def load(self) -> None:
        _loop(0, self.units, self._load_unit)
        total = self.units * self.steps  # a block must not end with barriers in flight
        _loop(
            lax.max(total - STAGES, jnp.int32(0)), total, lambda j: plgpu.barrier_wait(self.refs.free.at[self._at(j)])
        )
        for group in range(GROUPS):
            plgpu.barrier_wait(self.refs.gate_free.at[group])

    def _at(self, j: Array) -> Array:
        return lax.rem(j, jnp.int32(STAGES))

    def _load_unit(self, i: Array) -> None:
        row, column = self.place(i)
        refs, before = self.refs, i * self.steps

        def step(j: Array) -> None:
            at, here = self._at(before + j), pl.ds(j * DEEP, DEEP)
            pl.when(before + j >= STAGES)(lambda: plgpu.barrier_wait(refs.free.at[at]))
            for group in range(GROUPS):
                rows = pl.ds(row + group * ROWS, ROWS)
                plgpu.copy_gmem_to_smem(self.g_ref.at[rows, here], refs.g.at[at, group], refs.full.at[at])
            plgpu.copy_gmem_to_smem(self.w_ref.at[pl.ds(column, WIDE), here], refs.w.at[at], refs.full.at[at])

        _loop(0, ASIDE + 1, step)
        for group in range(GROUPS):
            pl.when(i > 0)(lambda group=group: plgpu.barrier_wait(refs.gate_free.at[group]))
            gate = self.gate_ref.at[pl.ds(row + group * ROWS, ROWS), pl.ds(column, WIDE)]
            plgpu.copy_gmem_to_smem(gate, refs.gate.at[group], refs.gate_full.at[group])
        _loop(ASIDE + 1, self.steps, step)

    def compute(self, group: Array) -> None:
        def unit(i: Array) -> None:
            product = pl.run_scoped(
                lambda acc: self._multiply(i, group, acc), plgpu.WGMMAAccumulatorRef((ROWS, WIDE), jnp.float32)
            )
            self._finish(i, group, product)

        _loop(0, self.units, unit)
        self._release_gate(group)

    def _release_gate(self, group: Array) -> None:
        """The last result has left shared memory, so that the next gate may be loaded there."""
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        plgpu.barrier_arrive(self.refs.gate_free.at[group])

    def _multiply(self, i: Array, group: Array, acc) -> Array:
        refs, before = self.refs, i * self.steps

        def step(j: Array) -> None:
            at = self._at(before + j)
            plgpu.barrier_wait(refs.full.at[at])
            plgpu.wgmma(acc, refs.g.at[at, group], refs.w.at[at].transpose((1, 0)))
            plgpu.wgmma_wait(1)  # the product of the step before is finished
            pl.when(j > 0)(lambda: plgpu.barrier_arrive(refs.free.at[self._at(before + j - 1)]))

        _loop(0, ASIDE, step)
        pl.when(i > 0)(lambda: self._release_gate(group))
        _loop(ASIDE, self.steps, step)
        product = acc[...]
        plgpu.barrier_arrive(refs.free.at[self._at(before + self.steps - 1)])
        return product

    def _finish(self, i: Array, group: Array, product: Array) -> None:
        row, column = self.place(i)
        gate = self.refs.gate.at[group]
        plgpu.barrier_wait(self.refs.gate_full.at[group])
        open_ = plgpu.load(gate, layout=plgpu.Layout.WGMMA) != 0
        gate[...] = jnp.where(open_, product, 0.0).astype(jnp.bfloat16)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(gate, self.out_ref.at[pl.ds(row + group * ROWS, ROWS), pl.ds(column, WIDE)])
