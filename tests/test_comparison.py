"""What the comparison of projections measures, and that it measures all of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from andrea_jax import comparison, model
from andrea_jax.compiled import matmuls
from andrea_jax.config import Compute, Model
from andrea_jax.projections import split_heads

N_HEAD = 3
TINY = Model(vocab_size=13, seq_len=11, d_model=24, n_layer=1, n_head=N_HEAD, d_mlp=16, biases=True)
GROUPED = dataclasses.replace(TINY, d_model=32, n_head=4, n_kv_head=2, biases=False)


def tokens(config: Model) -> np.ndarray:
    drawn = np.random.default_rng(0).integers(1, config.vocab_size, (5, config.seq_len + 1), np.int32)
    drawn[:, 0] = 0
    return drawn


def test_a_model_equals_itself_converted_to_the_other_projection():
    found = comparison.equality(TINY, model.initialise(TINY, 0), tokens(TINY))
    assert found["form"].unique().tolist() == ["per-head, einsum"]
    assert found["quantity"].tolist() == ["logits", "gradients", "head scores", "weights there and back"]
    assert found["tolerance"].tolist() == [2e-5, 2e-5, 2e-5, 0]
    assert (found["max_difference"] <= found["tolerance"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("swapped", ["W_Q", "W_O"])
def test_a_conversion_that_swaps_two_heads_of_one_matrix_is_found_out(monkeypatch, swapped):
    right = comparison.convert

    def wrong(config, params, projection, form=None):
        other, converted = right(config, params, projection, form)
        if projection == "per_head":
            weights = converted["layers"]["0"]["attention"]["projection"]
            weights[swapped] = weights[swapped][jnp.array([1, 0, 2])]
        return other, converted

    monkeypatch.setattr(comparison, "convert", wrong)
    found = comparison.equality(TINY, model.initialise(TINY, 0), tokens(TINY)).set_index("quantity")
    for quantity in ("logits", "gradients", "weights there and back"):
        assert found.loc[quantity, "max_difference"] > 1e-3


def test_differences_are_relative_to_the_largest_value_of_the_whole_tree():
    a = {"big": jnp.array([8.0, -2.0]), "zero": jnp.zeros(3)}
    b = {"big": jnp.array([7.0, -2.0]), "zero": jnp.array([0.0, 0.5, 0.0])}
    assert comparison.largest_difference(a, b) == 1 / 8
    assert comparison.largest_difference(a, b | {"big": a["big"]}) == 0.5 / 8
    assert comparison.largest_difference({"zero": jnp.zeros(3)}, {"zero": jnp.zeros(3)}) == 0
    assert not comparison.largest_difference(a, b | {"big": jnp.array([jnp.nan, -2.0])}) <= 1e9


@pytest.mark.parametrize(
    ("form", "forward", "both"),
    [
        (("fused", "one"), 2, 6),  # W_QKV and W_O; the gradients of each weight and of each input
        (("fused", "three"), 4, 12),
        (("per_head", "einsum"), 4, 12),
        (("per_head", "loop"), 4 * N_HEAD, 12 * N_HEAD),
    ],
)
def test_the_timed_programs_have_every_product_and_none_twice(form, forward, both):
    programs = comparison._programs(dataclasses.replace(TINY, biases=False), *form, Compute(), 5, 17)
    assert {passes: matmuls(program.as_text()) for passes, (program, _) in programs.items()} == {
        "forward": forward,
        "forward + backward": both,
    }


@pytest.mark.parametrize(
    "config", [GROUPED, pytest.param(dataclasses.replace(TINY, w_o="block_diagonal"), marks=pytest.mark.slow)]
)
def test_every_timed_program_computes_the_same_output_and_gradients_as_numpy_says(config):
    batch, seq, h, kv = 2, 5, config.head_dim, config.kv_heads
    found = {}
    for form in (("fused", "one"), ("per_head", "einsum")):
        program, arguments = comparison._programs(config, *form, Compute(), batch, seq)["forward + backward"]
        found[form] = program(*arguments)
    weights, x, dy = (jax.tree.map(lambda a: np.asarray(a, np.float64), part) for part in arguments)
    q, k, v = (np.einsum("btd,hdk->bthk", x, weights[f"W_{name}"]) for name in "QKV")
    if config.biases:
        q, k, v = q + weights["b_Q"], k + weights["b_K"], v + weights["b_V"]
    group = config.n_head // kv
    z = q * np.repeat(k, group, axis=2) + np.repeat(v, group, axis=2)
    if config.w_o == "free":
        y = np.einsum("bthk,hkd->btd", z, weights["W_O"])
        d_w_o = np.einsum("bthk,btd->hkd", z, dy)
    else:
        y = np.einsum("bthk,hkj->bthj", z, weights["W_O"]).reshape(x.shape) + weights["b_O"]
        d_w_o = np.einsum("bthk,bthj->hkj", z, dy.reshape(batch, seq, -1, h))
    for form, (y_found, (d_weights, d_x)) in found.items():
        split = split_heads(d_weights, config.n_head, config.n_kv_head) if form[0] == "fused" else d_weights
        np.testing.assert_allclose(y_found, y, rtol=0, atol=2e-5 * np.abs(y).max())
        np.testing.assert_allclose(split["W_O"], d_w_o, rtol=0, atol=2e-5 * np.abs(d_w_o).max())
        assert all(np.abs(gradient).max() > 1e-3 for gradient in (*jax.tree.leaves(split), d_x))
    (_, (_, dx_one)), (_, (_, dx_other)) = found.values()
    np.testing.assert_allclose(dx_one, dx_other, rtol=0, atol=2e-5 * np.abs(dx_one).max())


@pytest.mark.parametrize(
    ("changes", "weights"),
    [
        ({}, 4 * 24 * 24),
        ({"w_o": "identity"}, 3 * 24 * 24),
        ({"w_o": "block_diagonal"}, 3 * 24 * 24 + 3 * 8 * 8),
        ({"d_model": 32, "n_head": 4, "n_kv_head": 1}, 2 * 32 * 32 + 2 * 32 * 8),
    ],
)
def test_every_weight_costs_a_multiplication_and_an_addition_a_token(changes, weights):
    assert comparison.flops_per_token(dataclasses.replace(TINY, **changes)) == 2 * weights


@pytest.mark.slow
def test_the_table_of_times_has_every_form_and_counts_what_it_says():
    told = []
    config = dataclasses.replace(TINY, biases=False)
    found = comparison.timing(config, Compute(), batch=3, seq=7, repeats=4, progress=lambda *at: told.append(at))
    assert told == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]  # the first call is not counted
    names = ["fused, one matrix", "fused, three matrices", "per-head, einsum", "per-head, loop"]
    assert found["form"].tolist() == [name for name in names for _ in range(2)]
    assert found["matmuls"].tolist() == [2, 6, 4, 12, 4, 12, 12, 36]
    assert (found["min_ms"] <= found["median_ms"]).all()
    work = 2 * 4 * 24 * 24 * 3 * 7 * np.tile([1, 3], 4)  # floating-point operations
    np.testing.assert_allclose(found["gflop_s"] * found["min_ms"] * 1e6, work)
