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

    def stand_in(q, k, v, *, implementation, **options):
        assert implementation == "cudnn"
        assert not q.shape[1] % 2 and not k.shape[1] % 2, "jax refuses odd lengths on the way to cuDNN"
        return kernel(q, k, v, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    with jax.default_matmul_precision("highest"):  # on a GPU float32 matmuls would otherwise be TF32
        yield partial(cudnn.attention, scale=0.3, q_offset=0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n_query, n_key", [(29, 41), (41, 29), (41, 41), (30, 41), (41, 30)])
@pytest.mark.parametrize("short", [False, True])
def test_every_argument_arrives_at_any_length_and_empty_sequences_are_zero(attend, causal, n_query, n_key, short):
    case = oracle.draw(n_query, n_key, batch=3, n_head=6, n_kv_head=2)
    kv_length = np.array([n_key, 0, 23]) if short else None
    lengths = None if kv_length is None else jnp.asarray(kv_length, jnp.int32)
    run = jax.jit(contract.with_gradients(partial(attend, causal=causal, kv_length=lengths, entropy=True)))
    got = run(*contract.inputs_of(case, "float32"))
    wanted = oracle.attention(case, causal=causal, scale=0.3, kv_length=kv_length)
    for x, (name, want) in zip(got, wanted.items(), strict=True):
        np.testing.assert_allclose(np.asarray(x), want, atol=2e-5, rtol=2e-5, err_msg=name)


def test_a_training_step_does_not_pay_for_the_log_sum_exp(attend):
    q = jax.ShapeDtypeStruct((2, 64, 3, 16), jnp.float32)

    def matmuls(used):
        def loss(q, k, v):
            return sum(x.sum() for x in attend(q, k, v, causal=True, kv_length=None, entropy=True)[:used])

        return jax.jit(jax.grad(loss, (0, 1, 2))).lower(q, q, q).as_text().count("dot_general")

    def kernel_alone(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn").sum()

    assert matmuls(used=1) == jax.jit(jax.grad(kernel_alone, (0, 1, 2))).lower(q, q, q).as_text().count("dot_general")
    assert matmuls(used=2) > matmuls(used=1)
