"""The cudnn backend's own lines, on any machine: XLA's attention stands in for cuDNN's kernel."""

from functools import partial

import contract
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from andrea_jax.attention import cudnn


@pytest.fixture
def attend(monkeypatch):
    kernel = jax.nn.dot_product_attention

    def stand_in(*inputs, implementation, **options):
        assert implementation == "cudnn"
        return kernel(*inputs, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    return partial(cudnn.attention, causal=True, scale=0.3, q_offset=0)


@pytest.mark.parametrize("kv_length", [None, np.array([41, 0, 23])])
def test_every_argument_arrives_and_empty_sequences_are_zero(attend, kv_length):
    case = oracle.draw(29, 41, batch=3, n_head=6, n_kv_head=2)
    lengths = None if kv_length is None else jnp.asarray(kv_length, jnp.int32)
    run = jax.jit(contract.with_gradients(partial(attend, kv_length=lengths, entropy=True)))
    got = run(*contract.inputs_of(case, "float32"))
    for x, (name, want) in zip(got, oracle.attention(case, scale=0.3, kv_length=kv_length).items(), strict=True):
        np.testing.assert_allclose(np.asarray(x), want, atol=2e-5, rtol=2e-5, err_msg=name)


def test_a_training_step_does_not_pay_for_the_log_sum_exp(attend):
    q = jax.ShapeDtypeStruct((2, 64, 3, 16), jnp.float32)

    def matmuls(used):
        def loss(q, k, v):
            return sum(x.sum() for x in attend(q, k, v, kv_length=None, entropy=True)[:used])

        return jax.jit(jax.grad(loss, (0, 1, 2))).lower(q, q, q).as_text().count("dot_general")

    def kernel_alone(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn").sum()

    assert matmuls(used=1) == jax.jit(jax.grad(kernel_alone, (0, 1, 2))).lower(q, q, q).as_text().count("dot_general")
    assert matmuls(used=2) > matmuls(used=1)
