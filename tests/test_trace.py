"""What a traced pass returns, and that it is the model's own pass."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from andrea_jax import model as andrea
from andrea_jax import trace as trace_module
from andrea_jax.config import Model
from andrea_jax.errors import UserError
from andrea_jax.trace import POINTS, trace

CONFIG = Model(vocab_size=19, seq_len=23, d_model=48, n_layer=2, n_head=6, n_kv_head=2, positions="rotary", biases=True)
TOKENS = np.random.default_rng(0).integers(0, 19, (5, 17)).astype(np.int32)


def draw_params(config: Model) -> dict:
    """Random weights; by numpy, since `model.initialise` compiles every shape."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.2, x.shape), x.dtype), andrea.abstract(config))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("projection", ["per_head", "fused"])
def test_recording_every_point_leaves_the_logits_bit_identical(projection: str, dtype: str):
    config = dataclasses.replace(CONFIG, projection=projection, n_layer=1)
    params = draw_params(config)
    plain = jax.jit(lambda p, t: andrea.bind(config, p, dtype=dtype)(t))(params, TOKENS)
    traced = trace(config, params, TOKENS, dtype=dtype, points=POINTS)
    assert np.array_equal(np.asarray(plain), np.asarray(traced.logits))
    assert traced["q"].dtype == jnp.dtype(dtype) and traced["lse"].dtype == jnp.float32


def test_points_have_the_shapes_that_are_documented():
    traced = trace(CONFIG, draw_params(CONFIG), TOKENS, points=POINTS)
    stream, heads, kv, rows = (2, 5, 17, 48), (2, 5, 17, 6, 8), (2, 5, 17, 2, 8), (2, 5, 6, 17)
    expected = {"resid_pre": stream, "q": heads, "k": kv, "v": kv, "lse": rows, "entropy": rows, "z": heads,
                "head_output": (2, 5, 17, 6, 48), "attention_out": stream, "mlp_out": stream,
                "resid_final": (5, 17, 48)}  # fmt: skip
    assert {point: value.shape for point, value in traced.values.items()} == expected


@pytest.mark.parametrize(
    ("projection", "w_o"),
    [("per_head", "free"), ("fused", "free"), ("per_head", "block_diagonal"), ("fused", "identity")],
)
def test_the_heads_outputs_add_up_to_the_layers_output_without_its_bias(projection: str, w_o: str):
    config = dataclasses.replace(CONFIG, n_layer=1, projection=projection, w_o=w_o)
    params = draw_params(config)
    bias = params["layers"]["0"]["attention"]["projection"]["b_O"]
    traced = trace(config, params, TOKENS, points=("head_output", "attention_out"))
    np.testing.assert_allclose(traced["head_output"].sum(axis=3) + bias[None, None, None], traced["attention_out"],
                               rtol=1e-4, atol=1e-5)  # fmt: skip


def test_one_wide_head_with_a_block_diagonal_w_o_writes_the_whole_output():
    config = dataclasses.replace(
        CONFIG, n_layer=1, n_head=1, n_kv_head=1, projection="fused", w_o="block_diagonal", biases=False
    )
    traced = trace(config, draw_params(config), TOKENS, points=("head_output", "attention_out"))
    np.testing.assert_allclose(traced["head_output"][:, :, :, 0], traced["attention_out"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrong", [{"layer": 2}, {"layer": -1}, {"head": 6}, {"sequence": 5}])
def test_a_pattern_that_is_not_there_is_refused_and_not_clamped(wrong: dict[str, int]):
    traced = trace(CONFIG, draw_params(CONFIG), TOKENS)
    (name, value), *_ = wrong.items()
    with pytest.raises(UserError, match=f"pattern: {name} = {value}: must be from 0 to"):
        traced.pattern(**{"layer": 0, "head": 0, **wrong})


def test_a_pattern_is_the_softmax_of_its_scores_and_its_entropy_that_of_its_rows():
    params = draw_params(CONFIG)
    traced = trace(CONFIG, params, TOKENS, entropy=True)
    q, k = np.asarray(traced["q"], np.float64)[1, 3, :, 4], np.asarray(traced["k"], np.float64)[1, 3, :, 1]  # 4 // 3
    expected = np.tril(np.exp(q @ k.T / np.sqrt(8)))
    expected /= expected.sum(axis=1, keepdims=True)
    pattern = traced.pattern(1, 4, sequence=3)
    np.testing.assert_allclose(pattern, expected, atol=1e-6)
    np.testing.assert_array_equal(traced.pattern(1, 4, sequence=3, queries=slice(5, 9)), pattern[5:9])
    entropy = -(expected * np.log(np.where(expected > 0, expected, 1))).sum(axis=1)
    np.testing.assert_allclose(traced["entropy"][1, 3, 4], entropy, atol=1e-5)


def test_a_second_call_does_not_trace_again(monkeypatch: pytest.MonkeyPatch):
    traced = []
    real = trace_module.bind
    monkeypatch.setattr(trace_module, "bind", lambda *a, **k: traced.append(1) or real(*a, **k))
    config = dataclasses.replace(CONFIG, n_layer=1, d_mlp=40)  # not compiled by another test
    params = draw_params(config)
    first = trace(config, params, TOKENS)
    second = trace(config, jax.tree.map(lambda x: x + 1, params), TOKENS[::-1])
    assert len(traced) == 1
    assert not np.array_equal(first.logits, second.logits)


@pytest.mark.parametrize("wrong", [19, -1])
def test_an_id_outside_the_vocabulary_is_refused_and_not_clamped(wrong: int):
    tokens = TOKENS.copy()
    tokens[3, 7] = wrong
    with pytest.raises(UserError, match=f"tokens: id {wrong}: must be from 0 to 18"):
        trace(CONFIG, andrea.abstract(CONFIG), tokens)


def test_unknown_points_are_refused_with_the_nearest_name():
    params = draw_params(CONFIG)
    with pytest.raises(UserError, match=r'no trace point "resid_post" \(did you mean "resid_pre"\?\)'):
        trace(CONFIG, params, TOKENS, points=("resid_post",))
    with pytest.raises(UserError, match="attention-only"):
        trace(dataclasses.replace(CONFIG, d_mlp=0), params, TOKENS, points=("mlp_out",))
    with pytest.raises(UserError, match='trace has no "v"'):
        trace(CONFIG, params, TOKENS)["v"]
