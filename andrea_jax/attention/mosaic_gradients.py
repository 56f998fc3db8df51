"""What the two backward Mosaic kernels share: buffers, loads, the pattern and the gradient of its scores.

Both compute the pattern again from the row's log-sum-exp (in units of log 2), and dS from two vectors with one number
a row, `shift` and `slope` (the equations are those of `chunked`, with the row's constants gathered):

    P = exp2(c S − lse)    dS = P ∘ (dz vᵀ − shift − slope ∘ S)
    shift = Σ dz ∘ z − dlse + dentropy (entropy − lse)    slope = dentropy · scale, left out where no entropy was asked

A unit owns a tile of two tensors and walks along tiles of two others.
"""

import functools
from abc import ABC, abstractmethod

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from andrea_jax.attention import mosaic_parts as parts
from andrea_jax.attention.mosaic_parts import LOG2E, ROWS, TILE, Schedule, Spec, Tiles, div, rem


def scratch(spec: Spec, tiles: Tiles, interpret, n_rows: int, owned_rows: bool, n_out: int) -> dict:
    """Buffers for the two tensors of which a unit owns a tile and the two that it walks along; rows with q."""
    owned_loads = 2 * len(spec.pieces) + (n_rows if owned_rows else 0)
    first_loads = len(spec.pieces) + (0 if owned_rows else n_rows)
    row_shape = (tiles.slots, tiles.groups, ROWS) if owned_rows else (tiles.stages, tiles.block)
    owned, stages = (tiles.slots, tiles.groups), tiles.stages
    return {
        "owned": [parts.head_buffers(spec, *owned, ROWS) for _ in range(2)],
        "walked": [parts.head_buffers(spec, stages, tiles.block) for _ in range(2)],
        "out": parts.head_buffers(spec, n_out, tiles.groups, ROWS),
        "rows": plgpu.SMEM((n_rows, *row_shape), jnp.float32),
        "staged": parts.buffer((tiles.groups, ROWS, tiles.block), spec.dtype) if interpret else None,
        "owned_full": plgpu.Barrier(num_arrivals=owned_loads, num_barriers=owned),
        "owned_free": plgpu.Barrier(num_arrivals=tiles.groups, num_barriers=tiles.slots),
        "first_full": plgpu.Barrier(num_arrivals=first_loads, num_barriers=stages),
        "second_full": plgpu.Barrier(num_arrivals=len(spec.pieces), num_barriers=stages),
        "first_free": plgpu.Barrier(num_arrivals=tiles.groups, num_barriers=stages),
        "second_free": plgpu.Barrier(num_arrivals=tiles.groups, num_barriers=stages),
    }


class Gradients(ABC):
    """What both kernels do: own tiles, walk along the other axis, score, and write."""

    owned_in_registers = False
    # where the heads of each tensor begin in its array
    owned_first: tuple[int, ...] = (0, 0)
    walked_first: tuple[int, ...] = (0, 0)
    out_first: tuple[int, ...] = (0,)

    def __init__(self, spec: Spec, tiles: Tiles, schedule: Schedule, refs, n_heads: int):
        self.spec, self.tiles, self.schedule, self.refs, self.n_heads = spec, tiles, schedule, refs, n_heads
        n_rows, n_limits = 3 if spec.entropy else 2, 2 if spec.limited else 0
        self.owned_refs, self.walked_refs, rest = refs.arrays[:2], refs.arrays[2:4], refs.arrays[4:]
        self.row_refs, rest = rest[:n_rows], rest[n_rows:]
        self.limit_refs, self.out_refs = rest[:n_limits], rest[n_limits:]
        self.block = lax.axis_index("block")
        self.scale2 = spec.scale * LOG2E

    def place(self, i: Array) -> tuple[Array, Array, Array]:
        """(sequence, head, tile) of the i-th unit."""
        head, tile = self.schedule.unit(i, self.block)
        return div(head, self.n_heads), rem(head, self.n_heads), tile

    @abstractmethod
    def _load_unit(self, i: Array, before: Array) -> Array:
        """Starts the loads of the block's i-th unit; `before` and the result count the steps of the units so far."""

    @abstractmethod
    def _compute_unit(self, i: Array, before: Array) -> Array:
        """The same, computing."""

    def load(self) -> None:
        units = self.schedule.count(self.block)
        steps = lax.fori_loop(0, units, self._load_unit, jnp.int32(0))
        parts.drain(steps, self.tiles.stages, self.refs.first_free, self.refs.second_free)
        parts.drain(units, self.tiles.slots, self.refs.owned_free)

    def _load_owned(self, i: Array, sequence: Array, head: Array, tile: Array, with_rows: bool) -> None:
        refs, slot = self.refs, rem(i, self.tiles.slots)
        pl.when(i >= self.tiles.slots)(lambda: plgpu.barrier_wait(refs.owned_free.at[slot]))
        for group in range(self.tiles.groups):
            rows = (sequence, pl.ds(tile * self.tiles.rows + group * ROWS, ROWS))
            full = refs.owned_full.at[slot, group]
            for ref, first, buffers in zip(self.owned_refs, self.owned_first, refs.owned, strict=True):
                parts.load_head(self.spec, ref, rows, first + head, buffers, (slot, group), full)
            for n, ref in enumerate(self.row_refs if with_rows else ()):
                plgpu.copy_gmem_to_smem(ref.at[sequence, head, rows[1]], refs.rows.at[n, slot, group], full)

    def _load_walked(self, step: Array, sequence: Array, head: Array, tile: Array, with_rows: bool) -> None:
        """The `tile` of both tensors walked along, as the block's step number `step`."""
        refs, at = self.refs, rem(step, self.tiles.stages)
        rows = (sequence, pl.ds(tile * self.tiles.block, self.tiles.block))
        fulls, frees = (refs.first_full, refs.second_full), (refs.first_free, refs.second_free)
        for i in range(2):
            pl.when(step >= self.tiles.stages)(functools.partial(plgpu.barrier_wait, frees[i].at[at]))
            first = self.walked_first[i] + head
            parts.load_head(self.spec, self.walked_refs[i], rows, first, refs.walked[i], (at,), fulls[i].at[at])
            for n, ref in enumerate(self.row_refs if with_rows and i == 0 else ()):
                plgpu.copy_gmem_to_smem(ref.at[sequence, head, rows[1]], refs.rows.at[n, at], fulls[i].at[at])

    def compute(self, group: Array) -> None:
        self.group = group
        lax.fori_loop(0, self.schedule.count(self.block), self._compute_unit, jnp.int32(0))

    def _begin(self, i: Array) -> Array:
        """Finds the i-th unit, waits for its tile, and returns the tile's number."""
        self.sequence, self.head, tile = self.place(i)
        self.slot = rem(i, self.tiles.slots)
        self.first_row = tile * self.tiles.rows + self.group * ROWS
        self.offset, self.length = self.spec.limits(self.limit_refs, self.sequence)
        plgpu.barrier_wait(self.refs.owned_full.at[self.slot, self.group])
        self.owned = [[piece.at[self.slot, self.group] for piece in buffers] for buffers in self.refs.owned]
        if self.owned_in_registers:
            self.owned = [[plgpu.load(piece, layout=TILE) for piece in pieces] for pieces in self.owned]
        return tile

    def _skip(self, at: Array) -> None:
        """A tile that this warpgroup sees nothing of."""
        for full, free in (
            (self.refs.first_full, self.refs.first_free),
            (self.refs.second_full, self.refs.second_free),
        ):
            plgpu.barrier_wait(full.at[at])
            plgpu.barrier_arrive(free.at[at])

    def _gradients(self, at: Array, visible, rows, spread) -> tuple[Array, Array]:
        """(P, dS), float32, of the owned tile against the walked one at `at`.

        visible(shape): which entries are seen, or None for all; rows(): lse, shift (and slope); spread(x, shape).
        """

        def products(score_acc, value_acc):
            for acc, full, owned, walked in zip(
                (score_acc, value_acc), (self.refs.first_full, self.refs.second_full), self.owned, self.refs.walked,
                strict=True,
            ):  # fmt: skip
                plgpu.barrier_wait(full.at[at])
                for a, b in zip(owned, walked, strict=True):
                    plgpu.wgmma(acc, a, b.at[at].transpose((1, 0)))
            lse, shift, *slope = (spread(x, (ROWS, self.tiles.block)) for x in rows())
            raw = scores = plgpu.wgmma_accumulator_load(score_acc, wait_n=len(self.owned[1]))
            if visible is not None:
                scores = jnp.where(visible(scores.shape), scores, self.spec.hidden)
            # pinned before the wait for dz vᵀ, which ptxas would otherwise wait for at once
            pattern = lax.optimization_barrier(jnp.exp2(scores * self.scale2 - lse))
            inner = value_acc[...] - shift
            for x in slope:
                inner = inner - x * raw
            return pattern, pattern * inner

        acc = plgpu.WGMMAAccumulatorRef((ROWS, self.tiles.block), jnp.float32)
        return pl.run_scoped(products, acc, acc)

    def _multiply(self, values: Array, accs, buffers, at: Array) -> None:
        staged = None if self.refs.staged is None else self.refs.staged.at[self.group]
        parts.multiply(values.astype(self.spec.dtype), staged, accs, [piece.at[at] for piece in buffers])

    def _write(self, results: list) -> None:
        """results: for each output its pieces."""
        rows = (self.sequence, pl.ds(self.first_row, ROWS))
        plgpu.barrier_arrive(self.refs.owned_free.at[self.slot])
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # of the unit before
        for i, (values, ref, first) in enumerate(zip(results, self.out_refs, self.out_first, strict=True)):
            parts.store_head(self.spec, values, self.refs.out, (i, self.group), ref, rows, first + self.head)
