"""Fused against per-head on one model: the same function to rounding (C1, C6), a training of either (C2), and what each
form costs (C3, C4)."""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import nnx
from jax import Array
from jax.stages import Compiled

from andrea_jax import data, model
from andrea_jax.compiled import matmuls
from andrea_jax.config import Compute, Experiment, Model
from andrea_jax.conversion import Form, ProjectionName, convert
from andrea_jax.data import Dataset
from andrea_jax.heads import measure
from andrea_jax.heads.targets import previous_token
from andrea_jax.model import Params
from andrea_jax.projections import PROJECTIONS, Weights, fuse_heads, initial_weights
from andrea_jax.training import loss, optimizer
from andrea_jax.training.step import make_step

FORMS: tuple[tuple[ProjectionName, Form], ...] = (
    ("fused", "one"),
    ("fused", "three"),
    ("per_head", "einsum"),
    ("per_head", "loop"),
)
PASSES = {"forward": 1, "forward + backward": 3}  # how many times the matrix products of the forward pass
TOLERANCE = 2e-5  # of the largest value, in float32
Progress = Callable[[int, int], None]  # (done, in all)


def form_name(projection: str, form: str) -> str:
    """ "fused, one matrix", "per-head, loop", ... as tables and figures name a projection form."""
    words = {"one": "one matrix", "three": "three matrices", "einsum": "einsum", "loop": "loop"}
    return f"{projection.replace('_', '-')}, {words[form]}"


def other_projection(config: Model) -> tuple[ProjectionName, Form]:
    """The default form of the projection that `config` does not have."""
    return ("per_head", "einsum") if config.projection == "fused" else ("fused", "one")


def equality(
    config: Model, params: Params, tokens: np.ndarray, others: Sequence[tuple[ProjectionName, Form]] | None = None
) -> pd.DataFrame:
    """How far a model is from itself with its weights converted to `others` (None: the other projection): C1 and C6.

    tokens int [batch, seq + 1], BOS first. One row a form and quantity, columns form, quantity, max_difference,
    tolerance. "logits": largest absolute difference over the largest absolute value; "gradients": of the mean loss,
    converted back, over the largest of all parameters; "head scores": of the heads' previous-token scores;
    "weights there and back": exact. Two things keep rounding from being taken for a difference. Everything is computed
    in full float32, whatever the model was trained in: bfloat16 rounds sums apart by a few percent. And gradients are
    taken with GELU for ReLU, whose slope jumps: an activation that rounding puts on the other side of 0 moves a
    gradient by much more than rounding.
    """
    with jax.default_matmul_precision("highest"):
        here = _outputs(config, params, tokens)
        rows = []
        for projection, form in others or [other_projection(config)]:
            differences = _differences(config, params, (projection, form), tokens, here)
            tolerances = dict.fromkeys(differences, TOLERANCE) | {"weights there and back": 0.0}
            rows += [(form_name(projection, form), name, d, tolerances[name]) for name, d in differences.items()]
    return pd.DataFrame(rows, columns=["form", "quantity", "max_difference", "tolerance"])


type _Outputs = tuple[Array, Params, np.ndarray]  # logits, gradients, previous-token scores


def _differences(
    config: Model, params: Params, target: tuple[ProjectionName, Form], tokens: np.ndarray, here: _Outputs
) -> dict[str, float]:
    other, converted = convert(config, params, *target)
    logits, gradients, scores = _outputs(other, converted, tokens)
    _, gradients = convert(other, gradients, config.projection, config.projection_form)
    _, back = convert(other, converted, config.projection, config.projection_form)
    return {
        "logits": largest_difference(here[0], logits),
        "gradients": largest_difference(here[1], gradients),
        "head scores": float(np.nanmax(np.abs(here[2] - scores))),  # nan: heads that pruning took
        "weights there and back": largest_difference(params, back),
    }


def _outputs(config: Model, params: Params, tokens: np.ndarray) -> _Outputs:
    """(logits, gradients of the mean loss, previous-token scores float32 [n_layer, n_head])."""
    inputs, targets = jnp.asarray(tokens[:, :-1], jnp.int32), jnp.asarray(tokens[:, 1:], jnp.int32)

    def mean_loss(params: Params) -> Array:
        return loss(model.bind(dataclasses.replace(config, activation="gelu"), params)(inputs), targets)

    logits = jax.jit(lambda params: model.bind(config, params)(inputs))(params)
    gradients = jax.jit(jax.grad(mean_loss))(params)
    probe = {"previous_token": previous_token(tokens[:, :-1])}
    found = measure(config, params, tokens[:, :-1], probe).probes["previous_token"]
    return logits, gradients, found.mass.sum(axis=0) / found.n.sum()


def trajectory(e: Experiment, dataset: Dataset, nudge: float = 0.0) -> tuple[Params, np.ndarray]:
    """Trains e from its initial weights times 1 + nudge: (the first step's update of all parameters, as of the fused
    model; the training loss of every step, nats a token)."""
    params = jax.tree.map(lambda x: x * (1 + nudge), model.initialise(e.model, e.train.seed))
    start = jax.tree.map(np.asarray, params)
    step, state, losses, first = make_step(e), optimizer.make(e.optim, e.train.steps).init(params), [], None
    for i in range(e.train.steps):
        params, state, metrics = step(params, state, jnp.asarray(data.batch(dataset, e, i), jnp.int32))
        losses.append(float(metrics["loss"]))
        first = jax.tree.map(lambda a, b: np.asarray(a) - b, params, start) if first is None else first
    assert first is not None  # a config has a step at least
    return convert(e.model, first, "fused")[1], np.array(losses)


def largest_difference(a: Params | Array, b: Params | Array) -> float:
    """max |a − b| / max |a|, over all leaves of two equal trees; 0 where both are all 0.

    One measure for the whole tree: a leaf that is 0 but for rounding (the gradient of b_K) has no scale of its own.
    """
    differences = jax.tree.map(lambda x, y: jnp.abs(x.astype(jnp.float32) - y.astype(jnp.float32)).max(), a, b)
    sizes = [jnp.abs(x).max() for x in jax.tree.leaves(a)]
    difference = float(jnp.stack(jax.tree.leaves(differences)).max())
    return difference / float(jnp.stack(sizes).astype(jnp.float32).max()) if difference else 0.0


def timing(
    config: Model, compute: Compute, *, batch: int, seq: int, repeats: int = 20, progress: Progress | None = None
) -> pd.DataFrame:
    """What W_Q, W_K, W_V and W_O of one layer cost in each form, on this machine (claims C3 and C4).

    The same numbers in every form, float32, cast in the program as in training; random x [batch, seq, d_model] in
    compute.dtype. Columns form, passes ("forward", or "forward + backward", which returns y, the gradients of all
    weights and of x), matmuls (in the compiled program), min_ms, median_ms of `repeats` calls, gflop_s (of the fastest
    call), temp_mib (memory that the program needs besides arguments and results).
    Forms take turns, so that a change of load hits all of them. progress: called with (calls done, in all).
    """
    programs = {
        (form_name(projection, form), passes): program
        for projection, form in FORMS
        for passes, program in _programs(config, projection, form, compute, batch, seq).items()
    }
    times: dict[tuple[str, str], list[float]] = {name: [] for name in programs}
    for turn in range(repeats + 1):
        for name, (program, arguments) in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*arguments))
            times[name].append(time.perf_counter() - start)
        if progress:
            progress(turn + 1, repeats + 1)
    rows = []
    for (form, passes), (program, _) in programs.items():
        seconds = times[form, passes][1:]  # without the first call, which also warms up
        text, memory = program.as_text(), program.memory_analysis()
        assert text is not None and memory is not None  # CPU, CUDA and ROCm have both
        rows.append({
            "form": form, "passes": passes, "matmuls": matmuls(text), "min_ms": 1e3 * min(seconds),
            "median_ms": 1e3 * statistics.median(seconds),
            "gflop_s": PASSES[passes] * flops_per_token(config) * batch * seq / min(seconds) / 1e9,
            "temp_mib": memory.temp_size_in_bytes / 2**20,
        })  # fmt: skip
    return pd.DataFrame(rows)


def flops_per_token(config: Model) -> int:
    """Floating-point operations of one layer's projections a token, forward: 2 a weight, which meets it once."""
    shapes = jax.eval_shape(functools.partial(initial_weights, config), jax.random.key(0))
    return 2 * sum(weight.size for name, weight in shapes.items() if name.startswith("W_"))


def _programs(
    config: Model, projection: ProjectionName, form: Form, compute: Compute, batch: int, seq: int
) -> dict[str, tuple[Compiled, tuple]]:
    """passes -> (compiled program, its arguments). z = q·k + v, elementwise, stands for attention: every gradient
    differs, so that no two products are one."""
    config = dataclasses.replace(config, projection=projection, projection_form=form)
    graph, state = nnx.split(nnx.eval_shape(lambda: PROJECTIONS[projection](config, jax.random.key(1))))
    weights = initial_weights(config, jax.random.key(1))
    weights = fuse_heads(weights, form) if projection == "fused" else weights

    def forward(weights: Weights, x: Array) -> Array:
        layer = nnx.merge(graph, nnx.map_state(lambda path, _: weights[str(path[0])], state))
        q, k, v = layer.project(x)
        groups = q.reshape(*k.shape[:3], -1, config.head_dim)  # heads that share a key-value head
        return layer.combine((groups * k[:, :, :, None] + v[:, :, :, None]).reshape(q.shape))

    def both(weights: Weights, x: Array, dy: Array) -> tuple[Array, tuple[Weights, Array]]:
        y, pull = jax.vjp(forward, weights, x)
        return y, pull(dy)

    x, dy = (jax.random.normal(jax.random.key(i), (batch, seq, config.d_model), compute.dtype) for i in (2, 3))
    calls = {"forward": (forward, (weights, x)), "forward + backward": (both, (weights, x, dy))}
    return {
        passes: (jax.jit(program).lower(*arguments).compile(), arguments)
        for passes, (program, arguments) in calls.items()
    }
