"""Each kernel computes its formula: in JAX's interpreters, and on a GPU where there is one."""

import importlib
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic_gpu.interpret import interpret_pallas_call
from jax.experimental.pallas import mosaic_gpu as plgpu

from andrea_jax import devices, kernels
from andrea_jax.kernels import formulas, gated_kernel, loss_kernel, norm_derivative_kernel, norm_kernel

on_gpu = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")


def drawn(*shape: int, seed: int = 0, dtype: str = "bfloat16") -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def wide(x: jax.Array) -> np.ndarray:
    return np.asarray(x.astype(jnp.float32), np.float64)


def derivative_by_hand(x: np.ndarray, g: np.ndarray, past: np.ndarray) -> np.ndarray:
    r = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    return past + r * g - x * r**3 * (x * g).mean(-1, keepdims=True)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("bfloat16", 2**-7)])
@pytest.mark.parametrize("shape", [(3, 7, 13), (1, 11, 384), (2, 3, 2053)])
def test_a_norm_and_its_derivative_are_those_of_the_formula(shape, dtype, tolerance):
    """Rows that are no power of two, and a number of rows that no block divides."""
    x, g, past = (drawn(*shape, seed=i, dtype=dtype) for i in range(3))
    interpret = jax.default_backend() != "gpu"
    y, r = norm_kernel.launch(x, interpret=interpret)
    found = norm_derivative_kernel.launch(y, r, g, past, interpret=interpret)
    assert (y.dtype, r.dtype, found.dtype) == (x.dtype, jnp.float32, x.dtype)
    rms = np.sqrt((wide(x) ** 2).mean(-1) + 1e-5)
    np.testing.assert_allclose(r, 1 / rms, rtol=1e-6)
    np.testing.assert_allclose(wide(y), wide(x) / rms[..., None], rtol=tolerance, atol=1e-6)
    np.testing.assert_allclose(wide(found), derivative_by_hand(*map(wide, (x, g, past))), rtol=tolerance, atol=6e-3)


@pytest.mark.parametrize("columns, vocab", [(64, 61), (192, 131), (704, 704)])
def test_cross_entropy_ignores_the_columns_that_are_no_words(columns, vocab):
    logits = 5 * drawn(3, 7, columns, dtype="float32")
    targets = jax.random.randint(jax.random.key(1), (3, 7), 0, vocab)
    interpret = jax.default_backend() != "gpu"
    loss, found = loss_kernel.launch(logits, targets, vocab=vocab, dtype=jnp.dtype("float32"), interpret=interpret)
    powers = np.exp(wide(logits)[..., :vocab])
    pattern = powers / powers.sum(-1, keepdims=True)
    onehot = np.eye(columns)[targets]
    np.testing.assert_allclose(loss, -np.log((pattern * onehot[..., :vocab]).sum(-1)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[..., :vocab], pattern - onehot[..., :vocab], atol=1e-6)
    np.testing.assert_array_equal(found[..., vocab:], 0)


def test_cross_entropy_of_logits_of_a_hundred_thousand_is_finite():
    logits = jnp.array([[[1e5, 0.0, -1e5] + [0.0] * 61]])
    for target, expected in ((0, 0.0), (2, 2e5)):
        loss, found = loss_kernel.launch(
            logits,
            jnp.array([[target]]),
            vocab=64,
            dtype=jnp.dtype("bfloat16"),
            interpret=jax.default_backend() != "gpu",
        )
        assert loss[0, 0] == expected and np.isfinite(wide(found)).all()


@pytest.mark.parametrize("blocks", [1, 5])
def test_a_gated_product_is_the_product_where_the_gate_is_open(blocks):
    """More tiles than blocks, and as many; no block reads what another still writes."""
    g, w = drawn(3, 128, 320), drawn(384, 320, seed=1)
    gate = jnp.maximum(drawn(3, 128, 384, seed=2), 0)
    assert gated_kernel.fits(g, w, gate)
    if jax.default_backend() == "gpu":
        found = gated_kernel.launch(g, w, gate, blocks=blocks)
    else:
        found = gated_kernel.launch(g, w, gate, blocks=blocks, interpret=plgpu.InterpretGPUParams(detect_races=True))
        races = interpret_pallas_call.get_races()
        assert races is None or not races.races_found
    expected = np.where(wide(gate) != 0, wide(g) @ wide(w).T, 0)
    np.testing.assert_allclose(wide(found), expected, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("shape", [(127, 384, 384), (128, 384, 383), (128, 320 + 8, 384), (128, 256, 384)])
def test_what_is_no_whole_tile_is_left_to_the_formula(shape):
    rows, k, n = shape
    assert not gated_kernel.fits(drawn(1, rows, k), drawn(n, k), drawn(1, rows, n))
    assert not gated_kernel.fits(*(drawn(*s, dtype="float32") for s in ((1, 128, 320), (384, 320), (1, 128, 384))))


def test_where_there_is_no_gpu_no_kernel_is_loaded_and_nothing_is_said(monkeypatch: pytest.MonkeyPatch):
    program = "import sys; from andrea_jax import model, training; print('jax.experimental.pallas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    monkeypatch.setattr(devices, "_said", said := set())
    monkeypatch.setattr(devices, "compute_capability", lambda device: None)
    kernels.norm(drawn(1, 2, 3))
    assert not said


@pytest.mark.parametrize(
    "capability, uses", [((7, 5), ()), ((8, 9), ("norm", "loss")), ((9, 0), ("norm", "loss", "gated"))]
)
def test_a_card_gets_the_kernels_that_it_can_run(monkeypatch: pytest.MonkeyPatch, capability, uses):
    monkeypatch.setattr(devices, "compute_capability", lambda device: capability)
    arrays = {
        "norm": (kernels._NORM, [drawn(1, 2, 3)]),
        "loss": (kernels._LOSS, [drawn(1, 2, 64, dtype="float32"), jnp.zeros((1, 2), int)]),
        "gated": (kernels._GATED, [drawn(1, 128, 320), drawn(192, 320), drawn(1, 128, 192)]),
    }
    assert tuple(name for name, (kernel, given) in arrays.items() if kernel.module(tuple(given))) == uses


def test_a_jax_without_pallas_on_triton_computes_the_formula_and_says_so(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str):
        raise ImportError("no triton in pallas")

    monkeypatch.setattr(devices, "_said", said := set())
    monkeypatch.setattr(devices, "compute_capability", lambda device: (9, 0))
    monkeypatch.setattr(importlib, "import_module", missing)
    x = drawn(1, 2, 3)
    np.testing.assert_array_equal(kernels.norm(x)[0], formulas.norm(x)[0])
    assert said == {f"norm_kernel: not with jax {jax.__version__} (no triton in pallas)"}


def test_under_vmap_lanes_are_part_of_the_batch_where_no_weight_is_mapped(monkeypatch: pytest.MonkeyPatch):
    launched = []

    def launch(y, r, g, past):
        launched.append(y.shape)
        return formulas.norm_derivative(y, r, g, past)

    stand_in = SimpleNamespace(fits=lambda *arrays: True, launch=launch)
    monkeypatch.setattr(kernels._Kernel, "module", lambda self, arrays: stand_in)
    y, g, past = (drawn(5, 1, 2, 3, seed=i) for i in range(3))
    r = drawn(5, 1, 2, dtype="float32")
    found = jax.vmap(kernels.norm_derivative, in_axes=(0, 0, 0, None))(y, r, g, past[0])
    assert launched[-1] == (5, 2, 3)  # before that, one lane is traced
    for i in range(5):
        np.testing.assert_array_equal(found[i], formulas.norm_derivative(y[i], r[i], g[i], past[0]))


def test_under_vmap_a_product_with_mapped_weights_is_the_formula(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "compute_capability", lambda device: (9, 0))
    g, w, gate = drawn(2, 1, 128, 320), drawn(2, 192, 320, seed=1), drawn(2, 1, 128, 192, seed=2)
    found = jax.vmap(kernels.gated_product)(g, w, gate)
    for i in range(2):
        expected = formulas.gated_product(g[i], w[i], gate[i])
        np.testing.assert_allclose(*(np.float32(x) for x in (found[i], expected)), rtol=2**-7)  # bfloat16's last bit


@on_gpu
def test_the_gradients_of_a_training_step_are_those_without_kernels(monkeypatch: pytest.MonkeyPatch):
    from andrea_jax import model
    from andrea_jax.config import Model
    from andrea_jax.training.cross_entropy import mean_loss

    config = Model(n_layer=2, n_head=6, d_model=384, seq_len=256, vocab_size=131)
    params, tokens = model.initialise(config, 0), jax.random.randint(jax.random.key(0), (4, 257), 0, 131)

    def gradients():
        def loss(params):
            andrea = model.bind(config, params, dtype="bfloat16")
            return mean_loss(andrea.final(tokens[:, :-1]), andrea.unembedding, tokens[:, 1:])

        return jax.jit(jax.grad(loss))(params)

    with_kernels = gradients()
    monkeypatch.setattr(kernels._Kernel, "module", lambda self, arrays: None)
    for found, expected in zip(jax.tree.leaves(with_kernels), jax.tree.leaves(gradients()), strict=True):
        assert jnp.linalg.norm(found - expected) <= 0.01 * jnp.linalg.norm(expected)


SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from types import SimpleNamespace
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from andrea_jax import devices, kernels
from andrea_jax.kernels import formulas

assert jax.device_count() == 8
mesh = jax.make_mesh((4, 2), ("data", "heads"), axis_types=(AxisType.Auto, AxisType.Auto))
seen = {}

def stand_in(self, arrays):  # the kernels need a GPU: their formulas stand in for them
    def launch(*local, **settings):
        seen[self.file] = [x.shape for x in local]
        return self.formula(*local, **settings)
    return SimpleNamespace(fits=lambda *local: True, launch=launch)

kernels._Kernel.module = stand_in
rows = lambda i, *shape: jax.random.normal(jax.random.key(i), shape)
put = lambda x, *axes: jax.device_put(x, NamedSharding(mesh, P(*axes)))
targets = jax.random.randint(jax.random.key(9), (4, 5), 0, 7)
cases = [
    (kernels.norm, [rows(0, 4, 5, 6)], [("data",)], [(1, 5, 6)]),
    (kernels.norm_derivative, [rows(0, 4, 5, 6), rows(7, 4, 5), rows(1, 4, 5, 6), rows(2, 4, 5, 6)], [("data",)] * 4,
     [(1, 5, 6), (1, 5), (1, 5, 6), (1, 5, 6)]),
    (lambda x, y: kernels.cross_entropy(x, y, 7, "float32"), [rows(3, 4, 5, 7), targets], [("data",)] * 2,
     [(1, 5, 7), (1, 5)]),
    (kernels.gated_product, [rows(4, 4, 5, 6), rows(5, 8, 6), rows(6, 4, 5, 8)],
     [("data",), ("heads",), ("data", None, "heads")], [(1, 5, 6), (4, 6), (1, 5, 4)]),
]
for function, arrays, cut, shapes in cases:
    placed = [put(x, *axes) for x, axes in zip(arrays, cut)]
    compiled = jax.jit(function).lower(*placed).compile()
    moves = ("all-gather", "all-to-all", "collective-permute")
    assert not any(word in compiled.as_text() for word in moves), "data moved"
    want = function(*arrays)
    for x, y in zip(jax.tree.leaves(compiled(*placed)), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)
        assert x.sharding.spec[0] == "data", x.sharding
    jax.jit(lambda *x: function(*x)).lower(*placed).compile()
    assert shapes in seen.values(), seen
    seen.clear()
    with devices.over(jax.make_mesh((2, 2, 2), ("data", "fsdp", "heads"), axis_types=(AxisType.Auto,) * 3)):
        found = jax.jit(lambda *x: function(*x))(*arrays)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)
    assert shapes in seen.values(), seen
"""


@pytest.mark.slow
def test_each_device_launches_a_kernel_on_its_part_and_no_data_moves():
    surroundings = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", SHARDED], env=surroundings, check=True)
