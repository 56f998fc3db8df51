"""How the heads lie in memory (C11), and how many kernels and programs serve them (C12).

Every arrangement computes the same attention with the same backend; z lies as q does. "In place" is the layout of this
project, [batch, seq, n_head, head_dim], where a head's rows are n_head·head_dim numbers apart. q, k and v can also be
parts of one array, as a fused projection leaves them: read there, or sliced first. "Contiguous" is that of the lesson,
[batch, n_head, seq, head_dim]: handed over as batch·n_head sequences of one head each, so that the backend reads
exactly this memory.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import Array

from andrea_jax.attention import attention_fused
from andrea_jax.benchmarks.attention import NAMES, z_of
from andrea_jax.benchmarks.grids import GRIDS
from andrea_jax.benchmarks.peers import Attend, known
from andrea_jax.benchmarks.programs import Call, JaxCall, Row
from andrea_jax.benchmarks.results import Results, relative
from andrea_jax.benchmarks.shapes import LONG, SHORT, SMALL, Shape, dtype_here, flops, inputs, with_backward
from andrea_jax.benchmarks.timing import Job, Tell, run, why
from andrea_jax.compiled import launches
from andrea_jax.plots import benchmark_figures, benchmark_findings

PASSES = ("forward", "forward + backward")
N_HEADS = (1, 12, 24)
IN_PLACE = "in place"


@dataclass(frozen=True)
class Arrangement:
    """prepare: q, k, v -> what is given, not timed. arrange: shape, a backend -> what is timed, of that."""

    name: str
    prepare: Callable[[Array, Array, Array], tuple[Array, ...]]
    arrange: Callable[[Shape, str], Call]


def contiguous(x: Array) -> Array:
    """[batch, seq, n_head, head_dim] -> [batch·n_head, seq, 1, head_dim]."""
    batch, seq, n_head, head_dim = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch * n_head, seq, 1, head_dim)


def strided(x: Array, n_head: int) -> Array:
    """The inverse of `contiguous`."""
    return x.reshape(-1, n_head, x.shape[1], x.shape[3]).transpose(0, 2, 1, 3)


def _side_by_side(q: Array, k: Array, v: Array) -> tuple[Array]:
    """[q | k | v] as x·W_QKV leaves it, [batch, seq, 3·n_head·head_dim]."""
    return (jnp.concatenate([x.reshape(*x.shape[:2], -1) for x in (q, k, v)], axis=2),)


def _of_parts(shape: Shape, backend: str) -> Call:
    def z(qkv):
        return attention_fused(qkv.reshape(*qkv.shape[:2], -1, shape.head_dim), shape.n_head, backend=backend)[0]

    return z


def _of_slices(head_dim: int, attend: Attend) -> Call:
    return lambda qkv: attend(*(x.reshape(*x.shape[:2], -1, head_dim) for x in jnp.split(qkv, 3, axis=2)))


def _transposing(attend: Attend) -> Call:
    def there_and_back(q, k, v):
        # the barrier makes it memory, and not a manner of reading
        q_k_v = jax.lax.optimization_barrier(tuple(contiguous(x) for x in (q, k, v)))
        return strided(jax.lax.optimization_barrier(attend(*q_k_v)), q.shape[2])

    return there_and_back


def _one_by_one(attend: Attend) -> Call:
    once = jax.jit(attend)  # traced once for all heads

    def heads(q, k, v):
        return jnp.concatenate([once(*(x[:, :, i : i + 1] for x in (q, k, v))) for i in range(q.shape[2])], axis=2)

    return heads


def _as_they_are(*arrays: Array) -> tuple[Array, ...]:
    return arrays


ARRANGEMENTS = (
    Arrangement(IN_PLACE, _as_they_are, lambda shape, backend: z_of(backend)),
    Arrangement("q|k|v in place", _side_by_side, _of_parts),
    Arrangement("slices of q|k|v", _side_by_side, lambda shape, backend: _of_slices(shape.head_dim, z_of(backend))),
    Arrangement("contiguous", lambda *q_k_v: tuple(map(contiguous, q_k_v)), lambda shape, backend: z_of(backend)),
    Arrangement("transposed first", _as_they_are, lambda shape, backend: _transposing(z_of(backend))),
    Arrangement("a call a head", _as_they_are, lambda shape, backend: _one_by_one(z_of(backend))),
)


def bench_layout(
    out: Path,
    shapes: Sequence[Shape] | None = None,
    backends: Sequence[str] | None = None,
    n_heads: Sequence[int] = N_HEADS,
    repeats: int = 7,
    tell: Tell = lambda done, total: None,
) -> Results:
    """Times of every arrangement and grid, and launches at every number of heads; written to `out`/layout.*.

    None: what suits the device, and for grids also one long sequence; on a GPU the fused kernels, on a CPU all backends
    but the reference. Columns: question ("layout", "grid", "transposes",
    "launches") · batch, seq, n_head, head_dim, backend, variant, passes · us, fastest_us, slowest_us, tflops, gb_s (of
    the transposes alone), launches, temp_mib · ratio: time over that of "in place", or of the first grid · reason. Rows
    of the question "launches" are compiled and not run.
    """
    on_cpu = jax.default_backend() == "cpu"
    grid_shapes = shapes or (SMALL[:1] if on_cpu else (SHORT[0], LONG[1]))
    shapes = shapes or grid_shapes[:1]
    slow = ("reference",) if on_cpu else ("reference", "chunked")
    backends = known(backends or [name for name in NAMES if name not in slow], NAMES, "backend")
    settings = {"shapes": [list(it) for it in shapes], "backends": list(backends), "n_heads": list(n_heads)}
    dtype = dtype_here()
    results = Results(out, "layout", settings, dtype, repeats)
    results.add(_launches(backends, shapes[0], n_heads, dtype))
    groups = [_jobs(name, shape, dtype) for shape in shapes for name in backends]
    groups += [_grids(name, shape, dtype) for shape in grid_shapes for name in backends if name in GRIDS]
    groups += [[_transposes(shape, dtype)] for shape in shapes]
    run(groups, repeats, lambda rows: results.add(relative(rows, {"variant": rows[0]["variant"]}, ("passes",))), tell)
    results.finish(benchmark_findings.layout(results.rows), lambda: benchmark_figures.layout(results.rows, results.of))
    return results


def _jobs(backend: str, shape: Shape, dtype: str) -> list[Job]:
    """The arrangements of a backend."""
    return [
        _job("layout", backend, shape, it.name, passes, make)
        for it in ARRANGEMENTS
        for passes, make in _timed(it.arrange(shape, backend), partial(_prepared, it, shape, dtype)).items()
    ]


def _grids(backend: str, shape: Shape, dtype: str) -> list[Job]:
    """Its grids, of the forward kernel."""
    draw = partial(_prepared, ARRANGEMENTS[0], shape, dtype)
    return [
        _job("grid", backend, shape, name, "forward", partial(JaxCall, attend, draw))
        for name, attend in GRIDS[backend].items()
    ]


def _prepared(arrangement: Arrangement, shape: Shape, dtype: str) -> tuple[Array, ...]:
    return arrangement.prepare(*inputs(shape, dtype)[:3])


def _transposes(shape: Shape, dtype: str) -> Job:
    """q, k and v to contiguous heads: each number read once and written once."""
    moved = 2 * 3 * math.prod(shape) * jnp.dtype(dtype).itemsize
    row = {**_row("transposes", "none", shape, "transposes alone", "forward"), "bytes": moved}
    return Job(row, partial(JaxCall, lambda *q_k_v: [contiguous(x) for x in q_k_v], lambda: inputs(shape, dtype)[:3]))


def _row(question: str, backend: str, shape: Shape, variant: str, passes: str) -> Row:
    return {"question": question, "backend": backend, **shape._asdict(), "variant": variant, "passes": passes}


def _job(question: str, backend: str, shape: Shape, variant: str, passes: str, make: Callable[[], JaxCall]) -> Job:
    return Job({**_row(question, backend, shape, variant, passes), "flops": flops(shape, passes)}, make)


def _timed(call: Call, draw: Callable[[], tuple[Array, ...]]) -> dict[str, Callable[[], JaxCall]]:
    """passes -> what makes it."""

    def both() -> JaxCall:
        given = jax.eval_shape(draw)
        z, n = jax.eval_shape(call, *given), len(given)
        return JaxCall(
            with_backward(call, n),
            lambda: (*draw(), jax.random.normal(jax.random.key(9), z.shape, z.dtype)),
            linked=(0, n),
        )

    return {"forward": partial(JaxCall, call, draw), "forward + backward": both}


def _launches(backends: Sequence[str], shape: Shape, n_heads: Sequence[int], dtype: str) -> list[Row]:
    """What one call hands to the device, at every number of heads: the compiled program, read and not run."""

    def counted(backend: str, variant: str, passes: str, n_head: int) -> Row:
        of = shape._replace(n_head=n_head)
        arrangement = next(it for it in ARRANGEMENTS if it.name == variant)
        call, x = arrangement.arrange(of, backend), jax.ShapeDtypeStruct(tuple(of), jnp.dtype(dtype))
        row = {**_row("launches", backend, of, variant, passes), "us": None}
        try:
            both = passes == "forward + backward"
            call, n = (with_backward(call, 3), 4) if both else (call, 3)
            text = jax.jit(call).lower(*n * [x]).compile().as_text()
        except Exception as error:  # a backend that cannot run here; the others go on
            return {**row, "reason": why(error)}
        return {**row, "launches": launches(text or ""), "reason": None}

    asked = [(IN_PLACE, passes) for passes in PASSES] + [(ARRANGEMENTS[-1].name, "forward")]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda it: counted(*it), [
            (backend, *what, n_head) for backend in backends for what in asked for n_head in n_heads
        ]))  # fmt: skip
