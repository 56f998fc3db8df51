"""Every split adds up to what the model computes, for every kind of model, and gives each part to who wrote it."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from numpy_andrea import forward
from small_models import BASE, TOKENS, draw_params

from andrea_jax.circuits import attribution, lens, lens_table
from andrea_jax.config import Model
from andrea_jax.conversion import convert
from andrea_jax.errors import UserError
from andrea_jax.heads import planted
from andrea_jax.trace import trace

MODELS = {
    "learned positions, rms": BASE,
    "rotary, layer norm, biases, tied, gelu, shared keys": dataclasses.replace(
        BASE, positions="rotary", norm="layer", biases=True, tied_embeddings=True, activation="gelu", n_head=6,
        n_kv_head=2,
    ),
    "attention only, no positions, identity w_o": dataclasses.replace(
        BASE, d_mlp=0, positions="none", w_o="identity", norm="layer"
    ),
    "pruned, norms with gain and bias": dataclasses.replace(
        BASE, heads_per_layer=(2, 1), norm="layer", norm_weights=True
    ),
    "block-diagonal w_o, biases": dataclasses.replace(BASE, w_o="block_diagonal", biases=True, d_mlp=0),
}  # fmt: skip
FAST = list(MODELS)[1]  # has most of what differs
every_model = pytest.mark.parametrize(
    "config", [pytest.param(MODELS[name], id=name, marks=[pytest.mark.slow] * (name != FAST)) for name in MODELS]
)


@every_model
def test_the_contributions_add_up_to_the_models_logit(config: Model):
    params = draw_params(config)
    logits = forward(config, params, TOKENS)
    found = attribution(config, params, TOKENS, 7, 4)
    assert found.table["contribution"].sum() == pytest.approx(logits[7, 4], abs=2e-5)
    assert found.logit == pytest.approx(logits[7, 4], abs=2e-5)
    less = attribution(config, params, TOKENS, 7, 4, against=2)
    assert less.table["contribution"].sum() == pytest.approx(logits[7, 4] - logits[7, 2], abs=4e-5)
    kinds = found.table["kind"].value_counts().to_dict()
    parts = {"token": 1, "position": config.positions == "learned", "head": sum(config.layer_heads),
             "bias": 2 * config.biases, "mlp": 2 * (config.mlp_width > 0), "norm": config.norm_weights}  # fmt: skip
    assert kinds == {kind: n for kind, n in parts.items() if n}


@every_model
def test_the_other_projection_has_the_same_contributions(config: Model):
    params = draw_params(config)
    found, fused = (attribution(*model, TOKENS, 7, 4).table["contribution"]
                    for model in ((config, params), convert(config, params, "fused")))  # fmt: skip
    np.testing.assert_allclose(found, fused, atol=1e-5)


def test_each_contribution_is_what_its_component_wrote_through_the_frozen_norm():
    config = MODELS[FAST]
    params = draw_params(config)
    traced = trace(config, params, TOKENS[None], points=("head_output", "mlp_out", "resid_final"))
    final = np.asarray(traced["resid_final"], np.float64)[0, 7]
    scale = 1 / np.sqrt(final.var() + 1e-5)
    w_e = np.asarray(params["W_E"], np.float64)
    unembed = (w_e[4] - w_e[4].mean()) * scale
    table = attribution(config, params, TOKENS, 7, 4).table.set_index("component")["contribution"]
    assert table["token"] == pytest.approx(w_e[TOKENS[7]] @ unembed, abs=1e-5)
    for layer in range(2):
        written = np.asarray(traced["head_output"], np.float64)[layer, 0, 7]
        for head in range(6):
            assert table[f"head {layer}.{head}"] == pytest.approx(written[head] @ unembed, abs=1e-5)
        bias = np.asarray(params["layers"][str(layer)]["attention"]["projection"]["b_O"], np.float64)
        assert table[f"bias {layer}"] == pytest.approx(bias @ unembed, abs=1e-5)
        assert table[f"MLP {layer}"] == pytest.approx(np.asarray(traced["mlp_out"])[layer, 0, 7] @ unembed, abs=1e-5)


def test_the_head_that_copies_is_the_one_that_wrote_the_logit():
    config, params = planted(vocab_size=11, seq_len=13, offset=3)
    w_u = np.zeros((config.d_model, 11), np.float32)
    w_u[11 + 13 + np.arange(11), np.arange(11)] = 1  # reads what head 0.0 writes: the previous token
    found = attribution(config, {**params, "W_U": jnp.asarray(w_u)}, np.array([0, 3, 9, 5], np.int32), 3, 9)
    table = found.table.set_index("component")["contribution"]
    assert found.logit > 1 and table["head 0.0"] == pytest.approx(found.logit)
    assert table.drop("head 0.0").abs().max() < 1e-6


@every_model
def test_the_lens_ends_with_the_models_answer_and_begins_with_the_embeddings(config: Model):
    params = draw_params(config)
    found = lens(config, params, TOKENS, [7, 2])
    expected = scipy.special.log_softmax(forward(config, params, TOKENS)[[7, 2]], axis=-1)
    np.testing.assert_allclose(found[-1], expected, atol=3e-5)
    x = np.asarray(params["W_E"], np.float64)[TOKENS[2]]
    if config.positions == "learned":
        x = x + np.asarray(params["W_P"], np.float64)[2]
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) if config.norm == "layer" else x / np.sqrt((x**2).mean() + 1e-5)
    if config.norm_weights:
        x = x * np.asarray(params["norm_final"]["gain"]) + np.asarray(params["norm_final"]["b_norm"])
    w_u = np.asarray(params["W_E"]).T if config.tied_embeddings else np.asarray(params["W_U"])
    np.testing.assert_allclose(found[0, 1], scipy.special.log_softmax(x @ w_u), atol=3e-5)
    assert found.shape == (3, 2, 19)


def test_the_lens_table_counts_ranks_from_1_and_gives_nats():
    log_probs = np.log(np.array([[0.2, 0.5, 0.3], [0.7, 0.1, 0.2]]))
    table = lens_table(log_probs, 2)
    assert table["rank"].tolist() == [2, 2] and table["top"].tolist() == [1, 0]
    np.testing.assert_allclose(table["log_prob"], np.log([0.3, 0.2]))
    np.testing.assert_allclose(table["top_log_prob"], np.log([0.5, 0.7]))
    np.testing.assert_allclose(table["entropy"], [1.0296530, 0.8018186], atol=1e-6)


@pytest.mark.parametrize(
    ("position", "token", "message"),
    [
        (11, 0, "position = 11: must be from 0 to 10"),
        (-1, 0, "position = -1"),
        (3, 19, "token = 19: must be from 0 to"),
    ],
)
def test_a_position_or_token_that_is_not_there_is_refused_and_not_clamped(position: int, token: int, message: str):
    with pytest.raises(UserError, match=message):
        attribution(BASE, draw_params(BASE), TOKENS, position, token)
