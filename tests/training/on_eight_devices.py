"""Run by test_mesh.py with eight simulated devices: python on_eight_devices.py few|all.

"all": each mesh shape with one projection and backend; with each of them where ANDREA_WHOLE_CONTRACT is set.
"""

import dataclasses
import itertools
import os
import sys

import jax
import numpy as np

from andrea_jax import model
from andrea_jax.benchmarks.many_devices import compiled, meshes
from andrea_jax.compiled import collectives
from andrea_jax.config import Compute, Data, Experiment, Model, Optim, Train
from andrea_jax.config_mesh import Mesh
from andrea_jax.training import make_step, optimizer, traffic, window_losses
from andrea_jax.training.placement import Placement

STEPS = 5
EXPERIMENT = Experiment(
    # 264 words, 8 heads and d_mlp 48 can be cut in eight; windows of 13 tokens cannot
    model=Model(vocab_size=264, seq_len=17, d_model=64, n_layer=1, n_head=8, d_mlp=48),
    data=Data(seq_len=13),
    optim=Optim(name="sgd", learning_rate=0.3, clip_norm=1.0),
    train=Train(steps=STEPS, batch_size=8),
    compute=Compute(backend="chunked"),
)
WINDOWS = np.random.default_rng(0).integers(0, 264, (STEPS, 8, 14), np.int32)


def trained(e: Experiment) -> tuple[np.ndarray, np.ndarray, dict]:
    """(losses [step], gradient norms of the heads, trained parameters) on the mesh of the experiment."""
    placement, optimize = Placement.of(e.compute.mesh), optimizer.make(e.optim, STEPS)
    params = model.initialise(e.model, 0)
    params, state = placement.place(params), placement.place(optimize.init(params))
    losses, head_grad_norm, step = [], np.zeros(0), make_step(e)
    for windows in WINDOWS:
        params, state, metrics = step(params, state, placement.batch(windows.shape, windows.__getitem__))
        losses.append(float(metrics["loss"]))
        head_grad_norm = np.asarray(metrics["head_grad_norm"])
    return np.array(losses), head_grad_norm, params


def changed(projection: str, backend: str, mesh: Mesh, **model_changes) -> Experiment:
    config = dataclasses.replace(EXPERIMENT.model, projection=projection, **model_changes)
    compute = dataclasses.replace(EXPERIMENT.compute, backend=backend, mesh=mesh)
    return dataclasses.replace(EXPERIMENT, model=config, compute=compute)


def same_as_on_one_device(projection: str, backend: str, on: list[Mesh], **model_changes) -> None:
    want = trained(changed(projection, backend, Mesh(), **model_changes))
    assert np.ptp(want[0]) > 0.01, want[0]  # it trains
    for mesh in on:
        e = changed(projection, backend, mesh, **model_changes)
        found = trained(e)
        for a, b, what in zip(found[:2], want[:2], ("losses", "head_grad_norm"), strict=True):
            np.testing.assert_allclose(a, b, rtol=3e-6, err_msg=f"{what} {projection} {backend} {mesh}")
        for a, b in zip(jax.tree.leaves(found[2]), jax.tree.leaves(want[2]), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=2e-6, err_msg=f"{projection} {mesh}")


def held_out_losses_are_the_same() -> None:
    e = changed("fused", "chunked", Mesh(data=2, fsdp=2, heads=2))
    params, windows = model.initialise(e.model, 1), WINDOWS[0, :7]  # 7 windows: four parts need 8
    placement = Placement.of(e.compute.mesh)
    settings = {"compute": e.compute, "batch_size": 3}
    found = window_losses(e.model, placement.place(params), windows, **settings, placement=placement)
    np.testing.assert_allclose(found, window_losses(e.model, params, windows, **settings), rtol=3e-6)


def each_device_keeps_a_part() -> None:
    params = model.initialise(changed("per_head", "chunked", Mesh(), biases=True).model, 0)
    placement = Placement.of(Mesh(fsdp=2, heads=4))
    weights = placement.place(params)["layers"]["0"]["attention"]["projection"]
    shapes = {name: x.addressable_shards[0].data.shape for name, x in weights.items()}
    assert shapes["W_Q"] == (2, 32, 8), shapes  # of [8, 64, 8]
    assert shapes["W_O"] == (2, 8, 32), shapes
    assert shapes["b_O"] == (64,), shapes


def sent_bytes_are_those_of_the_plan() -> None:
    """On a CPU: of an all-reduce where a GPU reduces and scatters, so fsdp is left out."""
    for mesh, axis in ((Mesh(data=8), "data"), (Mesh(heads=8), "heads")):
        e = changed("fused", "chunked", mesh, n_layer=2)
        (program,) = compiled([e])
        found = sum(n_bytes for _, n_bytes in collectives(program.as_text() or "").values())
        want = traffic.sent(e.model, mesh, windows=8, seq=13, itemsize=4)[axis].bytes
        assert abs(found / want - 1) < 0.03, (mesh, found, want)


if __name__ == "__main__":
    jax.config.update("jax_numpy_rank_promotion", "raise")
    assert jax.device_count() == 8
    if sys.argv[1] == "few":
        same_as_on_one_device("fused", "chunked", [Mesh(data=2, fsdp=2, heads=2)], biases=True)
        held_out_losses_are_the_same()
        each_device_keeps_a_part()
    else:
        every = meshes(8)
        whole = "ANDREA_WHOLE_CONTRACT" in os.environ
        for i, kind in enumerate(itertools.product(("fused", "per_head"), ("reference", "chunked"))):
            same_as_on_one_device(*kind, every if whole else every[i::4])
        if not whole:
            sys.exit()
        sent_bytes_are_those_of_the_plan()
        few = [Mesh(data=2, fsdp=2, heads=2)]
        same_as_on_one_device("fused", "chunked", few, n_kv_head=2, positions="rotary", norm_weights=True)
        same_as_on_one_device("per_head", "chunked", few, tied_embeddings=True, w_o="block_diagonal", d_mlp=0)
