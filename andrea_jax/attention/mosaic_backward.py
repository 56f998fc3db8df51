"""The backward Mosaic kernels: one for dq, one for dk and dv. No atomic additions: repeated runs are bitwise equal.

    dq = scale · dS k      dk = scale · dSᵀ q      dv = Pᵀ dz      (P and dS: `mosaic_gradients`)

The dk–dv kernel works on transposed scores, k qᵀ, so that Pᵀ and dSᵀ come out of the registers as first operands.
The tiles of q and dz lie in registers as first operands too where there is room (measured: 7% faster; not so for k
and v).
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from andrea_jax.attention import mosaic_parts as parts
from andrea_jax.attention.mosaic_gradients import Gradients, scratch
from andrea_jax.attention.mosaic_parts import BY_COLUMN, BY_ROW, ROWS, Schedule, Spec, Tiles, div, rem


def backward_q(spec: Spec, tiles: Tiles, blocks: int, interpret, q, k, v, dz, rows, limits) -> Array:
    """dq; where `spec.fused`, in an array of q's shape that waits for the rest. rows: lse, shift (and slope), float32
    [batch, n_head, query] padded to a multiple of 128."""
    schedule = Schedule(-(-spec.n_query // tiles.rows), spec.batch * spec.n_head, blocks, large_last=True)
    buffers = scratch(spec, tiles, interpret, len(rows), owned_rows=True, n_out=1)
    out = [jax.ShapeDtypeStruct(q.shape, spec.dtype)]

    def attention_backward_q(refs):
        kernel = _BackwardQ(spec, tiles, schedule, refs)
        parts.roles(tiles, kernel.compute, kernel.load)

    return parts.run(attention_backward_q, spec, tiles, schedule, out, buffers, interpret, q, dz, k, v, *rows, *limits)[
        0
    ]


def backward_kv(
    spec: Spec, tiles: Tiles, blocks: int, interpret, q, k, v, dz, rows, limits, wanted: tuple[str, ...], together=None
) -> list[Array]:
    """dk and dv, or one of them: both do not fit into the registers of a wide head.

    Where `spec.fused` they are written into `together`, a ref to an array of all gradients, and nothing is returned.
    """
    schedule = Schedule(-(-spec.n_key // tiles.rows), spec.batch * spec.n_kv_head, blocks, large_last=False)
    buffers = scratch(spec, tiles, interpret, len(rows), owned_rows=False, n_out=len(wanted))
    out = [] if spec.fused else [jax.ShapeDtypeStruct(k.shape, spec.dtype) for _ in wanted]
    operands = (k, v, q, dz, *rows, *limits, *((together,) if spec.fused else ()))

    def attention_backward_kv(refs):
        kernel = _BackwardKV(spec, tiles, schedule, refs, wanted)
        parts.roles(tiles, kernel.compute, kernel.load)

    return parts.run(attention_backward_kv, spec, tiles, schedule, out, buffers, interpret, *operands)


class _BackwardQ(Gradients):
    """Owns tiles of q and dz, walks along the keys and values that they see."""

    def __init__(self, spec: Spec, tiles: Tiles, schedule: Schedule, refs):
        super().__init__(spec, tiles, schedule, refs, spec.n_head)
        self.walked_first = spec.first_heads[1:]
        self.owned_in_registers = refs.staged is None and spec.head_dim <= 64 and tiles.groups <= 2

    def steps(self, last_row: Array, offset: Array, length: Array) -> Array:
        """Tiles of keys of which the queries up to this row see something."""
        return parts.cdiv(self.spec.seen(last_row, offset, length), self.tiles.block)

    def _load_unit(self, i: Array, before: Array) -> Array:
        sequence, head, tile = self.place(i)
        self._load_owned(i, sequence, head, tile, with_rows=True)
        steps = self.steps((tile + 1) * self.tiles.rows - 1, *self.spec.limits(self.limit_refs, sequence))
        kv_head = div(head, self.spec.group)
        parts.loop(0, steps, lambda j: self._load_walked(before + j, sequence, kv_head, j, with_rows=False))
        return before + steps

    def _compute_unit(self, i: Array, before: Array) -> Array:
        tile = self._begin(i)
        here = self.steps(self.first_row + ROWS - 1, self.offset, self.length)
        all_steps = self.steps((tile + 1) * self.tiles.rows - 1, self.offset, self.length)
        clear = div(self.spec.seen(self.first_row, self.offset, self.length), self.tiles.block)
        which = range(len(self.row_refs))
        rows = [plgpu.load(self.refs.rows.at[n, self.slot, self.group], layout=BY_ROW) for n in which]

        def walk(*accs) -> tuple:
            def step(masked: bool, j: Array) -> None:
                at = rem(before + j, self.tiles.stages)
                visible = functools.partial(self._visible, j) if masked else None
                _, dscores = self._gradients(at, visible, lambda: rows, parts.down)
                plgpu.barrier_arrive(self.refs.second_free.at[at])
                self._multiply(dscores, accs, self.refs.walked[0], at)
                plgpu.wgmma_wait(0)
                plgpu.barrier_arrive(self.refs.first_free.at[at])

            parts.loop(0, clear, functools.partial(step, False))
            parts.loop(clear, here, functools.partial(step, True))
            parts.loop(here, all_steps, lambda j: self._skip(rem(before + j, self.tiles.stages)))
            return tuple(acc[...] for acc in accs)

        dq = pl.run_scoped(walk, *parts.accumulators(self.spec))
        self._write([[piece * self.spec.scale for piece in dq]])
        return before + all_steps

    def _visible(self, step: Array, shape: tuple[int, ...]) -> Array:
        key = parts.indices(shape, 1, step * self.tiles.block)
        if not self.spec.causal:
            return key < self.length
        return (key <= parts.indices(shape, 0, self.first_row + self.offset)) & (key < self.length)


class _BackwardKV(Gradients):
    """Owns tiles of k and v, walks along the queries (of every head of the group) that see them."""

    def __init__(self, spec: Spec, tiles: Tiles, schedule: Schedule, refs, wanted: tuple[str, ...]):
        super().__init__(spec, tiles, schedule, refs, spec.n_kv_head)
        self.wanted = wanted
        self.owned_first = spec.first_heads[1:]
        self.out_first = tuple(first for name, first in zip("kv", self.owned_first, strict=True) if name in wanted)
        if spec.fused:
            self.out_refs = self.out_refs * len(wanted)  # one array for both
        self.n_tiles = -(-spec.n_query // tiles.block)

    def _first_tile(self, key: Array, offset: Array, length: Array, whole: bool) -> Array:
        """The first tile of queries with one that sees `key`; with `whole`, of which all do."""
        tile = jnp.int32(0)
        if self.spec.causal:
            first = lax.max(key - offset, jnp.int32(0))
            tile = parts.cdiv(first, self.tiles.block) if whole else div(first, self.tiles.block)
        return lax.select(key < length, lax.min(tile, jnp.int32(self.n_tiles)), jnp.int32(self.n_tiles))

    def _load_unit(self, i: Array, before: Array) -> Array:
        sequence, kv_head, tile = self.place(i)
        self._load_owned(i, sequence, kv_head, tile, with_rows=False)
        limits = self.spec.limits(self.limit_refs, sequence)
        begin = self._first_tile(tile * self.tiles.rows, *limits, whole=False)
        steps = self.n_tiles - begin

        def load_head(g: Array) -> None:
            head, start = kv_head * self.spec.group + g, before + g * steps - begin
            parts.loop(begin, self.n_tiles, lambda j: self._load_walked(start + j, sequence, head, j, with_rows=True))

        parts.loop(0, self.spec.group, load_head)
        return before + steps * self.spec.group

    def _compute_unit(self, i: Array, before: Array) -> Array:
        tile = self._begin(i)
        limits = (self.offset, self.length)
        begin = self._first_tile(tile * self.tiles.rows, *limits, whole=False)
        here = self._first_tile(self.first_row, *limits, whole=False)
        clear = self._first_tile(self.first_row + ROWS - 1, *limits, whole=True)
        steps, n_pieces = self.n_tiles - begin, len(self.spec.pieces)

        def walk(*accs) -> tuple:
            accs_of = {name: accs[n * n_pieces : (n + 1) * n_pieces] for n, name in enumerate(self.wanted)}

            def head(g: Array) -> None:
                start = before + g * steps - begin
                parts.loop(begin, here, lambda j: self._skip(rem(start + j, self.tiles.stages)))
                parts.loop(here, clear, functools.partial(self._step, accs_of, start, True))
                parts.loop(lax.max(here, clear), self.n_tiles, functools.partial(self._step, accs_of, start, False))

            parts.loop(0, self.spec.group, head)
            return tuple(acc[...] for acc in accs)

        found = pl.run_scoped(walk, *(parts.accumulators(self.spec) * len(self.wanted)))
        pieces = {name: found[n * n_pieces : (n + 1) * n_pieces] for n, name in enumerate(self.wanted)}
        self._write([[x * self.spec.scale if name == "k" else x for x in pieces[name]] for name in self.wanted])
        return before + steps * self.spec.group

    def _step(self, accs: dict, start: Array, masked: bool, j: Array) -> None:
        at = rem(start + j, self.tiles.stages)

        def rows() -> list[Array]:
            return [plgpu.load(self.refs.rows.at[n, at], layout=BY_COLUMN) for n in range(len(self.row_refs))]

        visible = functools.partial(self._visible, j) if masked else None
        pattern, dscores = self._gradients(at, visible, rows, parts.across)
        for name, values, buffers in (("v", pattern, self.refs.walked[1]), ("k", dscores, self.refs.walked[0])):
            if name in accs:
                self._multiply(values, accs[name], buffers, at)
        plgpu.wgmma_wait(0)
        plgpu.barrier_arrive(self.refs.first_free.at[at])
        plgpu.barrier_arrive(self.refs.second_free.at[at])

    def _visible(self, tile: Array, shape: tuple[int, ...]) -> Array:
        key = parts.indices(shape, 0, self.first_row)
        if not self.spec.causal:
            return key < self.length
        return (key <= parts.indices(shape, 1, tile * self.tiles.block + self.offset)) & (key < self.length)
