"""Fused against per-head on one model: the same function to rounding (C1, C6), and what each form costs (C3, C4)."""

import dataclasses
import re
import statistics
import time
from collections.abc import Callable
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array

from andrea_jax import model
from andrea_jax.config import Compute, Model
from andrea_jax.conversion import Form, ProjectionName, convert
from andrea_jax.heads import measure
from andrea_jax.heads.targets import previous_token
from andrea_jax.model import Params
from andrea_jax.projections import PROJECTIONS
from andrea_jax.training import loss

FORMS: tuple[tuple[ProjectionName, Form], ...] = (
    ("fused", "one"),
    ("fused", "three"),
    ("per_head", "einsum"),
    ("per_head", "loop"),
)
TOLERANCE = {"float32": 2e-5, "bfloat16": 5e-2}  # of quantities that are relative to their largest value
Scores = Callable[[Model, Params], np.ndarray]


def form_name(projection: str, form: str) -> str:
    """ "fused, one matrix", "per head, loop", ... as tables and figures name a projection form."""
    words = {"one": "one matrix", "three": "three matrices", "einsum": "einsum", "loop": "loop"}
    return f"{projection.replace('_', ' ')}, {words[form]}"


def equality(config: Model, params: Params, tokens: np.ndarray, compute: Compute) -> pd.DataFrame:
    """How far a model is from itself with its weights converted to the other projection (claims C1 and C6).

    tokens int [batch, seq + 1]. One row a quantity, columns quantity, max_difference, tolerance. "logits" and
    "gradients": largest absolute difference over the largest absolute value (of each gradient array); "head scores":
    largest absolute difference of the heads' previous-token scores; "weights there and back": exact.
    The gradients of the converted model are converted back before they are compared.
    """
    projection: ProjectionName = "per_head" if config.projection == "fused" else "fused"
    other, converted = convert(config, params, projection)
    inputs = jnp.asarray(tokens[:, :-1], jnp.int32)
    runs = [_outputs(c, p, jnp.asarray(tokens, jnp.int32), compute) for c, p in ((config, params), (other, converted))]
    (logits, grads), (logits_other, grads_other) = runs
    _, grads_back = convert(other, grads_other, config.projection, config.projection_form)
    _, params_back = convert(other, converted, config.projection, config.projection_form)
    scores = [
        _previous_token_scores(c, p, np.asarray(inputs), compute) for c, p in ((config, params), (other, converted))
    ]
    differences = {
        "logits": _relative(logits, logits_other),
        "gradients": max(jax.tree.leaves(jax.tree.map(_relative, grads, grads_back))),
        "head scores": float(np.abs(scores[0] - scores[1]).max()),
        "weights there and back": max(jax.tree.leaves(jax.tree.map(_relative, params, params_back))),
    }
    tolerance = {name: TOLERANCE[compute.dtype] for name in differences} | {"weights there and back": 0.0}
    rows = [(name, value, tolerance[name]) for name, value in differences.items()]
    return pd.DataFrame(rows, columns=["quantity", "max_difference", "tolerance"])


def _outputs(config: Model, params: Params, tokens: Array, compute: Compute) -> tuple[Array, Params]:
    """(logits, gradients of the mean loss)."""

    def both(params: Params) -> tuple[Array, Array]:
        logits = model.bind(config, params, dtype=compute.dtype, backend=compute.backend)(tokens[:, :-1])
        return loss(logits, tokens[:, 1:]), logits

    grads, logits = jax.jit(jax.grad(both, has_aux=True))(params)
    return logits, grads


def _previous_token_scores(config: Model, params: Params, tokens: np.ndarray, compute: Compute) -> np.ndarray:
    targets = {"previous_token": previous_token(tokens)}
    sums = measure(config, params, tokens, targets, dtype=compute.dtype, backend=compute.backend)
    found = sums.probes["previous_token"]
    return found.mass.sum(axis=0) / found.n.sum()


def _relative(a: Array, b: Array) -> float:
    return float(jnp.abs(a - b).max() / jnp.maximum(jnp.abs(a).max(), 1e-30))


def timing(config: Model, compute: Compute, *, batch: int, seq: int, repeats: int = 20) -> pd.DataFrame:
    """What W_Q, W_K, W_V and W_O of one layer cost in each form, on this machine (claims C3 and C4).

    The same weights on the same random input [batch, seq, d_model] in compute.dtype; z is q, so no attention runs.
    Forms take turns, so that a change of load hits all of them. Columns form, passes, min_ms, median_ms, tflops (of the
    fastest repeat), dots (matrix products in the compiled program), temp_mib (memory the program allocates), equal
    (largest difference of the output from the first form's, relative to its largest value).
    """
    x = jax.random.normal(jax.random.key(0), (batch, seq, config.d_model), compute.dtype)
    rows, programs = [], {}
    first: dict[str, Array] = {}
    for projection, form in FORMS:
        compiled = _compile(dataclasses.replace(config, projection=projection, projection_form=form), x)
        for passes, (program, arguments) in compiled.items():
            programs[form_name(projection, form), passes] = program, arguments
    times: dict[tuple[str, str], list[float]] = {name: [] for name in programs}
    for _ in range(repeats + 1):
        for name, (program, arguments) in programs.items():
            start = time.perf_counter()
            out = jax.block_until_ready(program(*arguments))
            times[name].append(time.perf_counter() - start)
            first.setdefault(name[1], out)
    for (form, passes), (program, arguments) in programs.items():
        measured = times[form, passes][1:]  # without the first call
        flops = _flops(config, batch * seq) * (3 if passes != "forward" else 1)
        rows.append({
            "form": form, "passes": passes, "min_ms": 1e3 * min(measured), "median_ms": 1e3 * statistics.median(measured),
            "tflops": flops / min(measured) / 1e12, "dots": dots(program.as_text()),
            "temp_mib": program.memory_analysis().temp_size_in_bytes / 2**20,
            "equal": _relative(first[passes].astype(jnp.float32), program(*arguments).astype(jnp.float32)),
        })  # fmt: skip
    return pd.DataFrame(rows)


def _compile(config: Model, x: Array) -> dict[str, tuple]:
    """passes -> (compiled program, its arguments): "forward" gives y, "forward + backward" the gradient of x."""
    from flax import nnx

    graph, state = nnx.split(PROJECTIONS[config.projection](config, jax.random.key(1)))

    def forward(state: nnx.State, x: Array) -> Array:
        projection = nnx.merge(graph, state)
        q, k, v = projection.project(x)
        group = config.n_head // config.kv_heads
        return projection.combine(q + jnp.repeat(k + v, group, axis=2))  # all three are used

    def backward(state: nnx.State, x: Array, dy: Array) -> Array:
        _, pull = jax.vjp(forward, state, x)
        d_state, dx = pull(dy)
        return dx + sum(jnp.sum(d).astype(dx.dtype) for d in jax.tree.leaves(d_state))

    dy = jax.random.normal(jax.random.key(2), x.shape, x.dtype)
    return {
        "forward": (jax.jit(forward).lower(state, x).compile(), (state, x)),
        "forward + backward": (jax.jit(backward).lower(state, x, dy).compile(), (state, x, dy)),
    }


def _flops(config: Model, tokens: int) -> int:
    """Floating-point operations of the four projections, forward: 2 a weight and token."""
    return 2 * tokens * config.d_model * config.head_dim * (2 * config.n_head + 2 * config.kv_heads)


def dots(hlo: str) -> int:
    """Matrix products in a compiled program's text: dot instructions and calls of a BLAS or oneDNN product."""
    return len(re.findall(r"= \S+ dot\(|custom_call_target=\"[^\"]*(?:gemm|matmul|dot)[^\"]*\"", hlo, re.IGNORECASE))
