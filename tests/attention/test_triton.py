"""The contract of `contract.py` for the triton backend, and what the contract does not ask.

On any machine its kernels run in Triton's interpreter, with tiles so small that short sequences need several.
"""

import subprocess
import sys
from functools import partial
from importlib.util import find_spec

import contract
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import triton_interpreter
from test_sharded_attention import PROGRAM, run_on_eight_devices

from andrea_jax import devices
from andrea_jax.attention import AUTO, BACKENDS, attention, attention_fused, tiles, triton
from andrea_jax.attention.backends import Call, choose
from andrea_jax.benchmarks import grids
from andrea_jax.errors import UserError

triton_attention = partial(attention, backend="triton")


def tile(queries: int, keys: int) -> tiles.TritonTile:
    return tiles.TritonTile(queries, keys, warps=1, stages=1)


@pytest.fixture
def interpreted(monkeypatch):
    """Calls of the backend run in the interpreter. The value sets their tiles."""
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    monkeypatch.setattr(devices, "compute_capability", lambda device: (9, 0))
    monkeypatch.setattr(triton, "find_spec", lambda name: name)
    monkeypatch.setattr(triton, "_launch", triton_interpreter.launch)

    def use(forward, backward_queries, backward_keys):
        all_tiles = tiles.TritonTiles(tile(*forward), tile(*backward_queries), tile(*backward_keys))
        monkeypatch.setattr(triton, "triton_tiles", lambda *_: all_tiles)

    use((64, 64), (64, 32), (32, 64))
    return use


class TestTritonInterpreted(contract.AttentionContract):
    backend = "triton"
    variant = "interpreted"
    other_dtypes = ("float16", "bfloat16")

    @pytest.fixture
    def surroundings(self, interpreted):
        return interpreted


class TestTriton(contract.AttentionContract):
    backend = "triton"
    dtype = "bfloat16"
    other_dtypes = ("float16", "float32")

    def test_more_than_two_to_the_31_numbers_are_addressed_right(self):
        shape = (2731, 1024, 12, 64)
        assert np.prod(shape) > 2**31
        q, k, v = (jax.random.normal(key, shape, jnp.bfloat16) for key in jax.random.split(jax.random.key(0), 3))
        run = jax.jit(contract.with_gradients(triton_attention))
        rows = jnp.ones((2731, 12, 1024))
        for all_of_it, last in zip(run(q, k, v, q, rows), run(q[-1:], k[-1:], v[-1:], q[-1:], rows[-1:]), strict=True):
            np.testing.assert_array_equal(np.asarray(all_of_it[-1:], float), np.asarray(last, float))


ALL = {"q_offset": 9, "kv_length": np.array([53, 0, 21], np.int32)}


@pytest.mark.parametrize("dtype, options", [("float32", ALL | {"scale": 0.4}), ("float16", ALL | {"scale": -0.4})])
def test_options_together_over_many_tiles_equal_float64(interpreted, dtype, options):
    interpreted((16, 32), (32, 16), (16, 16))
    case = oracle.draw(37, 53, batch=3, n_head=4, n_kv_head=2, head_dim=24, dtype=dtype)
    run = jax.jit(contract.with_gradients(partial(triton_attention, entropy=True, **options)))
    for x, (name, y) in zip(
        run(*contract.inputs_of(case, dtype)), oracle.attention(case, **options).items(), strict=True
    ):
        allowed = contract.TOLERANCE["float32" if x.dtype == jnp.float32 else dtype]
        np.testing.assert_allclose(np.asarray(x, float), y, rtol=allowed, atol=2 * allowed, err_msg=name)


@pytest.mark.parametrize("mapped", [(0, None, None), (1, 0, 0)])
def test_vmap_over_some_of_the_arguments_equals_a_loop(interpreted, mapped):
    case = oracle.draw(7, batch=6, n_head=1)
    q, k, v = (x.reshape(2, 3, *x.shape[1:]) for x in contract.inputs_of(case, "float32")[:3])
    lengths, offsets = jnp.array([[7, 5, 0], [1, 6, 7]], jnp.int32), jnp.array([0, -2], jnp.int32)
    inputs = [x if axis is not None else x[0] for x, axis in zip((q, k, v), mapped, strict=True)]

    def run(q, k, v, q_offset, kv_length):
        return triton_attention(q, k, v, q_offset=q_offset, kv_length=kv_length, entropy=True)

    moved = [x if not axis else jnp.moveaxis(x, 0, axis) for x, axis in zip(inputs, mapped, strict=True)]
    got = jax.vmap(run, in_axes=(*mapped, 0, 0))(*moved, offsets, lengths)
    for i in range(2):
        one = [x if axis is None else x[i] for x, axis in zip(inputs, mapped, strict=True)]
        for x, y in zip(got, run(*one, offsets[i], lengths[i]), strict=True):
            np.testing.assert_array_equal(np.asarray(x[i]), np.asarray(y))


@pytest.mark.parametrize("scale", [0.0, 1e-9])
def test_a_scale_of_next_to_nothing_attends_to_all_visible_keys_alike(interpreted, scale):
    case = oracle.draw(37)
    z, lse = triton_attention(*contract.inputs_of(case, "float32")[:3], scale=scale)
    np.testing.assert_allclose(lse[1, 2], np.log(np.arange(1, 38)), atol=1e-5)
    np.testing.assert_allclose(z[1, 36], case.v[1].mean(axis=0), atol=1e-5)


def test_keys_that_nobody_sees_are_not_read(interpreted):
    interpreted((16, 16), (16, 16), (16, 16))
    q, k, v = contract.inputs_of(oracle.draw(48, batch=1, n_head=1), "float32")[:3]
    poisoned = v.at[:, 32:].set(jnp.nan)  # 0 · nan is nan: reading it with weight 0 would show
    z = triton_attention(q, k, poisoned)[0]
    np.testing.assert_array_equal(np.isnan(np.asarray(z)).any(axis=(0, 2, 3)), np.arange(48) >= 32)
    # a cache beyond its length may hold anything, also within a tile
    run = contract.with_gradients(partial(triton_attention, causal=False, kv_length=jnp.array([37], jnp.int32)))
    poisoned_k, poisoned_v = (x.at[:, 37:].set(jnp.nan) for x in (k, v))
    z, lse, dq, dk, dv = run(q, poisoned_k, poisoned_v, q, jnp.ones((1, 1, 48)))
    assert all(np.isfinite(np.asarray(x)).all() for x in (z, lse, dq, dk, dv))
    assert not np.any(dk[:, 37:]) and not np.any(dv[:, 37:])


def test_a_program_a_head_gives_the_bits_of_a_program_a_tile(interpreted):
    interpreted((16, 32), (16, 16), (16, 16))
    q, k, v = contract.inputs_of(oracle.draw(37), "float32")[:3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grids, "triton_tiles", triton.triton_tiles)
        np.testing.assert_array_equal(grids.by_head(q, k, v), grids.by_tile(q, k, v))


H200 = Call(device="NVIDIA H200", cuda=(9, 0), dtype="bfloat16", head_dim=64, causal=True, from_zero=True)


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"device": "cpu", "cuda": None}, "needs a CUDA device, and this one is cpu"),
        ({"device": "Tesla T4", "cuda": (7, 5)}, "needs compute capability 8.0, and Tesla T4 has 7.5"),
        ({"dtype": "float64"}, "needs bfloat16, float16 or float32 inputs, not float64"),
        ({"head_dim": 60}, "multiple of 8 from 16 to 256, not 60"),
        ({"head_dim": 8}, "multiple of 8 from 16 to 256, not 8"),
        ({"head_dim": 264}, "multiple of 8 from 16 to 256, not 264"),
        ({}, "needs the package jax-triton, which is not installed"),
    ],
)
def test_a_call_that_it_cannot_run_is_refused_with_the_reason(fields, reason, monkeypatch):
    monkeypatch.setattr(triton, "find_spec", lambda name: None)
    with pytest.raises(UserError) as error:
        choose("triton", Call(**{**vars(H200), **fields}), BACKENDS, AUTO)
    assert reason in str(error.value)


def test_triton_is_imported_only_when_it_is_used():
    program = "import sys, andrea_jax.attention; sys.exit('triton' in sys.modules or 'jax_triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=triton_interpreter.ROOT)


@pytest.mark.skipif(find_spec("jax_triton") is None, reason="jax-triton is not installed")
@pytest.mark.parametrize("entropy", [False, True])
def test_jax_triton_accepts_every_launch(entropy, monkeypatch):
    monkeypatch.setattr(devices, "compute_capability", lambda device: (8, 9))
    q, k = (jax.ShapeDtypeStruct((3, 17, n_head, 72), jnp.float16) for n_head in (6, 2))

    def gradients(q, k, v, q_offset, kv_length):
        def loss(q, k, v):
            out = triton_attention(q, k, v, q_offset=q_offset, kv_length=kv_length, entropy=entropy)
            return sum(x.astype(jnp.float32).sum() for x in out)

        return jax.grad(loss, (0, 1, 2))(q, k, v)

    lengths = jax.ShapeDtypeStruct((3,), jnp.int32)
    traced = jax.jit(gradients).trace(q, k, k, jax.ShapeDtypeStruct((), jnp.int32), lengths)
    assert [x.shape for x in traced.out_info] == [q.shape, k.shape, k.shape]
    assert str(traced.jaxpr).count("triton_kernel_call[") == 3


@pytest.mark.skipif(find_spec("jax_triton") is None, reason="jax-triton is not installed")
def test_q_k_v_of_one_array_are_never_sliced_and_their_gradients_never_joined(monkeypatch):
    monkeypatch.setattr(devices, "compute_capability", lambda device: (8, 9))
    qkv = jax.ShapeDtypeStruct((3, 17, 10, 72), jnp.float16)
    attend = partial(attention_fused, n_head=6, backend="triton")
    traced = jax.jit(jax.grad(lambda qkv: attend(qkv)[0].astype(jnp.float32).sum())).trace(qkv)
    assert traced.out_info.shape == qkv.shape
    text = str(traced.jaxpr)
    assert text.count("triton_kernel_call[") == 3
    assert not any(f" {name}[" in text for name in ("slice", "split", "concatenate", "dynamic_update_slice"))


SHARDED = """
from math import log
import jax
from andrea_jax import devices
from andrea_jax.attention import backends, chunked, split, triton

def parts(static, arrays):
    q, k, v, rest = backends.parts(arrays, static.fused)
    return (*split(q, static.n_head), rest) if static.fused else (q, k, v, rest)

def options(static):
    return {"causal": static.causal, "scale": static.scale, "entropy": static.entropy, "q_offset": 0}

def forward(static, *arrays):
    q, k, v, (_, kv_length) = parts(static, arrays)
    z, lse, entropy = chunked.attention(q, k, v, kv_length=kv_length, **options(static))
    return z, lse / log(2), entropy

def backward(static, *arrays):
    q, k, v, (_, kv_length, z, t_sum, entropy, *cotangents) = parts(static, arrays)
    attend = lambda q, k, v: chunked.attention(q, k, v, kv_length=kv_length, **options(static))
    found = jax.vjp(attend, q, k, v)[1](tuple(cotangents))
    return (jax.numpy.concatenate(found, axis=2),) if static.fused else found

devices.compute_capability = lambda device: (9, 0)
triton.find_spec = lambda name: name
triton._launch_forward, triton._launch_backward = forward, backward
"""


@pytest.mark.slow
def test_sharding_over_batch_and_heads_moves_no_data():
    # jax-triton's kernels need a GPU, and interpreted ones a callback, which this partitioner loses: JAX stands in
    run_on_eight_devices(SHARDED + PROGRAM.format(backend="triton", chunk=256))
