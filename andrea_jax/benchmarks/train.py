"""How fast models train on real text: `andrea train` itself, its step alone, and torch, in the same hour.

"andrea train" is the whole loop of a run in a folder of its own: batches made from text on the host, metrics fetched,
lines written. Its rate is the median of metrics.jsonl's lines. "step" is the compiled step on batches that lie on the
device already. torch trains the same model on the same text (`torch_training`), compiled on a GPU, eagerly on a CPU.
"""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from andrea_jax import data, model, runs
from andrea_jax.benchmarks import shares, torch_training
from andrea_jax.benchmarks.head_dim import step_flops
from andrea_jax.benchmarks.peers import known
from andrea_jax.benchmarks.programs import Row
from andrea_jax.benchmarks.results import Results, relative
from andrea_jax.benchmarks.shapes import dtype_here
from andrea_jax.benchmarks.timing import Tell, why
from andrea_jax.config import Compute, Data, Experiment, Model, Optim, Train
from andrea_jax.plots import train_figures
from andrea_jax.plots.train_figures import LOOP, STEP, TORCH
from andrea_jax.training import make_step, optimizer, train

SECONDS = 4.0  # of timed training, for each contender
WARM = 10  # steps that are not timed
FEWEST, MOST = 40, 400  # timed steps
LINE = 10  # steps of a line of metrics.jsonl


def _size(vocab: int, d_model: int, n_layer: int, n_head: int, seq: int, batch: int) -> tuple[Model, int]:
    return Model(vocab_size=vocab, seq_len=seq, d_model=d_model, n_layer=n_layer, n_head=n_head), batch


# name -> (model, windows a step); the family's shapes, and for a CPU the quickstart's and two of twice its width
FAMILY = {
    "andrea-12m": _size(2305, 384, 6, 12, 1024, 64),
    "andrea-120m": _size(8449, 768, 12, 12, 1024, 32),
    "andrea-480m": _size(16641, 1536, 16, 24, 1024, 16),
}
FOR_CPU = {
    "quickstart": _size(257, 64, 2, 4, 64, 32),
    "128 wide, 2 layers": _size(257, 128, 2, 8, 128, 16),
    "128 wide, 4 layers": _size(257, 128, 4, 8, 128, 16),
}


def bench_train(
    out: Path,
    models: Sequence[str] | None = None,
    sizes: dict[str, tuple[Model, int]] | None = None,
    seconds: float = SECONDS,
    repeats: int = 5,
    tell: Tell = lambda done, total: None,
) -> Results:
    """A row for each model and contender, as soon as it is measured; written to `out`/train.*.

    models: names in `sizes`, None: all; sizes: None: what suits the device. seconds: of timed steps, for each
    contender; those of the step alone in `repeats` stretches. Columns: model, contender · batch, seq, n_params · us (a
    step), fastest_us, slowest_us, tokens_per_s, ratio (of the rates, to torch's) · flops (a step), mfu (of the measured
    ceiling) · compile_s, peak_mib · shares (of a step's time by part; STEP only) · reason.
    """
    sizes = sizes or (FOR_CPU if jax.default_backend() == "cpu" else FAMILY)
    names = known(models or list(sizes), list(sizes), "model")
    dtype = dtype_here()
    results = Results(out, "train", {"models": list(names), "seconds": seconds}, dtype, repeats)
    for i, name in enumerate(names):
        e = _experiment(*sizes[name], dtype)
        with tempfile.TemporaryDirectory() as folder, _programs_kept(Path(folder, "programs")):
            for row in _of_model(name, e, data.prepare(e), Path(folder), seconds, repeats):
                results.add([_rated(row, results.ceiling)])
        results.rows[:] = _compared(results.rows)
        results.add([])
        tell(i + 1, len(names))
    results.finish(train_figures.verdicts(results.rows), lambda: train_figures.train(results.rows, results.of))
    return results


@contextlib.contextmanager
def _programs_kept(folder: Path) -> Iterator[None]:
    """What is compiled meanwhile is compiled once, however often it is asked for. Not on a CPU, where it is quick."""
    before = jax.config.jax_compilation_cache_dir
    if jax.default_backend() != "cpu":
        jax.config.update("jax_compilation_cache_dir", str(folder))
        compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def _experiment(config: Model, batch: int, dtype: str) -> Experiment:
    return Experiment(
        model=config,
        data=Data(seq_len=config.seq_len, tokenizer="bytes" if config.vocab_size == 257 else "bpe"),
        optim=Optim(weight_decay=0.1),
        train=Train(steps=10_000, batch_size=batch, eval_every=10_000),
        compute=Compute(dtype="float32" if dtype == "float32" else "bfloat16"),
    )


def _of_model(
    name: str, e: Experiment, dataset: data.Dataset, folder: Path, seconds: float, repeats: int
) -> Iterator[Row]:
    row = {
        "model": name, "batch": e.train.batch_size, "seq": e.data.seq_len, "flops": step_flops(e),
        "n_params": sum(x.size for x in jax.tree.leaves(model.abstract(e.model))),
    }  # fmt: skip
    step, step_s = _step(e, dataset, seconds, repeats)
    yield {**row, "contender": STEP, **step}
    steps = min(MOST, max(FEWEST, int(seconds / step_s)))  # the same for both: a GPU slows down as it gets warm
    loop, torch = partial(_loop, e, dataset, folder, steps), partial(_torch, name, e, dataset, steps)
    for contender, measured in ((TORCH, torch), (LOOP, loop)):
        try:
            yield {**row, "contender": contender, **measured()}
        except Exception as error:  # the other contenders go on, whatever fails
            yield {**row, "contender": contender, "us": None, "reason": why(error)}


def _rated(row: Row, ceiling: float) -> Row:
    if row["us"] is None:
        return row
    rate = row["batch"] * row["seq"] / row["us"] * 1e6
    return {**row, "tokens_per_s": rate, "mfu": row["flops"] / row["us"] / 1e6 / ceiling}


def _compared(rows: Sequence[Row]) -> list[Row]:
    """With "ratio": of the rates, so that above 1 is faster than torch."""
    times = relative(rows, {"contender": TORCH}, ("model",))
    return [{**row, "ratio": 1 / row["ratio"] if row["ratio"] else None} for row in times]


def _step(e: Experiment, dataset: data.Dataset, seconds: float, repeats: int) -> tuple[Row, float]:
    """The compiled step on eight batches in turn, and the seconds of one."""
    params = model.initialise(e.model, 0)
    state = optimizer.make(e.optim, e.train.steps).init(params)
    batches = [jax.device_put(data.batch(dataset, e, i)) for i in range(8)]
    lowered = make_step(e).lower(params, state, batches[0])  # pyright: ignore[reportFunctionMemberAccess]
    began = time.perf_counter()
    compiled = lowered.compile()
    compile_s = time.perf_counter() - began
    carried = [params, state]

    def run(times: int, step=compiled) -> float:
        start, metrics = time.perf_counter(), None
        for i in range(times):
            *carried[:], metrics = step(*carried, batches[i % len(batches)])
        jax.block_until_ready(metrics)
        return (time.perf_counter() - start) / times

    run(WARM)
    times = max(1, int(seconds / repeats / run(WARM)))
    found = [run(times) for _ in range(repeats)]
    named = lowered.compile(compiler_options=shares.NAMED) if jax.default_backend() == "gpu" else compiled
    run(2, named)
    spent = shares.shares(named.as_text() or "", lambda: run(5, named))
    memory = compiled.memory_analysis()
    peak = memory.temp_size_in_bytes + memory.argument_size_in_bytes if memory else None
    row = {**_times(found), "compile_s": compile_s, "peak_mib": peak and peak / 2**20, "shares": spent, "reason": None}
    return row, statistics.median(found)


def _times(seconds: Sequence[float]) -> Row:
    return {
        "us": 1e6 * statistics.median(seconds), "fastest_us": 1e6 * min(seconds), "slowest_us": 1e6 * max(seconds),
    }  # fmt: skip


def _loop(e: Experiment, dataset: data.Dataset, folder: Path, steps: int) -> Row:
    """`training.train` in a run of its own."""
    run = runs.create(folder, e, "bench")
    train(run, dataset, until=WARM + steps, progress=False)
    rates = [line["tokens_per_s"] for line in run.metrics() if "loss" in line and line["step"] > WARM]
    tokens = e.train.batch_size * e.data.seq_len
    return {**_times([tokens / rate for rate in rates]), "peak_mib": None, "reason": None}


def _torch(name: str, e: Experiment, dataset: data.Dataset, steps: int) -> Row:
    (row,) = torch_training.rows(name, e, 1, dataset, steps, ways=("one",))
    return {key: row[key] for key in ("us", "fastest_us", "slowest_us", "reason") if key in row}
