"""The Mosaic kernels without a GPU: what they refuse, how work is dealt out, that they lower and compile."""

import importlib.util
import re
import shutil
from functools import partial

import jax
import jax.numpy as jnp
import offline_mosaic
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu
from test_sharded_attention import PROGRAM, run_on_eight_devices

from andrea_jax.attention import attention, mosaic
from andrea_jax.attention.backends import Call
from andrea_jax.attention.mosaic_parts import Schedule, Spec

H200 = Call("NVIDIA H200", (9, 0), "bfloat16", 64, causal=True, from_zero=True)


def gradients(head_dim: int, *, entropy: bool = False, n_head: int = 6, n_kv_head: int = 6, seq: int = 136):
    """A function of q, k, v and their cotangent, and its arguments' shapes."""

    def run(q, k, v, dz):
        forward = partial(mosaic.attention, causal=True, scale=0.2, q_offset=0, kv_length=None, entropy=entropy)
        out, pull_back = jax.vjp(lambda *x: tuple(part for part in forward(*x) if part is not None), q, k, v)
        return pull_back((dz, *(jnp.ones_like(row) for row in out[1:])))

    q = jax.ShapeDtypeStruct((2, seq, n_head, head_dim), jnp.bfloat16)
    k = jax.ShapeDtypeStruct((2, seq, n_kv_head, head_dim), jnp.bfloat16)
    return run, (q, k, k, q)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"cuda": None, "device": "cpu"}, "needs a CUDA device, and this one is cpu"),
        (
            {"cuda": (8, 9), "device": "NVIDIA GeForce RTX 4090"},
            "(compute capability 9.0), and NVIDIA GeForce RTX 4090",
        ),
        ({"cuda": (10, 0)}, "has 10.0"),
        ({"dtype": "float32"}, "not float32"),
        ({"head_dim": 20}, "not 20"),
        ({"head_dim": 264}, "not 264"),
    ],
)
def test_it_says_why_it_cannot_run(change, reason):
    assert mosaic.BACKEND.why_not(H200) is None
    assert reason in str(mosaic.BACKEND.why_not(Call(**{**H200.__dict__, **change})))


@pytest.mark.parametrize("large_last", [True, False])
@pytest.mark.parametrize("n_tiles, n_heads, blocks", [(5, 7, 3), (7, 3, 11), (3, 2, 13), (1, 17, 5), (4, 1, 3)])
def test_every_tile_of_every_head_is_taken_once(n_tiles, n_heads, blocks, large_last):
    schedule = Schedule(n_tiles, n_heads, blocks, large_last)
    taken = []
    for block in range(schedule.grid):
        number = jnp.int32(block)
        units = (schedule.unit(jnp.int32(i), number) for i in range(int(schedule.count(number))))
        taken += [(int(head), int(tile)) for head, tile in units]
    assert sorted(taken) == [(head, tile) for head in range(n_heads) for tile in range(n_tiles)]


def test_the_causal_triangle_is_dealt_out_evenly():
    schedule = Schedule(n_tiles=8, n_heads=384, blocks=132, large_last=True)  # T = 1024, batch 32, 12 heads, an H200
    work = []
    for block in range(0, 132, 11):
        number = jnp.int32(block)
        units = [schedule.unit(jnp.int32(i), number) for i in range(int(schedule.count(number)))]
        work.append(sum(int(tile) + 1 for _, tile in units))
    assert max(work) <= 1.04 * (384 * 36 / 132)


def test_a_head_is_one_piece_but_for_the_widest():
    def pieces(head_dim):
        return Spec(1, 8, 8, 1, 1, head_dim, "bfloat16", True, 1.0, False, 8, False, False).pieces

    assert pieces(256) == ((0, 128), (128, 128))
    for head_dim in mosaic.HEAD_DIMS[:-1]:
        assert pieces(head_dim) == ((0, head_dim),)


@pytest.mark.parametrize("n_head, n_kv_head", [(1, 1), (6, 2), (12, 12)])
def test_three_launches_serve_all_heads_and_nothing_is_transposed(n_head, n_kv_head):
    run, shapes = gradients(64, n_head=n_head, n_kv_head=n_kv_head)
    program = offline_mosaic.lowered(run, *shapes).as_text()
    assert program.count("@mosaic_gpu_v2") == 3  # forward, dq, dk with dv
    assert "stablehlo.transpose" not in program


def of_one_array(head_dim: int, *, n_head: int = 6, n_kv_head: int = 2, seq: int = 384):
    """A function of x, W_QKV and the cotangent of z: attention of x·W_QKV and all gradients; its arguments' shapes."""

    def run(x, w, dz):
        def z(x, w):
            qkv = (x @ w).reshape(*x.shape[:2], -1, head_dim)
            return mosaic.attention_fused(qkv, n_head, causal=True, scale=0.2, entropy=False)[0]

        return jax.vjp(z, x, w)[1](dz)

    shapes = ((2, seq, 40), (40, (n_head + 2 * n_kv_head) * head_dim), (2, seq, n_head, head_dim))
    return run, [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]


def operations(run, shapes) -> list[str]:
    return re.findall(r"stablehlo\.(\w+)", offline_mosaic.lowered(run, *shapes).as_text())


# dk and dv of a wide head one by one
@pytest.mark.parametrize("head_dim, launches", [(64, 3), pytest.param(256, 4, marks=pytest.mark.slow)])
def test_q_k_v_of_one_matmul_are_never_sliced_and_their_gradients_never_joined(head_dim, launches):
    found = operations(*of_one_array(head_dim))
    assert found.count("custom_call") == launches
    assert found.count("output_operand_alias") == launches - 2  # each but the first writes into the gradient of qkv
    assert not {"slice", "concatenate", "dynamic_slice", "dynamic_update_slice"} & set(found)
    assert found.count("transpose") == 1 and found.count("dot_general") == 4  # both of gradients of x·W_QKV; Σ z dz


@pytest.mark.parametrize("seq, head_dim, sliced", [(384, 64, False), (384, 72, True), (131, 64, True)])
def test_only_where_heads_or_lengths_need_padding_q_k_and_v_are_sliced_first(seq, head_dim, sliced):
    def z(qkv):
        return mosaic.attention_fused(qkv, 6, causal=True, scale=0.2, entropy=False)[0]

    traced = jax.make_jaxpr(z)(jax.ShapeDtypeStruct((2, seq, 10, head_dim), jnp.bfloat16))
    assert ("split" in {equation.primitive.name for equation in traced.eqns}) == sliced


@pytest.mark.parametrize("head_dim", [24, 72, 128, 248])
def test_any_head_dim_lowers_for_an_h200_on_a_machine_without_one(head_dim):
    run, shapes = gradients(head_dim, entropy=True, n_head=3, n_kv_head=1)
    launches = 3 if head_dim <= 128 else 4  # dk and dv of a wide head one by one
    assert len(offline_mosaic.modules(offline_mosaic.lowered(run, *shapes))) == launches


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None or shutil.which("cc") is None,
    reason="compiling for Hopper needs jax-cuda13-plugin, jax-cuda13-pjrt, nvidia-cuda-nvcc and a C compiler",
)
@pytest.mark.parametrize("head_dim", [32, 64])
def test_the_familys_kernels_compile_for_sm_90a_without_spilling_a_register(head_dim, tmp_path):
    run, shapes = gradients(head_dim, n_head=12, n_kv_head=12, seq=1024)
    reports = offline_mosaic.compiled(run, *shapes, folder=tmp_path)
    assert len(reports) == 3
    for report in reports:
        assert "sm_90a" in report and "0 bytes spill stores, 0 bytes spill loads" in report
        assert "serialized" not in report  # products that ptxas could not overlap


@pytest.mark.slow
def test_without_a_race_the_interpreter_gives_what_the_reference_gives():
    """The contract's cases take minutes in the interpreter; this one crosses tiles, groups of heads and lengths."""
    keys = jax.random.split(jax.random.key(0), 3)
    q = jax.random.normal(keys[0], (1, 139, 2, 24), jnp.bfloat16)
    k, v = (jax.random.normal(key, (1, 139, 1, 24), jnp.bfloat16) for key in keys[1:])
    options = {"kv_length": jnp.array([131], jnp.int32), "entropy": True, "q_offset": 3}
    with mosaic.interpreted(plgpu.InterpretGPUParams(detect_races=True)):
        got = attention(q, k, v, backend="mosaic", **options)
    want = attention(*(x.astype("float32") for x in (q, k, v)), backend="reference", **options)
    for name, x, y, tolerance in zip(("z", "lse", "entropy"), got, want, (2e-2, 1e-5, 2e-5), strict=True):
        assert jnp.abs(x.astype("float32") - y).max() <= tolerance, name


SHARDED = """
import jax.numpy as jnp
from andrea_jax.attention import backends, mosaic, reference, split

def parts(static, arrays):
    q, k, v, rest = backends.parts(arrays, static.fused)
    return (*split(q, static.n_head), rest) if static.fused else (q, k, v, rest)

def forward(static, *arrays):
    q, k, v, _ = parts(static, arrays)
    options = {"causal": True, "scale": static.scale, "q_offset": 0, "kv_length": None, "entropy": True}
    return reference.attention(q, k, v, **options)

def backward(static, *arrays):
    q, k, v, (q_offset, kv_length, dz, lse, shift, slope) = parts(static, arrays)
    keys, values = (jnp.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, keys)
    seen = jnp.tril(jnp.ones(scores.shape[2:], bool))[None, None]
    pattern = jnp.where(seen, jnp.exp(static.scale * scores - lse[..., None] * jnp.log(2.0)), 0)
    inner = jnp.einsum("bqhd,bkhd->bhqk", dz, values)
    dscores = static.scale * pattern * (inner - shift[..., None] - slope[..., None] * scores)
    dkeys, dvalues = jnp.einsum("bhqk,bqhd->bkhd", dscores, q), jnp.einsum("bhqk,bqhd->bkhd", pattern, dz)
    one_a_group = lambda x: x.reshape(*k.shape[:3], -1, k.shape[3]).sum(axis=3)
    found = jnp.einsum("bhqk,bkhd->bqhd", dscores, keys), one_a_group(dkeys), one_a_group(dvalues)
    return (jnp.concatenate(found, axis=2),) if static.fused else found

mosaic._launch_forward, mosaic._launch_backward = forward, backward
object.__setattr__(mosaic.BACKEND, "why_not", lambda call: None)
"""


ON_A_MESH = """
from andrea_jax import devices
mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "heads"), axis_types=(AxisType.Auto,) * 3)
launched = []
launch = mosaic._launch_backward
mosaic._launch_backward = lambda static, *arrays: launched.append(arrays[0].shape) or launch(static, *arrays)
with devices.over(mesh):
    for x, y in zip(gradients(forward)(q, k, v), want, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)
    assert launched == [(4, 40, 6, 16), (1, 40, 3, 16)]  # its shape is asked; a device has half of a sequence's heads
    whole = jnp.asarray(rng.normal(size=(4, 40, 10, 16)), jnp.float32)  # of 8·n positions: read in place
    found = jax.jit(jax.grad(of_one_array))(whole)
assert launched[2:] == [(4, 40, 10, 16), (1, 40, 10, 16)]  # q | k | v has all heads
np.testing.assert_allclose(found, jax.jit(jax.grad(of_one_array))(whole), atol=1e-5)
"""


@pytest.mark.slow
def test_sharding_over_batch_and_heads_moves_no_data():
    # the kernels need a GPU, and interpreted ones callbacks, which the partitioner loses: plain JAX stands in for them
    run_on_eight_devices(SHARDED + PROGRAM.format(backend="mosaic", chunk=256) + ON_A_MESH)
