"""Training on the devices of one host: the same losses on every mesh, how much faster, and what a step waits for.

The base is the same step on one of the devices. What rounding alone does to its losses is measured beside: the same
windows in reverse order, which adds up the same numbers in another order.
"""

import contextlib
import dataclasses
import functools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.stages import Compiled

from andrea_jax import data, model
from andrea_jax.benchmarks import device_checks, torch_training, waiting
from andrea_jax.benchmarks.peers import known
from andrea_jax.benchmarks.programs import Row
from andrea_jax.benchmarks.results import Results
from andrea_jax.benchmarks.timing import why
from andrea_jax.compiled import collectives
from andrea_jax.config import Experiment, Model, Optim, problems
from andrea_jax.config_mesh import Mesh
from andrea_jax.errors import UserError
from andrea_jax.model import Params
from andrea_jax.plots import mesh_figures
from andrea_jax.training import make_step, optimizer
from andrea_jax.training.placement import Placement

PARTS = ("losses", "speed", "resume", "kernels", "torch")
WARM = 0.3  # of the steps are not timed
LAG = 2  # steps whose loss is not waited for, as in training
ONE = Mesh()

type Named = tuple[str, Experiment]


def meshes(n: int) -> list[Mesh]:
    """Every mesh of n devices, those with one axis first."""
    sizes = [size for size in range(1, n + 1) if n % size == 0]
    found = [Mesh(data=d, fsdp=f, heads=n // (d * f)) for d in sizes for f in sizes if n % (d * f) == 0]
    return sorted(found, key=lambda mesh: sum(size > 1 for size in vars(mesh).values()))


def bench_mesh(
    folder: Path,
    *,
    configs: Sequence[Named],
    steps: Sequence[int],
    parts: Sequence[str] = PARTS,
    repeats: int = 20,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Results:
    """Writes mesh.json, .csv, .parquet and the figure into `folder`. configs: names and experiments, with one number of
    `steps` each for the losses; speed is of `repeats` steps, on that many windows a device as the config has in all."""
    parts, n = known(parts, PARTS, "part"), jax.device_count()
    if n == 1:
        raise UserError("bench mesh: needs several devices, and there is one")
    settings = {"configs": [name for name, _ in configs], "steps": list(steps), "devices": n, "parts": list(parts)}
    results = Results(folder, "mesh", settings, configs[0][1].compute.dtype, repeats)
    jobs: list[tuple[Row, Callable[[], Iterable[Row]]]] = []
    for (name, experiment), n_steps in zip(configs, steps, strict=True):
        dataset = functools.cache(functools.partial(data.prepare, experiment))
        jobs += _jobs(name, experiment, n_steps, n, dataset, parts, repeats)
    if "kernels" in parts:
        jobs.append(({"part": "kernels", "model": ""}, lambda: device_checks.kernels(n)))
    for done, (about, job) in enumerate(jobs):
        tell(done, len(jobs))
        try:
            for row in job():  # written as it comes: a benchmark that is stopped keeps what it has
                results.add([row])
        except Exception as error:  # what one part raises, whatever it is, must not cost the others
            results.add([{**about, "mesh": about["part"], "devices": n, "us": None, "reason": why(error)}])
    tell(len(jobs), len(jobs))
    rows = results.rows
    results.finish(mesh_figures.verdicts(rows), lambda: mesh_figures.many_devices(rows, results.of))
    return results


def _jobs(
    name: str,
    e: Experiment,
    steps: int,
    n: int,
    dataset: Callable[[], data.Dataset],
    parts: Sequence[str],
    repeats: int,
) -> list[tuple[Row, Callable[[], Iterable[Row]]]]:
    """Every part of one config."""
    on = [mesh for mesh in meshes(n) if not problems(_changed(e, mesh))]
    large = [mesh for mesh in meshes(n) if not problems(_changed(e, mesh, windows=n))]
    jobs = {
        "losses": [
            functools.partial(_losses, name, _changed(e, ONE, projection=view), on, dataset, steps)
            for view in ("fused", "per_head")
        ],
        "speed": [lambda: _speed(name, e, large, n, dataset(), repeats)],
        "resume": [lambda: device_checks.resumed(name, e, on, dataset())],
        "torch": [lambda: torch_training.rows(name, e, n, dataset(), repeats)],
    }
    return [({"part": part, "model": name}, job) for part in PARTS if part in parts for job in jobs.get(part, ())]


def _changed(e: Experiment, mesh: Mesh, *, windows: int = 1, projection: str | None = None) -> Experiment:
    """The experiment on a mesh, with `windows` times the batch."""
    form = e.model if projection in (None, e.model.projection) else _view(e.model, projection)
    train = dataclasses.replace(e.train, batch_size=e.train.batch_size * windows)
    return dataclasses.replace(e, model=form, train=train, compute=dataclasses.replace(e.compute, mesh=mesh))


def _view(config: Model, projection: str) -> Model:
    return dataclasses.replace(config, projection=projection, projection_form=None)  # pyright: ignore[reportArgumentType]


def _losses(
    name: str, e: Experiment, on: Sequence[Mesh], dataset: Callable[[], data.Dataset], steps: int
) -> Iterator[Row]:
    """A row for each mesh: how far its losses are from those of one device."""
    experiments = [_changed(e, mesh) for mesh in (ONE, *on)]
    programs = compiled(experiments)
    about: Row = {"part": "losses", "model": name, "projection": e.model.projection, "steps": steps}
    base = trained(experiments[0], programs[0], dataset(), steps)
    yield {**about, **_row(experiments[0], programs[0], base), "losses": base.losses.tolist()}
    reverse = trained(experiments[0], programs[0], dataset(), steps, reverse=True)
    row = {**about, **_row(experiments[0], programs[0], reverse), "mesh": "one device, reverse order"}
    yield {**row, **_off(reverse.losses, base.losses)}
    for experiment, program in zip(experiments[1:], programs[1:], strict=True):
        found = trained(experiment, program, dataset(), steps)
        row = {**about, **_row(experiment, program, found), **_off(found.losses, base.losses)}
        n = experiment.compute.mesh.size
        yield {**row, "losses": found.losses.tolist(), "efficiency": base.step / found.step / n}


def _off(losses: np.ndarray, base: np.ndarray) -> Row:
    off = np.abs(losses - base)
    return {"off_first": float(off[0]), "off_mean": float(off.mean()), "off_max": float(off.max())}


def _speed(name: str, e: Experiment, on: Sequence[Mesh], n: int, dataset: data.Dataset, repeats: int) -> Iterator[Row]:
    """Tokens/s with the config's batch on every device, and the shares of a step's time from a profile."""
    experiments = [_changed(e, ONE), *(_changed(e, mesh, windows=n) for mesh in on)]
    programs, one = compiled(experiments), None
    for experiment, program in zip(experiments, programs, strict=True):
        found = trained(experiment, program, dataset, repeats)
        row = {"part": "speed", "model": name, "projection": e.model.projection, "steps": repeats}
        row |= _row(experiment, program, found)
        one = one or row["tokens_per_s"]
        shares = waiting.shares_or_why(
            lambda profile, on=experiment, run=program: trained(on, run, dataset, 6, timed=profile)
        )
        yield {**row, "efficiency": row["tokens_per_s"] / one / experiment.compute.mesh.size, **shares}


@dataclasses.dataclass(frozen=True)
class Found:
    """losses [step], nats a token; seconds of each timed step."""

    losses: np.ndarray
    seconds: np.ndarray

    @property
    def step(self) -> float:
        return float(np.median(self.seconds))


def _row(e: Experiment, program: Compiled, found: Found) -> Row:
    tokens, text = e.train.batch_size * e.data.seq_len, program.as_text()
    memory = program.memory_analysis()
    assert text is not None and memory is not None
    return {
        "mesh": e.compute.mesh.shape, "devices": e.compute.mesh.size, "batch": e.train.batch_size,
        "us": 1e6 * found.step, "fastest_us": 1e6 * float(found.seconds.min()),
        "slowest_us": 1e6 * float(found.seconds.max()), "tokens_per_s": tokens / found.step,
        "temp_mib": memory.temp_size_in_bytes / 2**20, "arguments_mib": memory.argument_size_in_bytes / 2**20,
        # None where there is none: parquet knows no empty record
        "collectives": {kind: list(sent) for kind, sent in collectives(text).items()} or None, "reason": None,
    }  # fmt: skip


def compiled(experiments: Sequence[Experiment]) -> list[Compiled]:
    """Their steps; four compile at a time."""

    def one(e: Experiment) -> Compiled:
        placement, optimize = Placement.of(e.compute.mesh), optimizer.make(e.optim, e.train.steps)
        params = model.abstract(e.model)
        state = jax.eval_shape(optimize.init, params)

        def placed(tree):
            return jax.tree.map(
                lambda x, how: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=how), tree, placement.shardings(tree)
            )

        shape = e.train.batch_size, e.data.seq_len + 1
        tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=placement.batches)
        return make_step(e).lower(placed(params), placed(state), tokens).compile()  # pyright: ignore[reportFunctionMemberAccess]

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, experiments))


@functools.lru_cache(maxsize=2)
def _initial(config: Model, optim: Optim, steps: int, seed: int) -> tuple[Params, optax.OptState]:
    params = model.initialise(config, seed)
    return jax.device_get((params, optimizer.make(optim, steps).init(params)))


def trained(
    e: Experiment,
    step: Compiled,
    dataset: data.Dataset,
    steps: int,
    *,
    reverse: bool = False,
    timed: AbstractContextManager | None = None,
) -> Found:
    """`steps` steps from the beginning on the batches of `data`, each timed from the end of the one before; within
    `timed`, once the weights and the first batches lie on the devices."""
    placement = Placement.of(e.compute.mesh)
    params, state = (placement.place(x) for x in _initial(e.model, e.optim, e.train.steps, e.train.seed))
    order = slice(None, None, -1) if reverse else slice(None)
    shape = e.train.batch_size, e.data.seq_len + 1
    losses, ends, waiting_for = [], [], deque()

    def finish() -> None:
        losses.append(float(waiting_for.popleft()))
        ends.append(time.perf_counter())

    with ThreadPoolExecutor(1) as pool:

        def make(i: int):
            return placement.batch(shape, lambda rows: data.batch(dataset, e, i)[order][rows])

        ahead = deque(pool.submit(make, i) for i in range(min(4, steps)))
        jax.block_until_ready((params, state, [batch.result() for batch in ahead]))
        with timed or contextlib.nullcontext():
            for i in range(steps):
                params, state, metrics = step(params, state, ahead.popleft().result())
                if i + 4 < steps:
                    ahead.append(pool.submit(make, i + 4))
                waiting_for.append(metrics["loss"])
                if len(waiting_for) > LAG:
                    finish()
            while waiting_for:
                finish()
    return Found(np.array(losses), np.diff(ends)[int(WARM * steps) :])
