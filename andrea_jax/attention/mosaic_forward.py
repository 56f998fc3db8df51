"""The forward Mosaic kernel: z, lse and, where asked for, the entropy of each row.

Each warpgroup owns 64 queries and walks over tiles of keys from the last that it sees to the first, so that the tiles
with hidden keys come first and the long rest needs no mask. Scores are kept in units of log 2 with the scale folded
in. While the softmax of one tile is computed, the matrix units already multiply the pattern of the tile before with its
values (Shah et al. 2024, FlashAttention-3, section 3.2):

    S = q kᵀ    m' = max(m, S)    P = exp2(c S − c m')    l' = α l + Σ P    a' = α a + P v    α = exp2(c (m − m'))
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from andrea_jax.attention import mosaic_parts as parts
from andrea_jax.attention.mosaic_parts import BY_ROW, FLOOR, LN2, LOG2E, ROWS, TILE, Schedule, Spec, Tiles, div, rem


def forward(spec: Spec, tiles: Tiles, blocks: int, interpret, q, k, v, limits) -> list[Array]:
    """[z, lse] or [z, lse, entropy]; the rows padded to whole tiles. limits: none, or two arrays (`Spec.limited`)."""
    schedule = Schedule(-(-spec.n_query // tiles.rows), spec.batch * spec.n_head, blocks, large_last=True)
    row = parts.row_type(spec, tiles)
    loads = len(spec.pieces)
    scratch = {
        "q": parts.head_buffers(spec, tiles.slots, tiles.groups, ROWS),
        "k": parts.head_buffers(spec, tiles.stages, tiles.block),
        "v": parts.head_buffers(spec, tiles.stages, tiles.block),
        "z": parts.head_buffers(spec, tiles.groups, ROWS),
        "rows": plgpu.SMEM((2, tiles.groups, ROWS), jnp.float32),
        "staged": parts.buffer((tiles.groups, ROWS, tiles.block), spec.dtype) if interpret else None,
        "q_full": plgpu.Barrier(num_arrivals=loads, num_barriers=(tiles.slots, tiles.groups)),
        "q_free": plgpu.Barrier(num_arrivals=tiles.groups, num_barriers=tiles.slots),
        "k_full": plgpu.Barrier(num_arrivals=loads, num_barriers=tiles.stages),
        "v_full": plgpu.Barrier(num_arrivals=loads, num_barriers=tiles.stages),
        "k_free": plgpu.Barrier(num_arrivals=tiles.groups, num_barriers=tiles.stages),
        "v_free": plgpu.Barrier(num_arrivals=tiles.groups, num_barriers=tiles.stages),
    }
    z = jax.ShapeDtypeStruct((spec.batch, spec.n_query, spec.n_head, spec.head_dim), spec.dtype)

    def attention_forward(refs):
        kernel = _Forward(spec, tiles, schedule, refs)
        parts.roles(tiles, kernel.compute, kernel.load)

    out = [z, row, row] if spec.entropy else [z, row]
    return parts.run(attention_forward, spec, tiles, schedule, out, scratch, interpret, q, k, v, *limits)


class _Forward:
    """The kernel while it is traced: a unit is 64·groups queries of one head."""

    def __init__(self, spec: Spec, tiles: Tiles, schedule: Schedule, refs):
        self.spec, self.tiles, self.schedule, self.refs = spec, tiles, schedule, refs
        self.q_ref, self.k_ref, self.v_ref, *rest = refs.arrays
        n_limits = 2 if spec.limited else 0
        self.limit_refs, (self.z_ref, *self.row_refs) = rest[:n_limits], rest[n_limits:]
        self.block = lax.axis_index("block")
        self.scale2 = spec.scale * LOG2E
        self.overlap = spec.head_dim <= 64  # a wider one leaves no registers for two products at once

    def place(self, i: Array) -> tuple[Array, Array, Array]:
        """(sequence, head, tile) of the i-th unit."""
        head, tile = self.schedule.unit(i, self.block)
        return div(head, self.spec.n_head), rem(head, self.spec.n_head), tile

    def steps(self, sequence: Array, tile: Array) -> Array:
        """Tiles of keys of which some row of this tile of queries sees something."""
        offset, length = self.spec.limits(self.limit_refs, sequence)
        last = (tile + 1) * self.tiles.rows - 1
        return parts.cdiv(self.spec.seen(last, offset, length), self.tiles.block)

    # -- loading ---------------------------------------------------------------------------------------------------

    def load(self) -> None:
        units = self.schedule.count(self.block)
        steps = lax.fori_loop(0, units, self._load_unit, jnp.int32(0))
        parts.drain(steps, self.tiles.stages, self.refs.k_free, self.refs.v_free)
        parts.drain(units, self.tiles.slots, self.refs.q_free)

    def _load_unit(self, i: Array, before: Array) -> Array:
        spec, tiles, refs = self.spec, self.tiles, self.refs
        sequence, head, tile = self.place(i)
        slot, kv_head = rem(i, tiles.slots), div(head, spec.group)
        pl.when(i >= tiles.slots)(lambda: plgpu.barrier_wait(refs.q_free.at[slot]))
        for group in range(tiles.groups):
            rows = (sequence, pl.ds(tile * tiles.rows + group * ROWS, ROWS))
            parts.load_head(spec, self.q_ref, rows, head, refs.q, (slot, group), refs.q_full.at[slot, group])
        steps = self.steps(sequence, tile)

        def load_step(j: Array) -> None:
            at = rem(before + j, tiles.stages)
            rows = (sequence, pl.ds((steps - 1 - j) * tiles.block, tiles.block))
            for ref, first, buffers, full, free in (
                (self.k_ref, spec.first_heads[1], refs.k, refs.k_full, refs.k_free),
                (self.v_ref, spec.first_heads[2], refs.v, refs.v_full, refs.v_free),
            ):
                pl.when(before + j >= tiles.stages)(functools.partial(plgpu.barrier_wait, free.at[at]))
                parts.load_head(spec, ref, rows, first + kv_head, buffers, (at,), full.at[at])

        parts.loop(0, steps, load_step)
        return before + steps

    # -- computing -------------------------------------------------------------------------------------------------

    def compute(self, group: Array) -> None:
        self.group = group
        lax.fori_loop(0, self.schedule.count(self.block), self._compute_unit, jnp.int32(0))

    def _compute_unit(self, i: Array, before: Array) -> Array:
        tiles = self.tiles
        self.sequence, self.head, tile = self.place(i)
        self.first_row, self.before = tile * tiles.rows + self.group * ROWS, before
        self.slot = rem(i, tiles.slots)
        self.steps_here = self.steps(self.sequence, tile)
        offset, length = self.spec.limits(self.limit_refs, self.sequence)
        # tiles of keys that every row of the block sees whole
        clear = div(self.spec.seen(tile * tiles.rows, offset, length), tiles.block)
        plgpu.barrier_wait(self.refs.q_full.at[self.slot, self.group])
        sums = tuple(parts.filled((ROWS,), start, BY_ROW) for start in (FLOOR, 0.0, 0.0))  # m, l, Σ P log2 P
        start = (tuple(parts.filled((ROWS, width), 0.0, TILE) for _, width in self.spec.pieces), sums)
        walk = self._walk_overlapped if self.overlap else self._walk
        some = lax.min(self.steps_here, jnp.int32(1))
        accs, sums = lax.fori_loop(0, some, lambda _, carry: walk(self.steps_here - clear, *carry), start)
        pl.when(some == 0)(self._free_q)
        self._write(accs, *sums)
        return before + self.steps_here

    def _free_q(self) -> None:
        plgpu.barrier_arrive(self.refs.q_free.at[self.slot])

    def _at(self, step: Array | int) -> Array:
        return rem(self.before + step, self.tiles.stages)

    def _wait_for_keys(self, step: Array | int) -> None:
        pl.when(step < self.steps_here)(lambda: plgpu.barrier_wait(self.refs.k_full.at[self._at(step)]))

    def _score(self, step: Array | int, acc) -> None:
        """acc += q kᵀ"""
        for q, k in zip(self.refs.q, self.refs.k, strict=True):
            plgpu.wgmma(acc, q.at[self.slot, self.group], k.at[self._at(step)].transpose((1, 0)))

    def _weigh(self, step: Array | int, pattern: Array, accs, pieces: slice = slice(None)) -> None:
        """accs += P v"""
        staged = None if self.refs.staged is None else self.refs.staged.at[self.group]
        parts.multiply(pattern, staged, accs, [v.at[self._at(step)] for v in self.refs.v[pieces]])

    def _softmax(self, scores: Array, step: Array | int, masked: bool, m: Array, mass: Array, w: Array):
        """(P, (m', l', w'), α); mass is l, and w = Σ P log2 P relative to the maximum, for the entropy."""
        shape = scores.shape
        if masked:
            scores = jnp.where(self._visible(shape, step), scores, self.spec.hidden)
        highest = jnp.maximum(m, scores.max(axis=1))
        drop = (m - highest) * self.scale2  # not m·c − m'·c: the rounding of those is large where m is FLOOR
        alpha = jnp.exp2(drop)
        x = scores * self.scale2 - parts.down(highest * self.scale2, shape)
        pattern = jnp.exp2(x)
        if self.spec.entropy:
            w = alpha * (w + drop * mass) + (pattern * x).sum(axis=1)
        return pattern, (highest, mass * alpha + pattern.sum(axis=1), w), alpha

    def _visible(self, shape: tuple[int, ...], step: Array | int) -> Array:
        offset, length = self.spec.limits(self.limit_refs, self.sequence)
        key = parts.indices(shape, 1, (self.steps_here - 1 - step) * self.tiles.block)
        if not self.spec.causal:
            return key < length
        row = parts.indices(shape, 0, self.first_row + offset)
        return (key <= row) & (key < length)

    def _first(self):
        """The first step's (P in float32, sums, α); keys of the next one are there when it returns."""

        def scores(acc) -> Array:
            self._score(0, acc)
            return acc[...]

        plgpu.barrier_wait(self.refs.k_full.at[self._at(0)])
        found = pl.run_scoped(scores, plgpu.WGMMAAccumulatorRef((ROWS, self.tiles.block), jnp.float32))
        plgpu.barrier_arrive(self.refs.k_free.at[self._at(0)])
        return found

    def _walk_overlapped(self, n_masked: Array, accs, sums):
        """All steps of a unit; P v of a step runs while the next step's softmax is computed."""
        pattern, sums, alpha = self._softmax(self._first(), 0, True, *sums)
        self._wait_for_keys(1)
        carry = (accs, sums, alpha, pattern.astype(self.spec.dtype))
        carry = lax.fori_loop(1, n_masked, functools.partial(self._step_overlapped, True), carry)
        begin = lax.max(n_masked, jnp.int32(1))
        carry = lax.fori_loop(begin, self.steps_here, functools.partial(self._step_overlapped, False), carry)
        accs, sums, alpha, pattern = carry
        self._free_q()
        last = self.steps_here - 1
        return self._add_values(last, accs, alpha, pattern), sums

    def _step_overlapped(self, masked: bool, step: Array, carry):
        accs, sums, alpha, pattern = carry
        before = self._at(step - 1)

        def scores_and_values(score_acc, *value_accs):
            self._score(step, score_acc)
            plgpu.barrier_wait(self.refs.v_full.at[before])
            self._weigh(step - 1, pattern, value_accs)
            scores = plgpu.wgmma_accumulator_load(score_acc, wait_n=len(value_accs))
            plgpu.barrier_arrive(self.refs.k_free.at[self._at(step)])
            # Pinned before the wait for P v, and in float32: ptxas would otherwise wait at once, or, where registers
            # of the next product are written while this one runs, give up all overlap (its warning C7513).
            found = lax.optimization_barrier(self._softmax(scores, step, masked, *sums))
            self._wait_for_keys(step + 1)
            return found, tuple(acc[...] for acc in value_accs)

        score_acc = plgpu.WGMMAAccumulatorRef((ROWS, self.tiles.block), jnp.float32)
        (after, sums, beta), values = pl.run_scoped(scores_and_values, score_acc, *parts.accumulators(self.spec))
        plgpu.barrier_arrive(self.refs.v_free.at[before])
        accs = tuple(acc * parts.down(alpha, acc.shape) + value for acc, value in zip(accs, values, strict=True))
        return accs, sums, beta, after.astype(self.spec.dtype)

    def _add_values(self, step: Array, accs, alpha: Array, pattern: Array):
        """α a + P v, piece by piece."""
        plgpu.barrier_wait(self.refs.v_full.at[self._at(step)])
        added = []
        for i, acc in enumerate(accs):

            def values(value_acc, i=i) -> Array:
                self._weigh(step, pattern, [value_acc], slice(i, i + 1))
                return value_acc[...]

            value = pl.run_scoped(values, plgpu.WGMMAAccumulatorRef(acc.shape, jnp.float32))
            added.append(acc * parts.down(alpha, acc.shape) + value)
        plgpu.barrier_arrive(self.refs.v_free.at[self._at(step)])
        return tuple(added)

    def _walk(self, n_masked: Array, accs, sums):
        """All steps of a unit, each finished before the next."""

        def step(masked: bool, i: Array, carry):
            accs, sums = carry

            def score(acc) -> Array:
                self._score(i, acc)
                return acc[...]

            plgpu.barrier_wait(self.refs.k_full.at[self._at(i)])
            scores = pl.run_scoped(score, plgpu.WGMMAAccumulatorRef((ROWS, self.tiles.block), jnp.float32))
            plgpu.barrier_arrive(self.refs.k_free.at[self._at(i)])
            pattern, sums, alpha = self._softmax(scores, i, masked, *sums)
            return self._add_values(i, accs, alpha, pattern.astype(self.spec.dtype)), sums

        carry = lax.fori_loop(0, n_masked, functools.partial(step, True), (accs, sums))
        carry = lax.fori_loop(n_masked, self.steps_here, functools.partial(step, False), carry)
        self._free_q()
        return carry

    def _write(self, accs, m: Array, mass: Array, w: Array) -> None:
        refs, rows = self.refs, pl.ds(self.first_row, ROWS)
        empty = mass == 0.0
        total = jnp.where(empty, 1.0, mass)
        log2_total, inverse = jnp.log2(total), 1.0 / total
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # of the unit before
        refs.rows.at[0, self.group][...] = jnp.where(empty, -jnp.inf, LN2 * (m * self.scale2 + log2_total))
        if self.spec.entropy:
            refs.rows.at[1, self.group][...] = LN2 * (log2_total - w * inverse)
        values = [acc * parts.down(inverse, acc.shape) for acc in accs]
        parts.store_head(self.spec, values, refs.z, (self.group,), self.z_ref, (self.sequence, rows), self.head)
        for i, ref in enumerate(self.row_refs):
            plgpu.copy_smem_to_gmem(refs.rows.at[i, self.group], ref.at[self.sequence, self.head, rows])
