"""What has to hold on several devices besides the losses: a run moves between meshes, and attention kernels are cut."""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from andrea_jax import data, runs
from andrea_jax.attention import BACKENDS, attention
from andrea_jax.benchmarks.programs import Row
from andrea_jax.benchmarks.timing import why
from andrea_jax.compiled import collectives
from andrea_jax.config import Experiment
from andrea_jax.config_mesh import Mesh
from andrea_jax.training import train
from andrea_jax.training.placement import Placement

HALF, END = 5, 10  # steps: where a run moves, and where the losses of both stretches are written
BATCH, SEQ = 8, 1024


def resumed(name: str, e: Experiment, on: Sequence[Mesh], dataset: data.Dataset) -> list[Row]:
    """Runs of `END` steps that move after half of them, from each mesh to one device and back, and one that stays."""
    rows: list[Row] = []
    moves = [(Mesh(), Mesh()), *((mesh, Mesh()) for mesh in on), *((Mesh(), mesh) for mesh in on)]
    for first, second in moves:
        with tempfile.TemporaryDirectory() as folder:
            run = runs.create(Path(folder), e, name)
            for mesh, until in ((first, HALF), (second, END)):
                compute = dataclasses.replace(e.compute, mesh=mesh)
                on_mesh = runs.Run(run.path, dataclasses.replace(e, compute=compute))
                train(on_mesh, dataset, until=until, progress=False)
            (line,) = (line for line in run.metrics() if line["step"] == END and "loss" in line)
        row = {"part": "resume", "model": name, "projection": e.model.projection, "steps": END, "us": None}
        row |= {"mesh": f"{first.shape} → {second.shape}", "devices": max(first.size, second.size)}
        off = abs(line["loss"] - rows[0]["loss"]) if rows else 0.0
        rows.append({**row, "loss": line["loss"], "off_mean": off, "reason": None})
    return rows


def kernels(n: int) -> list[Row]:
    """Every backend with its heads over n devices, beside the same on one: how far z, lse and the gradients are apart,
    and what the devices send to each other (nothing, where the cut is clean)."""
    placement = Placement.of(Mesh(heads=n))
    dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    rows: list[Row] = []
    for backend in BACKENDS:
        for head_dim in (32, 64):
            row = {"part": "kernels", "backend": backend.name, "head_dim": head_dim, "devices": n, "us": None}
            row |= {"mesh": Mesh(heads=n).shape, "model": f"head_dim {head_dim}"}
            try:
                rows.append({**row, **_kernel(backend.name, placement, (BATCH, SEQ, 12, head_dim), dtype)})
            except Exception as error:  # whatever a kernel raises where it cannot run
                rows.append({**row, "reason": why(error)})
    return rows


def _kernel(backend: str, placement: Placement, shape: tuple[int, ...], dtype: str) -> Row:
    if jax.default_backend() == "cpu":
        shape = (1, 64, 8, shape[-1])
    drawn = [jax.random.normal(jax.random.key(i), shape, jnp.dtype(dtype)) for i in range(4)]

    @jax.jit
    def both(q: Array, k: Array, v: Array, dz: Array) -> tuple[Array, ...]:
        (z, lse), pull = jax.vjp(lambda *qkv: attention(*qkv, backend=backend), q, k, v)
        return z, lse, *pull((dz, jnp.zeros_like(lse)))

    assert placement.mesh is not None
    by_head = NamedSharding(placement.mesh, P(None, None, "heads"))
    cut = [jax.device_put(x, by_head) for x in drawn]
    compiled = both.lower(*cut).compile()
    text = compiled.as_text()
    assert text is not None
    pairs = zip(compiled(*cut), both(*drawn), strict=True)
    off = [float(np.abs(np.asarray(a, np.float32) - np.asarray(b, np.float32)).max()) for a, b in pairs]
    sent = {kind: list(of) for kind, of in collectives(text).items()}
    return {"off_max": max(off), "collectives": sent or None, "reason": None}
