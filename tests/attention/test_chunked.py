"""What the chunked backend promises beyond the contract: memory, and no work on what nobody sees."""

from functools import partial

import contract
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from andrea_jax.attention import attention, chunked

chunked_attention = partial(attention, backend="chunked")


ALL = {"q_offset": 9, "kv_length": np.array([53, 0, 21], np.int32), "scale": 0.4}


@pytest.mark.parametrize(
    "backend, chunk, options",
    [("chunked", 16, ALL), ("chunked", 16, {"causal": False}), ("reference", 256, ALL)],
    ids=["chunked", "padded keys", "reference"],
)
def test_options_together_equal_float64(backend, chunk, options, monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK", chunk)
    case = oracle.draw(37, 53, batch=3, n_head=6, n_kv_head=2, head_dim=8)
    forward = partial(attention, backend=backend, entropy=True, **options)
    got = jax.jit(contract.with_gradients(forward))(*contract.inputs_of(case, "float32"))
    for x, (name, y) in zip(got, oracle.attention(case, **options).items(), strict=True):
        np.testing.assert_allclose(np.asarray(x), y, atol=2e-5, rtol=2e-5, err_msg=name)


def compiled_gradient(length: int, n_head: int = 2):
    q, k, v, dz = (jax.ShapeDtypeStruct((1, length, n_head, 16), jnp.float32) for _ in range(4))
    return jax.jit(jax.grad(lambda q, k, v, dz: jnp.vdot(chunked_attention(q, k, v)[0], dz), (0, 1, 2))).lower(
        q, k, v, dz
    )


def test_one_chunk_is_one_pass_without_a_loop():
    assert "while" not in compiled_gradient(chunked.CHUNK).as_text()
    assert "while" in compiled_gradient(chunked.CHUNK + 1).as_text()


def test_memory_grows_with_the_length_and_not_with_its_square():
    small, large = (compiled_gradient(n).compile().memory_analysis().temp_size_in_bytes for n in (1024, 4096))
    assert large < 6 * small  # 4 times for what is proportional; 16 times for a pattern
    assert large < 2 * 4096 * 4096 * 4 / 4  # a quarter of the two heads' patterns in float32


def test_chunks_of_keys_that_no_query_sees_are_not_read(monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK", 16)
    q, k, v = contract.inputs_of(oracle.draw(48), "float32")[:3]
    poisoned = v.at[:, 32:].set(jnp.nan)  # 0 · nan is nan: reading it with weight 0 would show
    z = jax.jit(chunked_attention)(q, k, poisoned)[0]
    np.testing.assert_array_equal(np.isnan(np.asarray(z)).any(axis=(0, 2, 3)), np.arange(48) >= 32)
    short = jax.jit(partial(chunked_attention, causal=False))(q, k, poisoned, kv_length=jnp.array([7, 32], jnp.int32))
    assert np.isfinite(np.asarray(short[0])).all()


@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_no_dtype_is_promoted_silently(backend):
    q = jax.ShapeDtypeStruct((1, 5, 2, 8), jnp.bfloat16)

    def gradients(q, k, v):
        return jax.grad(lambda q: attention(q, k, v, backend=backend, entropy=True)[2].sum())(q)

    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        assert jax.eval_shape(gradients, q, q, q).dtype == jnp.bfloat16
        z, lse = jax.eval_shape(partial(attention, backend=backend), q, q, q)
    assert (z.dtype, lse.dtype) == (jnp.bfloat16, jnp.float32)
