"""Factored matrices against the whole ones, for both projections and every kind of W_O."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from small_models import BASE, draw_params

from andrea_jax.circuits import Factored, by_head
from andrea_jax.conversion import convert
from andrea_jax.projections import PROJECTIONS
from andrea_jax.trace import head_outputs

RNG = np.random.default_rng(0)
THIN = Factored(RNG.normal(size=(3, 17, 5)), RNG.normal(size=(3, 5, 17)))


def test_norm_and_singular_values_are_those_of_the_whole_matrix():
    whole = THIN.matrix()
    np.testing.assert_allclose(THIN.norm(), np.sqrt((whole**2).sum((1, 2))), rtol=1e-12)
    values = np.linalg.svd(whole, compute_uv=False)
    np.testing.assert_allclose(THIN.singular_values(), values[:, :5], rtol=1e-10)
    assert values[:, 5:].max() < 1e-10


def test_eigenvalues_are_those_of_the_whole_matrix_that_are_not_0():
    for small, whole in zip(THIN.eigenvalues(), np.linalg.eigvals(THIN.matrix()), strict=True):
        largest = whole[np.abs(whole) > 1e-8]
        assert len(largest) == 5
        np.testing.assert_allclose(np.sort_complex(small), np.sort_complex(largest), rtol=1e-8)


def test_products_and_transposes_are_those_of_the_whole_matrices():
    np.testing.assert_allclose((THIN @ THIN.T).matrix(), THIN.matrix() @ THIN.matrix().swapaxes(1, 2), rtol=1e-10)


@pytest.mark.parametrize(("w_o", "form"), [("free", "one"), ("identity", "three"), ("block_diagonal", "one")])
def test_a_heads_matrices_give_its_scores_and_its_output_in_both_projections(w_o: str, form: str):
    config = dataclasses.replace(BASE, n_layer=1, n_head=6, n_kv_head=2, w_o=w_o)
    params = draw_params(config)
    weights = params["layers"]["0"]["attention"]["projection"]
    (heads,) = by_head(config, params)
    fused = convert(config, params, "fused", form)
    for field in dataclasses.fields(heads):
        np.testing.assert_array_equal(getattr(by_head(*fused)[0], field.name), getattr(heads, field.name))

    x = RNG.normal(size=(1, 7, 24)).astype(np.float32)
    module = PROJECTIONS["per_head"](config, jnp.zeros(2, jnp.uint32))
    for name, value in weights.items():
        getattr(module, name)[...] = value
    q, k, v = module.project(jnp.asarray(x))
    outputs = head_outputs(config, weights, jnp.repeat(v, 3, axis=2))  # of a head that attends to the token itself
    for head in range(6):
        scores = x[0] @ heads.qk.matrix()[head] @ x[0].T
        np.testing.assert_allclose(scores, q[0, :, head] @ k[0, :, head // 3].T, atol=1e-4)
        np.testing.assert_allclose(x[0] @ heads.ov.matrix()[head], outputs[0, :, head], atol=1e-5)
