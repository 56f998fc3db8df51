"""What a head's width costs (C13): attention alone, and a whole training step, at nearly the same d_model.

d_model is n_head·head_dim with as many heads as come nearest to what is asked for; from 1,152 on every width of the
claim but 80 (14 heads, d_model 1,120) fits exactly. Rates are TFLOP/s, so that what is left of the difference does not
count.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from andrea_jax import model
from andrea_jax.benchmarks.attention import NAMES, timed, z_of
from andrea_jax.benchmarks.peers import known
from andrea_jax.benchmarks.programs import Row
from andrea_jax.benchmarks.results import Results
from andrea_jax.benchmarks.shapes import Shape, dtype_here, flops, inputs
from andrea_jax.benchmarks.timing import Job, Tell, run
from andrea_jax.config import Compute, Data, Experiment, Model, Optim, Train
from andrea_jax.counting import parameters_by_part
from andrea_jax.plots import benchmark_figures, benchmark_findings
from andrea_jax.training import make_step, optimizer

HEAD_DIMS = (32, 48, 64, 72, 80, 96, 128)
STEP = "training step"


@dataclass(frozen=True)
class Size:
    """Of attention: batch sequences of seq tokens at about d_model; of the training step: n_layer and vocab_size too.

    For a GPU the layers, vocabulary and length of ANDREA-120M, at one and a half times its width.
    """

    batch: int = 16
    seq: int = 1024
    d_model: int = 1152
    n_layer: int = 12
    vocab_size: int = 8449


FOR_CPU = Size(batch=1, seq=256, d_model=192, n_layer=1, vocab_size=257)


def bench_head_dim(
    out: Path,
    head_dims: Sequence[int] = HEAD_DIMS,
    backends: Sequence[str] | None = None,
    size: Size | None = None,
    repeats: int = 7,
    tell: Tell = lambda done, total: None,
) -> Results:
    """A row for each head_dim, backend and pass, and one a head_dim for a training step; written to `out`/head-dim.*.

    None: all backends but the reference; what suits the device. Columns: head_dim, n_head, d_model, batch, seq ·
    backend ("auto" for the step) · passes ("forward", "forward + backward", "training step") · us, fastest_us,
    slowest_us, tflops, launches, temp_mib · reason.
    """
    size = size or (FOR_CPU if jax.default_backend() == "cpu" else Size())
    backends = known(backends or [name for name in NAMES if name != "reference"], NAMES, "backend")
    dtype = dtype_here()
    settings = {"head_dims": list(head_dims), "backends": list(backends), "size": vars(size)}
    results = Results(out, "head-dim", settings, dtype, repeats)
    shapes = [Shape(size.batch, size.seq, heads(size.d_model, head_dim), head_dim) for head_dim in head_dims]
    groups = [[job for shape in shapes for job in _of_attention(name, shape, dtype)] for name in backends]
    groups += [[_of_step(shape, size, dtype)] for shape in shapes]  # one by one: each fills much of a small GPU
    run(groups, repeats, results.add, tell)
    verdicts = benchmark_findings.head_dim(results.rows)
    results.finish(verdicts, lambda: benchmark_figures.head_dim(results.rows, results.of))
    return results


def heads(d_model: int, head_dim: int) -> int:
    """How many heads of this width come nearest to d_model."""
    return max(1, round(d_model / head_dim))


def _row(shape: Shape, backend: str, passes: str, flops: int) -> Row:
    d_model = shape.n_head * shape.head_dim
    return {"d_model": d_model, **shape._asdict(), "backend": backend, "passes": passes, "flops": flops}


def _of_attention(backend: str, shape: Shape, dtype: str) -> list[Job]:
    draw = partial(inputs, shape, dtype)
    return [
        Job(_row(shape, backend, passes, flops(shape, passes)), partial(timed, z_of(backend), draw, passes))
        for passes in ("forward", "forward + backward")
    ]


def _of_step(shape: Shape, size: Size, dtype: str) -> Job:
    experiment = _experiment(shape, size, dtype)
    return Job(_row(shape, "auto", STEP, step_flops(experiment)), partial(TrainingStep, experiment))


def _experiment(shape: Shape, size: Size, dtype: str) -> Experiment:
    return Experiment(
        model=Model(vocab_size=size.vocab_size, seq_len=size.seq, d_model=shape.n_head * shape.head_dim,
                    n_layer=size.n_layer, n_head=shape.n_head),
        data=Data(seq_len=size.seq),
        optim=Optim(),
        train=Train(batch_size=size.batch),
        compute=Compute(dtype="float32" if dtype == "float32" else "bfloat16"),
    )  # fmt: skip


def step_flops(e: Experiment) -> int:
    """Floating-point operations of a training step: 6 a token for each weight of a matrix product (2 forward, 4
    backward; W_E and W_P are looked up), and causal attention as in `flops`, its backward twice its forward.

    6·(parameters − W_E − W_P) + 6·n_layer·seq·d_model a token (Kaplan et al. 2020, section 2.1, half of it masked).
    """
    parts = parameters_by_part(e.model)
    products = sum(parts.values()) - parts["embeddings"]
    a_token = 6 * products + 6 * e.model.n_layer * e.data.seq_len * e.model.d_model
    return a_token * e.train.batch_size * e.data.seq_len


class TrainingStep:
    """The compiled step of an experiment, on random weights and tokens, each step beginning where the last ended."""

    calls = 1

    def __init__(self, experiment: Experiment):
        self._experiment, self._state = experiment, None
        params = model.abstract(experiment.model)
        state = jax.eval_shape(self._optimizer().init, params)
        step = make_step(experiment)
        self.compiled = step.lower(params, state, _tokens(experiment)).compile()  # pyright: ignore[reportFunctionMemberAccess]

    def run(self, times: int) -> float:
        if self._state is None:
            params = _random_parameters(self._experiment.model)
            self._state = params, jax.jit(self._optimizer().init)(params)
        tokens = _tokens(self._experiment)
        metrics, start = None, time.perf_counter()
        for _ in range(times):
            params, state, metrics = self.compiled(*self._state, tokens)
            self._state = params, state
        jax.block_until_ready(metrics)
        return time.perf_counter() - start

    def chained(self, seconds: float) -> None:
        return None

    def facts(self) -> Row:
        memory = self.compiled.memory_analysis()
        return {"temp_mib": memory.temp_size_in_bytes / 2**20} if memory else {}

    def _optimizer(self) -> optax.GradientTransformation:
        return optimizer.make(self._experiment.optim, self._experiment.train.steps)


def _tokens(e: Experiment) -> Array:
    shape = (e.train.batch_size, e.data.seq_len + 1)
    return jax.random.randint(jax.random.key(0), shape, 0, e.model.vocab_size, jnp.int32)


def _random_parameters(config: Model) -> model.Params:
    """Weights of the size of fresh ones, the same million numbers again and again: drawing them all would take longer
    than the benchmark."""
    drawn = 0.02 * np.random.default_rng(0).standard_normal(1_000_003, np.float32)
    return jax.tree.map(lambda leaf: jnp.asarray(np.resize(drawn, leaf.shape)), model.abstract(config))
