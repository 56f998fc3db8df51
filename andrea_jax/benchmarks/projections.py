"""What the projections to q, k and v cost in each form: one call instead of twelve (C3), and used hardware (C4).

Only x·W_Q, x·W_K and x·W_V are timed, each form leaving its result as it makes it: no form pays for a layout that a
kernel which reads heads in place does not ask for. The loop puts its heads side by side, as the model needs them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from andrea_jax import devices
from andrea_jax.benchmarks.programs import Call, JaxCall
from andrea_jax.benchmarks.results import Results, relative
from andrea_jax.benchmarks.shapes import dtype_here, with_backward
from andrea_jax.benchmarks.timing import Job, Tell, run
from andrea_jax.errors import UserError
from andrea_jax.plots import benchmark_figures, benchmark_findings

PASSES = ("forward", "forward + backward")
THRESHOLDS = (32, 0, 1024)  # MiB; 32 is XLA's own


class Width(NamedTuple):
    """n_head heads share d_model."""

    d_model: int
    n_head: int


def loop(x: Array, *weights: Array) -> list[Array]:
    """weights: W_Q, W_K, W_V [n_head, d_model, head_dim]. n_head products a matrix."""
    return [jnp.stack([x @ w_head for w_head in w], axis=2) for w in weights]


def einsum(x: Array, *weights: Array) -> list[Array]:
    """weights: W_Q, W_K, W_V [n_head, d_model, head_dim]. One product a matrix."""
    return [jnp.einsum("btd,hdk->bthk", x, w) for w in weights]


def fused(x: Array, *weights: Array) -> list[Array]:
    """weights: W_Q, W_K, W_V [d_model, d_model], or one W_QKV [d_model, 3·d_model]. One product a matrix."""
    return [x @ w for w in weights]


FORMS: dict[str, Call] = {
    "fused, one matrix": fused,
    "fused, three matrices": fused,
    "per-head, einsum": einsum,
    "per-head, loop": loop,
}


def bench_projections(
    out: Path,
    widths: Sequence[Width] | None = None,
    tokens: Sequence[int] | None = None,
    thresholds: Sequence[int] = THRESHOLDS,
    repeats: int = 5,
    tell: Tell = lambda done, total: None,
) -> Results:
    """A row for each form, pass, width, number of tokens and threshold of XLA's dot merger; `out`/projections.*.

    None: what suits the device. On a CPU XLA merges no products, so there is no threshold. Columns: d_model, n_head,
    tokens (B·T), threshold_mb (null on a CPU) · form, passes · matmuls: in the compiled program · us, fastest_us,
    slowest_us, tflops, temp_mib, launches · ratio: time over that of "fused, one matrix" · reason.

    Raises UserError for heads that do not share d_model evenly.
    """
    cpu = jax.default_backend() == "cpu"
    widths = widths or ((Width(384, 12), Width(768, 12)) if cpu else (Width(384, 12), Width(768, 12), Width(1536, 24)))
    tokens = tokens or ((256, 1024) if cpu else (8192, 16384, 32768))
    for width in widths:
        if width.d_model % width.n_head:
            raise UserError(f"d_model = {width.d_model} must be a multiple of n_head = {width.n_head}")
    tried = (None,) if cpu else tuple(thresholds)
    settings = {"widths": [list(it) for it in widths], "tokens": list(tokens), "thresholds_mb": list(tried)}
    dtype = dtype_here()
    results = Results(out, "projections", settings, dtype, repeats)
    groups = [_jobs(width, n, mb, dtype) for mb in tried for width in widths for n in tokens]
    run(groups, repeats, lambda rows: results.add(relative(rows, {"form": next(iter(FORMS))}, ("passes",))), tell)
    results.finish(
        benchmark_findings.projections(results.rows),
        lambda: benchmark_figures.projections(results.rows, results.of, results.ceiling),
    )
    return results


def _jobs(width: Width, tokens: int, threshold: int | None, dtype: str) -> list[Job]:
    """Every form and pass with the same random x and weights."""
    options: dict[str, bool | int | str] = {**devices.compiler_options()}  # as a training run's programs
    if threshold is not None:
        options["xla_gpu_dot_merger_threshold_mb"] = threshold
    jobs = []
    for form, call in FORMS.items():
        draw = partial(arguments, form, width, tokens, dtype)
        for factor, passes in zip((1, 3), PASSES, strict=True):
            row = {**width._asdict(), "tokens": tokens, "threshold_mb": threshold, "form": form, "passes": passes}
            row["flops"] = factor * 2 * tokens * width.d_model * 3 * width.d_model
            jobs.append(Job(row, partial(_timed, call, draw, passes, options)))
    return jobs


def arguments(form: str, width: Width, tokens: int, dtype: str) -> tuple[Array, ...]:
    """x [1, tokens, d_model] and the weights as the form keeps them; the same numbers in every form."""
    d, shape = width.d_model, (width.n_head, width.d_model, width.d_model // width.n_head)
    x = jax.random.normal(jax.random.key(0), (1, tokens, d), jnp.dtype(dtype))
    weights = [jax.random.normal(jax.random.key(i), shape, x.dtype) * d**-0.5 for i in (1, 2, 3)]
    if form.startswith("fused"):
        weights = [w.transpose(1, 0, 2).reshape(d, d) for w in weights]
    return (x, jnp.concatenate(weights, axis=1)) if form == "fused, one matrix" else (x, *weights)


def _timed(
    call: Call, draw: Callable[[], tuple[Array, ...]], passes: str, options: dict[str, bool | int | str]
) -> JaxCall:
    if passes == "forward":
        return JaxCall(call, draw, options=options)
    shapes = jax.eval_shape(draw)
    results, n = jax.eval_shape(call, *shapes), len(shapes)

    def with_cotangents() -> tuple[Array, ...]:
        return (*draw(), *(jax.random.normal(jax.random.key(9 + i), y.shape, y.dtype) for i, y in enumerate(results)))

    linked = (0, *range(n, n + len(results)))  # gradients of x are products of cotangents and weights alone
    return JaxCall(with_backward(call, n), with_cotangents, linked, options)
