"""Gradients and uniqueness of heads, with planted twins."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from andrea_jax import redundancy
from andrea_jax.config import Model
from andrea_jax.model import bind, initialise
from andrea_jax.training import loss
from andrea_jax.training.step import head_grad_norm

CONFIG = Model(vocab_size=11, seq_len=7, d_model=24, n_layer=2, n_head=3, d_mlp=0)
TOKENS = np.random.default_rng(0).integers(1, 11, (6, 8)).astype(np.int32)
A, B = 2, 0  # the twins, of layer 1


@pytest.fixture(scope="module")
def twin_models():
    return redundancy.twins(CONFIG, initialise(CONFIG, 0), 1, A, B)


def test_gradient_norms_are_means_over_examples_and_no_norm_of_a_mean():
    params = initialise(CONFIG, 0)

    def own_loss(params: dict, tokens: jax.Array) -> jax.Array:
        return loss(bind(CONFIG, params)(tokens[:, :-1]), tokens[:, 1:])

    norm = jax.jit(lambda tokens: head_grad_norm(CONFIG, jax.grad(own_loss)(params, tokens)))
    expected = np.mean([norm(jnp.asarray(TOKENS[i : i + 1])) for i in range(6)], axis=0)
    found = redundancy.gradient_norms(CONFIG, params, TOKENS)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert not np.allclose(found, norm(jnp.asarray(TOKENS)), rtol=0.1)


def test_twins_are_the_function_of_one_head_alone_and_are_found_to_be_twins(twin_models):
    config, alone, twins = twin_models
    logits = [bind(config, params)(jnp.asarray(TOKENS[:, :-1])) for params in (alone, twins)]
    np.testing.assert_allclose(*logits, atol=1e-5)
    one, two = (redundancy.measure(config, params, TOKENS).set_index(["layer", "head"]) for params in (alone, twins))
    for head in (A, B):
        found = two.loc[(1, head)]
        np.testing.assert_allclose([found["js"], found["cka"]], 0, atol=1e-4)
        assert found["gate"] == pytest.approx(one.loc[(1, A)]["gate"] / 2, rel=1e-4)
    assert two.loc[(0, 1)]["js"] > 0.01  # heads that nobody made twins


def test_heads_that_share_keys_and_values_can_have_no_twin():
    shared = Model(vocab_size=11, seq_len=7, d_model=32, n_layer=1, n_head=4, n_kv_head=2)
    with pytest.raises(ValueError, match="of their own"):
        redundancy.twins(shared, {}, 0, 0, 1)


def test_correlations_are_within_layers():
    """In each layer gradients rank as damage does; over all heads they do not, since layer 1 has more damage."""
    table = pd.DataFrame({"layer": [0, 0, 0, 1, 1, 1], "head": [0, 1, 2] * 2, "weights": [7, 8, 9, 1, 2, 3],
                          "gate": [9, 8, 7, 3, 2, 1], "damage": [1, 2, 3, 4, 5, 6], "js": [1.0] * 6,
                          "cka": [1, 3, 2, 3, 1, 2], "r2": [1, 2, 3, 3, 2, 1]})  # fmt: skip
    found = redundancy.correlations(table)
    assert found["weights", "damage"] == pytest.approx(1)
    assert found["gate", "damage"] == pytest.approx(-1)
    assert found["weights", "cka"] == pytest.approx((0.5 - 0.5) / 2)
    assert found["weights", "r2"] == pytest.approx(0)
    assert np.isnan(found["weights", "js"])
