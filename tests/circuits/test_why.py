"""A score is the sum over pairs of components, and the pair that makes it is the planted one."""

import dataclasses

import numpy as np
import pytest
from small_models import BASE, TOKENS, draw_params

from andrea_jax.circuits import why
from andrea_jax.config import Model
from andrea_jax.conversion import convert
from andrea_jax.errors import UserError
from andrea_jax.heads import planted
from andrea_jax.trace import trace

MODELS = {
    "learned positions, rms": BASE,
    "rotary, layer norm, biases, shared keys": dataclasses.replace(
        BASE, positions="rotary", norm="layer", biases=True, n_head=6, n_kv_head=2, d_mlp=0
    ),
    "pruned, norms with gain and bias": dataclasses.replace(
        BASE, heads_per_layer=(1, 2), norm="layer", norm_weights=True
    ),
}


FAST = list(MODELS)[1]


@pytest.mark.parametrize(
    "config", [pytest.param(MODELS[name], id=name, marks=[pytest.mark.slow] * (name != FAST)) for name in MODELS]
)
def test_the_pairs_add_up_to_the_score_and_their_excess_to_its_lead_over_the_mean(config: Model):
    params, layer, head, query, key = draw_params(config), 1, 1, 8, 5
    traced = trace(config, params, TOKENS[None])
    q = np.asarray(traced["q"], np.float64)[layer, 0, query, head]
    k = np.asarray(traced["k"], np.float64)[layer, 0, : query + 1, head * config.kv_heads // config.n_head]
    scores = k @ q / np.sqrt(config.head_dim)
    for projection in ("per_head", "fused"):
        found = why(*convert(config, params, projection), TOKENS, layer, head, query, key)
        assert found.score == pytest.approx(scores[key], abs=1e-5)
        assert found.pairs["score"].sum() == pytest.approx(scores[key], abs=2e-5)
        assert found.pairs["excess"].sum() == pytest.approx(scores[key] - scores.mean(), abs=2e-5)
        assert found.mean_score == pytest.approx(scores.mean(), abs=1e-5)
        np.testing.assert_allclose(found.keys["score"], scores, atol=2e-5)
        row = traced.pattern(layer, head, queries=slice(query, query + 1))[0]
        np.testing.assert_allclose(found.keys["attention"], row[: query + 1], atol=1e-5)
    n = 1 + (config.positions == "learned") + config.layer_heads[0] + config.biases + (config.d_mlp != 0)
    n += config.biases + config.norm_weights
    assert len(found.pairs) == n**2


def test_one_pair_is_the_product_of_what_two_components_wrote():
    config = dataclasses.replace(BASE, d_mlp=0)
    params = draw_params(config)
    traced = trace(config, params, TOKENS[None], points=("head_output", "resid_pre"))
    x = np.asarray(traced["resid_pre"], np.float64)[1, 0]
    scale = 1 / np.sqrt((x**2).mean(-1) + 1e-5)
    weights = {n: np.asarray(w, np.float64) for n, w in params["layers"]["1"]["attention"]["projection"].items()}
    q = np.asarray(params["W_E"], np.float64)[TOKENS[6]] * scale[6] @ weights["W_Q"][2]
    keys = np.asarray(traced["head_output"], np.float64)[0, 0, :7, 1] * scale[:7, None] @ weights["W_K"][2]
    pairs = why(config, params, TOKENS, 1, 2, 6, 4).pairs.set_index(["query_component", "key_component"])
    scores = keys @ q / np.sqrt(8)
    assert pairs["score"]["token", "head 0.1"] == pytest.approx(scores[4], abs=1e-5)
    assert pairs["excess"]["token", "head 0.1"] == pytest.approx(scores[4] - scores.mean(), abs=1e-5)


def test_the_induction_head_looks_for_what_the_previous_token_head_wrote():
    config, params = planted(vocab_size=11, seq_len=13, offset=3)
    tokens = np.array([0, 4, 9, 5, 4], np.int32)
    found = why(config, params, tokens, layer=1, head=0, query=4, key=2)  # the follower of the first 4
    pairs = found.pairs.set_index(["query_component", "key_component"])
    assert found.attention == pytest.approx(1, abs=1e-5)
    assert pairs["score"]["token", "head 0.0"] == pytest.approx(found.score, abs=1e-4) == pytest.approx(40, abs=1e-2)
    assert pairs["excess"]["token", "head 0.0"] == pytest.approx(40 * 4 / 5, abs=1e-2)
    assert pairs["score"].drop(("token", "head 0.0")).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("asked", "message"),
    [((2, 0, 4, 1), "layer = 2: must be from 0 to 1"), ((1, 3, 4, 1), "head = 3: must be from 0 to 2"),
     ((1, 0, 11, 1), "query = 11: must be from 0 to 10"), ((1, 0, 4, 5), "key = 5: must be from 0 to 4")],
)  # fmt: skip
def test_what_is_not_there_or_in_the_future_is_refused(asked: tuple[int, int, int, int], message: str):
    with pytest.raises(UserError, match=message):
        why(BASE, draw_params(BASE), TOKENS, *asked)
