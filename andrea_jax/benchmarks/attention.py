"""What attention costs: every backend that can run here, beside other people's, forward and backward."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import jax
from jax import Array

from andrea_jax.attention import BACKENDS, attention
from andrea_jax.benchmarks import torch_peers
from andrea_jax.benchmarks.peers import PEERS, TORCH, Attend, known, load, why_absent
from andrea_jax.benchmarks.programs import Call, JaxCall, Row, Timed
from andrea_jax.benchmarks.results import Results
from andrea_jax.benchmarks.shapes import LONG, PASSES, SHORT, SMALL, Shape, dtype_here, flops, inputs, with_backward
from andrea_jax.benchmarks.timing import Job, Tell, run
from andrea_jax.plots import benchmark_figures, benchmark_findings
from andrea_jax.plots.benchmark_rows import fastest, where
from andrea_jax.plots.benchmark_rows import timed as timed_rows

NAMES = tuple(backend.name for backend in BACKENDS)
SETS = {"short": SHORT, "long": LONG, "all": SHORT + LONG, "small": SMALL}


def bench_attention(
    out: Path,
    shapes: Sequence[Shape] | None = None,
    backends: Sequence[str] = NAMES,
    peers: Sequence[str] = PEERS,
    repeats: int = 7,
    tell: Tell = lambda done, total: None,
) -> Results:
    """Causal self-attention, a row for each shape, contender and pass; written to `out`/attention.*.

    shapes: None for those of the device (`SETS`). Columns: batch, seq, n_head, head_dim · kind ("backend" or "peer"),
    contender, passes · us, fastest_us, slowest_us (median, best, worst of `repeats` timings of `calls` calls) · tflops
    · against, ratio: time over that of the fastest peer of the same shape and passes; of "forward + entropy" over the
    same backend's forward · launches, temp_mib (not of torch) · reason, where there is no time.

    Raises UserError for a name that is no backend or no peer.
    """
    shapes = shapes or (SMALL if jax.default_backend() == "cpu" else SHORT + LONG)
    backends = known(backends, NAMES, "backend")
    absent = {name: why_absent(name) for name in known(peers, PEERS, "peer")}
    there = [name for name, reason in absent.items() if reason is None]
    dtype = dtype_here()
    asked = {"shapes": [list(shape) for shape in shapes], "backends": list(backends)}
    absent = {name: reason for name, reason in absent.items() if reason}
    results = Results(out, "attention", {**asked, "peers": there, "absent": absent}, dtype, repeats)
    groups = [_jobs(shape, backends, there, dtype) for shape in shapes]
    run(groups, repeats, lambda rows: results.add(with_ratios(rows)), tell)
    verdicts = [*benchmark_findings.attention(results.rows), *(f"absent: {name} {why}" for name, why in absent.items())]
    results.finish(verdicts, lambda: benchmark_figures.attention(results.rows, results.of))
    return results


def _jobs(shape: Shape, backends: Sequence[str], there: Sequence[str], dtype: str) -> list[Job]:
    draw, jobs = partial(inputs, shape, dtype), []
    for name in backends:
        for passes, attend in zip(PASSES, (z_of(name), _with_entropy(name), z_of(name)), strict=True):
            jobs.append(_job(shape, "backend", name, passes, partial(timed, attend, draw, passes)))
    for name in there:
        for passes in ("forward", "forward + backward"):
            make = partial(torch_peers.make, name, shape, passes, dtype) if name in TORCH else None
            make = make or partial(timed, load(name), draw, passes)
            jobs.append(_job(shape, "peer", name, passes, make))
    return jobs


def _job(shape: Shape, kind: str, name: str, passes: str, make: Callable[[], Timed]) -> Job:
    what = {"kind": kind, "contender": name, "passes": passes, "flops": flops(shape, passes)}
    return Job({**shape._asdict(), **what}, make)


def timed(attend: Call, draw: Callable[[], tuple[Array, ...]], passes: str) -> JaxCall:
    """attend: of q, k, v. draw: q, k, v and the cotangent of z."""
    if passes == "forward + backward":  # the product of the cotangent and v does not depend on q
        return JaxCall(with_backward(attend, 3), draw, linked=(0, 3))
    return JaxCall(attend, lambda: draw()[:3])


def z_of(backend: str) -> Attend:
    return lambda q, k, v: attention(q, k, v, backend=backend)[0]


def _with_entropy(backend: str) -> Call:
    return lambda q, k, v: attention(q, k, v, backend=backend, entropy=True)[::2]


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """The rows of one shape with what each is compared with ("against"), and the ratio of the times."""
    found = []
    for row in rows:
        itself = {"contender": row["contender"], "passes": "forward"}
        others = {"kind": "peer", "passes": row["passes"]}
        bases = where(timed_rows(rows), **itself if row["passes"] == "forward + entropy" else others)
        base = fastest(bases) if bases and row["us"] is not None else None
        against = f"{base['contender']}, {base['passes']}" if base else None
        found.append({**row, "against": against, "ratio": row["us"] / base["us"] if base else None})
    return found
