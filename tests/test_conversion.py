"""The same model with its projections stored the other way."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from andrea_jax import model
from andrea_jax.comparison import FORMS
from andrea_jax.config import Model
from andrea_jax.conversion import convert
from andrea_jax.errors import UserError

TINY = Model(vocab_size=11, seq_len=5, d_model=24, n_layer=2, n_head=3, d_mlp=7)
MODELS = {
    "grouped keys with biases": dataclasses.replace(TINY, d_model=32, n_head=4, n_kv_head=2, biases=True, n_layer=1),
    "block-diagonal W_O": dataclasses.replace(TINY, w_o="block_diagonal", tied_embeddings=True, n_layer=1),
    "identity W_O": dataclasses.replace(TINY, w_o="identity", n_layer=1),
}


def random_params(config: Model) -> model.Params:
    """Normal numbers everywhere, biases too: nothing that is 0 can hide a mistake."""
    rng = np.random.default_rng(5)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), model.abstract(config))


@pytest.mark.parametrize("name", MODELS)
def test_converting_to_the_other_projection_and_back_gives_the_same_bits(name):
    for (projection, form), there in zip(FORMS, (*FORMS[2:], *FORMS[:2]), strict=True):  # each to the other projection
        config = dataclasses.replace(MODELS[name], projection=projection, projection_form=form)
        params = random_params(config)
        other, converted = convert(config, params, *there)
        assert (other.projection, other.form) == there
        assert jax.tree.structure(converted) == jax.tree.structure(model.abstract(other))
        back_config, back = convert(other, converted, projection, form)
        assert back_config == config
        assert jax.tree.all(jax.tree.map(np.array_equal, params, back))


def test_the_columns_of_the_third_head_become_its_own_matrix():
    config = dataclasses.replace(TINY, projection="fused")
    params = random_params(config)
    per_head = convert(config, params, "per_head")[1]["layers"]["1"]["attention"]["projection"]
    w_qkv = np.asarray(params["layers"]["1"]["attention"]["projection"]["W_QKV"])  # columns q | k | v, 24 each
    assert np.array_equal(per_head["W_Q"][2], w_qkv[:, 16:24])
    assert np.array_equal(per_head["W_V"][2], w_qkv[:, 48 + 16 : 48 + 24])


def test_nothing_but_the_projections_changes_and_the_source_stays_as_it_was():
    params = random_params(TINY)
    before = jax.tree.map(np.array, params)
    converted = convert(TINY, params, "per_head", "loop")[1]
    assert jax.tree.all(jax.tree.map(np.array_equal, params, before))
    for name in ("W_E", "W_P", "W_U"):
        assert converted[name] is params[name]
    assert converted["layers"]["0"]["mlp"] is params["layers"]["0"]["mlp"]


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (("perhead", None), r'projection = "perhead": must be one of per_head, fused \(did you mean "per_head"\?\)'),
        (("fused", "loop"), 'form = "loop": must be one of one, three'),
    ],
)
def test_a_projection_that_there_is_not_is_refused(there, said: str):
    with pytest.raises(UserError, match=f"convert: {said}"):
        convert(TINY, model.abstract(TINY), *there)


def test_the_forms_of_one_projection_convert_as_well():
    for there in (("fused", "three"), ("fused", "one")):
        config = dataclasses.replace(
            TINY, projection="fused", projection_form={"three": "one", "one": "three"}[there[1]]
        )
        params = random_params(config)
        other, converted = convert(config, params, *there)
        assert jax.tree.structure(converted) == jax.tree.structure(model.abstract(other))
        assert jax.tree.all(jax.tree.map(np.array_equal, params, convert(other, converted, "fused", config.form)[1]))
