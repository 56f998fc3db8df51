"""What a model's heads did on a text, against an independent computation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from andrea_jax import model as andrea
from andrea_jax import viewer
from andrea_jax.config import Model
from andrea_jax.conversion import convert
from andrea_jax.data.tokenizer import byte_tokenizer
from andrea_jax.errors import UserError
from andrea_jax.heads import planted
from andrea_jax.trace import trace
from andrea_jax.viewer import build, pack
from andrea_jax.viewer.assemble import Side
from andrea_jax.viewer.build import side

ATTENTION_ONLY = Model(vocab_size=257, seq_len=23, d_model=24, n_layer=2, n_head=6, n_kv_head=2, d_mlp=0,
                       positions="rotary", projection="per_head")  # fmt: skip
TOKENS = np.array([[0, *np.random.default_rng(0).integers(1, 257, 12)]], np.int32)
SUCCESSORS = np.append(TOKENS[0, 1:], 5)
POINTS = ("q", "k", "lse", "v", "z", "resid_pre", "resid_final")


def draw_params(config: Model) -> dict:
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.3, x.shape), x.dtype), andrea.abstract(config))


def side_of(config: Model, params: dict, **chosen: list[int]) -> tuple[Side, dict[str, np.ndarray]]:
    """Every head's (or the chosen heads') side, and the trace it was made from, float64."""
    traced = trace(config, params, TOKENS, points=POINTS)
    layers = chosen.get("layers", list(range(config.n_layer)))
    heads = chosen.get("heads", list(range(config.n_head)))
    made = side(viewer.Source("A", config, params), traced, SUCCESSORS, layers, heads)
    values = {name: np.asarray(x, np.float64) for name, x in {**traced.values, "logits": traced.logits}.items()}
    return made, values


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_the_heads_and_the_embedding_together_make_the_successors_logit(norm: str):
    config = dataclasses.replace(ATTENTION_ONLY, norm=norm)
    params = draw_params(config)
    made, values = side_of(config, params)
    first, last = values["resid_pre"][0, 0], values["resid_final"][0]
    if norm == "layer":
        first, last = (x - x.mean(axis=1, keepdims=True) for x in (first, last))
    directions = np.asarray(params["W_U"], np.float64)[:, SUCCESSORS].T
    embedding = (first * directions).sum(axis=1) / np.sqrt((last**2).mean(axis=1) + 1e-5)
    total = np.asarray(made.logits).sum(axis=(0, 1)) + embedding
    np.testing.assert_allclose(total, values["logits"][0][np.arange(13), SUCCESSORS], rtol=1e-4, atol=1e-4)


def test_norms_are_those_of_each_heads_own_values_and_outputs():
    params = draw_params(ATTENTION_ONLY)
    made, values = side_of(ATTENTION_ONLY, params)
    w_o = np.asarray(params["layers"]["1"]["attention"]["projection"]["W_O"], np.float64)
    value = values["v"][1, 0, :, 1] @ w_o[4]  # head 4 of 6 reads key-value head 4 // 3 = 1
    output = values["z"][1, 0, :, 4] @ w_o[4]
    np.testing.assert_allclose(np.asarray(made.value_norms)[1, 4], np.linalg.norm(value, axis=1), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(made.norms)[1, 4], np.linalg.norm(output, axis=1), rtol=1e-5)


def test_chosen_layers_and_heads_are_those_of_the_whole_model():
    params = draw_params(ATTENTION_ONLY)
    whole, _ = side_of(ATTENTION_ONLY, params)
    part, _ = side_of(ATTENTION_ONLY, params, layers=[1], heads=[5, 2])
    for name in ("patterns", "value_norms", "norms", "logits"):
        np.testing.assert_array_equal(getattr(part, name), np.asarray(getattr(whole, name))[[1]][:, [5, 2]])


def test_a_planted_previous_token_head_is_seen_to_look_one_token_back():
    config, params = planted(vocab_size=257, seq_len=23, offset=3)
    made, _ = side_of(config, params)
    np.testing.assert_allclose(np.diag(np.asarray(made.patterns)[0, 0], -1), 1, atol=1e-5)
    np.testing.assert_allclose(np.asarray(made.patterns)[0, 1, 4, :5], 0.2, atol=1e-5)  # the uniform head


@pytest.mark.parametrize("projection", ["per_head", "fused"])
def test_an_ablated_head_writes_nothing_and_changes_only_later_layers(projection):
    config, params = convert(ATTENTION_ONLY, draw_params(ATTENTION_ONLY), projection)
    source = viewer.Source("A", config, params)
    without = viewer.ablated(source, 0, 4)
    intact, _ = side_of(config, params)
    cut, _ = side_of(config, without.params)
    a, b = np.asarray(intact.patterns), np.asarray(cut.patterns)
    np.testing.assert_array_equal(a[0], b[0])
    assert np.abs(a[1] - b[1]).max() > 1e-3
    assert not np.asarray(cut.norms)[0, 4].any() and not np.asarray(cut.value_norms)[0, 4].any()
    np.testing.assert_array_equal(np.asarray(intact.norms)[0, :4], np.asarray(cut.norms)[0, :4])
    assert np.asarray(source.params["layers"]["0"]["attention"]["projection"]["W_O"]).all()  # the source is unharmed


def test_per_head_and_fused_differ_by_rounding_only():
    params = draw_params(ATTENTION_ONLY)
    fused = viewer.Source("fused", *convert(ATTENTION_ONLY, params, "fused"))
    view = viewer.view_models(viewer.Source("per-head", ATTENTION_ONLY, params), TOKENS, byte_tokenizer(),
                              against=fused, title="projections")  # fmt: skip
    assert [side["name"] for side in view.payload["sides"]] == ["per-head", "fused"]
    a, _ = side_of(ATTENTION_ONLY, params)
    b, _ = side_of(fused.config, fused.params)
    np.testing.assert_allclose(a.patterns, b.patterns, atol=1e-5)


def test_texts_of_many_lengths_share_one_program_and_end_in_the_models_guess(monkeypatch: pytest.MonkeyPatch):
    params, tokenizer, shapes = draw_params(ATTENTION_ONLY), byte_tokenizer(), []

    def traced(config, params, tokens, **settings):
        shapes.append(tokens.shape)
        return trace(config, params, tokens, **settings)

    monkeypatch.setattr(build, "trace", traced)
    for n in (5, 13):
        shown = viewer.view_models(viewer.Source("A", ATTENTION_ONLY, params), TOKENS[:, :n], tokenizer, title="x")
        guess = int(np.asarray(trace(ATTENTION_ONLY, params, TOKENS[:, :n]).logits)[0, -1].argmax())
        assert len(shown.payload["tokens"]) == len(shown.payload["successors"]) == n
        assert shown.payload["successors"][-1] == pack.shown(tokenizer.token_bytes[guess])
    assert shapes == [(1, 23)] * 2  # the model's positions


def test_numbers_that_are_none_of_the_models_are_refused():
    source = viewer.Source("A", ATTENTION_ONLY, draw_params(ATTENTION_ONLY))
    with pytest.raises(UserError, match="layers: 2 is not one of 0 to 1"):
        viewer.view_models(source, TOKENS, byte_tokenizer(), layers=[2], title="x")
    with pytest.raises(UserError, match="heads: -1 is not one of 0 to 5"):
        viewer.view_models(source, TOKENS, byte_tokenizer(), heads=[-1], title="x")
    with pytest.raises(UserError, match=r"heads = 3: must be a list of numbers, \[3\]"):
        viewer.view_models(source, TOKENS, byte_tokenizer(), heads=3, title="x")  # pyright: ignore[reportArgumentType]
    for head in ((0, 6), (2, 0), (0, -1)):
        with pytest.raises(UserError, match=r"ablate: head .* there is none in a model of 2 layers × 6 heads"):
            viewer.ablated(source, *head)


def test_models_that_cannot_be_compared_or_ablated_are_refused():
    source = viewer.Source("A", ATTENTION_ONLY, draw_params(ATTENTION_ONLY))
    smaller = dataclasses.replace(ATTENTION_ONLY, n_head=2)
    with pytest.raises(UserError, match="against: B has 2 layers × 2 heads, and A has 2 layers × 6 heads"):
        viewer.view_models(source, TOKENS, byte_tokenizer(), against=viewer.Source("B", smaller, {}), title="x")
    with pytest.raises(UserError, match=r'needs a W_O, and this model has .* = "identity"'):
        viewer.ablated(viewer.Source("A", dataclasses.replace(ATTENTION_ONLY, w_o="identity"), {}), 0, 0)
