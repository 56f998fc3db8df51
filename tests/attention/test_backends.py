"""Choosing a backend, and everything a caller can get wrong."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from andrea_jax import devices
from andrea_jax.attention import AUTO, BACKENDS, attention, triton
from andrea_jax.attention.backends import Call, choose
from andrea_jax.errors import UserError

H200 = Call(device="NVIDIA H200", cuda=(9, 0), dtype="bfloat16", head_dim=64, causal=True, from_zero=True)
CPU = Call(device="cpu", cuda=None, dtype="float32", head_dim=64, causal=True, from_zero=True)


def change(call: Call, **fields) -> Call:
    return Call(**{**vars(call), **fields})


def q_k_v(q=(2, 5, 6, 8), k=(2, 7, 3, 8), v=(2, 7, 3, 8), dtype=jnp.float32):
    return jnp.zeros(q, dtype), jnp.zeros(k, dtype), jnp.zeros(v, dtype)


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch):
    monkeypatch.setattr(devices, "_said", set())


RTX_4090 = change(H200, device="NVIDIA GeForce RTX 4090", cuda=(8, 9))


@pytest.mark.parametrize(
    "call, name, without_jax_triton",
    [
        (CPU, "chunked", "chunked"),
        (H200, "mosaic", "mosaic"),
        (change(H200, dtype="float16", from_zero=False), "mosaic", "mosaic"),
        (change(H200, head_dim=96), "mosaic", "mosaic"),
        (change(H200, head_dim=128), "cudnn", "cudnn"),  # where cuDNN was measured to be faster
        (change(H200, head_dim=128, from_zero=False), "mosaic", "mosaic"),  # which cuDNN cannot run
        (change(H200, dtype="float32"), "triton", "chunked"),
        (change(H200, head_dim=60), "chunked", "chunked"),
        (change(H200, head_dim=264), "chunked", "chunked"),
        (RTX_4090, "cudnn", "cudnn"),
        (change(RTX_4090, head_dim=136), "triton", "chunked"),
        (change(H200, device="Tesla T4", cuda=(7, 5)), "chunked", "chunked"),
    ],
)
def test_auto_takes_the_first_that_can_run_and_was_not_measured_to_be_slower(
    call, name, without_jax_triton, monkeypatch
):
    monkeypatch.setattr(triton, "find_spec", lambda package: package)
    assert choose("auto", call, BACKENDS, AUTO).name == name
    monkeypatch.setattr(triton, "find_spec", lambda package: None)
    assert choose("auto", call, BACKENDS, AUTO).name == without_jax_triton


def test_auto_says_once_what_it_chose_and_why(caplog, monkeypatch):
    with caplog.at_level(logging.INFO, logger="andrea_jax"):
        for _ in range(3):
            choose("auto", CPU, BACKENDS, AUTO)
            choose("auto", RTX_4090, BACKENDS, AUTO)
            choose("auto", H200, BACKENDS, AUTO)
            choose("auto", change(H200, head_dim=256), BACKENDS, AUTO)
    assert caplog.messages == [
        'attention on cpu: backend "chunked" ("mosaic", "cudnn", "triton" each needs a CUDA device, and this one is '
        "cpu)",
        'attention on NVIDIA GeForce RTX 4090: backend "cudnn" ("mosaic" needs Hopper\'s matrix instructions '
        "(compute capability 9.0), and NVIDIA GeForce RTX 4090 has 8.9)",
        'attention on NVIDIA H200: backend "mosaic" (the fastest that can run)',
        'attention on NVIDIA H200: backend "cudnn" ("mosaic" was measured to be slower than "cudnn" on such a call)',
    ]


@pytest.mark.parametrize(
    "call, reason",
    [
        (CPU, "needs a CUDA device, and this one is cpu"),
        (change(H200, device="Tesla T4", cuda=(7, 5)), "needs compute capability 8.0, and Tesla T4 has 7.5"),
        (change(H200, dtype="float32"), "needs bfloat16 or float16 inputs, not float32"),
        (change(H200, head_dim=60), "multiple of 8 up to 256 on NVIDIA H200, not 60"),
        (change(H200, from_zero=False), "q_offset is not known to be 0"),
    ],
)
def test_a_backend_that_cannot_run_is_refused_with_the_reason(call, reason):
    with pytest.raises(UserError) as error:
        choose("cudnn", call, BACKENDS, AUTO)
    assert reason in str(error.value) and jax.__version__ in str(error.value)


def test_a_misspelt_backend_is_answered_with_the_nearest_name():
    with pytest.raises(UserError, match=r'must be one of .* not "chunk" \(did you mean "chunked"\?\)'):
        attention(*q_k_v(), backend="chunk")


def test_the_device_of_a_call_is_that_of_its_arrays_and_while_tracing_the_default_one():
    q = q_k_v()[0]
    seen = []
    jax.jit(lambda q: seen.append(Call.of(q, causal=True, q_offset=0)) or q).lower(q)
    with jax.default_device(jax.devices("cpu")[0]):
        jax.jit(lambda q: seen.append(Call.of(q, causal=True, q_offset=jnp.int32(0))) or q).lower(q)
    seen.append(Call.of(jax.device_put(q, jax.devices("cpu")[0]), causal=True, q_offset=3))
    assert [call.device for call in seen[1:]] == ["cpu", "cpu"]
    assert seen[0].device == jax.devices()[0].device_kind
    assert [call.from_zero for call in seen] == [True, False, False]


@pytest.mark.parametrize(
    "shapes, message",
    [
        ({"q": (2, 5, 8)}, r"q must be \[batch, query, n_head, head_dim\] .* not of shape \[2, 5, 8\]"),
        ({"k": (2, 0, 3, 8)}, r"k must be \[batch, key, n_kv_head, head_dim\] with every axis 1 or more"),
        ({"k": (2, 7, 3, 16)}, "q and k must have the same head_dim, not 8 and 16"),
        ({"k": (3, 7, 3, 8)}, "q and k must have the same batch, not 2 and 3"),
        ({"v": (2, 9, 3, 8)}, "k and v must have the same key, not 7 and 9"),
        ({"v": (2, 7, 1, 8)}, "k and v must have the same n_kv_head, not 3 and 1"),
        ({"q": (2, 5, 4, 8)}, "n_kv_head must divide n_head = 4, and 3 does not"),
        ({"dtype": jnp.int32}, "q must have a floating dtype, not int32"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes, message):
    with pytest.raises(UserError, match=message):
        attention(*q_k_v(**shapes))


def test_one_dtype_for_q_k_and_v():
    q, k, v = q_k_v()
    with pytest.raises(UserError, match="v must have q's dtype float32, not bfloat16"):
        attention(q, k, v.astype(jnp.bfloat16))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"q_offset": jnp.zeros(2, jnp.int32)}, r"q_offset must be an integer scalar, not int32\[2\]"),
        ({"q_offset": 1.5}, "q_offset must be an integer scalar"),
        ({"kv_length": jnp.zeros(3, jnp.int32)}, r"kv_length must be int32 \[batch = 2\], not int32\[3\]"),
        ({"kv_length": jnp.zeros(2)}, r"kv_length must be int32 \[batch = 2\], not float32\[2\]"),
    ],
)
def test_offsets_and_lengths_that_do_not_fit_are_named(options, message):
    with pytest.raises(UserError, match=message):
        attention(*q_k_v(), **options)


def test_query_head_h_reads_key_value_head_h_div_group():
    q, k, v = q_k_v()
    v = v + jnp.arange(3, dtype=jnp.float32)[None, None, :, None]
    z, _ = attention(q, k, v)
    np.testing.assert_allclose(z[0, 0, :, 0], [0, 0, 1, 1, 2, 2])
