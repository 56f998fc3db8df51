"""Schedules by hand, and which parameter each optimizer treats how."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from andrea_jax import config, conversion, model
from andrea_jax.training import optimizer

NAMES = ("adamw", "sgd", "lion", "muon", "adafactor", "lamb")


def rates(steps: int, **changes: object) -> np.ndarray:
    optim = config.Optim(**({"learning_rate": 0.5} | changes))  # pyright: ignore[reportArgumentType]
    return np.asarray(optimizer.schedule(optim, steps)(np.arange(steps)))


def test_the_warm_up_rises_from_its_first_step_and_reaches_the_peak_at_its_last():
    np.testing.assert_allclose(rates(7, schedule="constant", warmup_steps=4), 0.5 * np.array([1, 2, 3, 4, 4, 4, 4]) / 4)


def test_linear_falls_to_one_step_above_zero():
    expected = 0.5 * np.array([1 / 2, 1, 1, 4 / 5, 3 / 5, 2 / 5, 1 / 5])
    np.testing.assert_allclose(rates(7, schedule="linear", warmup_steps=2), expected, rtol=1e-6)


def test_cosine_is_at_half_its_peak_halfway_through_the_decay():
    found = rates(11, schedule="cosine", warmup_steps=1)
    expected = [0.25 * (1 + math.cos(math.pi * max(step - 1, 0) / 10)) for step in range(11)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert found[6] == pytest.approx(0.25)


def test_wsd_holds_the_peak_and_decays_linearly_over_its_share():
    expected = 0.5 * np.array([1 / 2, 1, 1, 1, 1, 1, 1, 3 / 4, 2 / 4, 1 / 4])
    found = rates(10, schedule="wsd", warmup_steps=2, decay_share=0.4)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "wsd"])
@pytest.mark.parametrize("warmup", [0, 1, 5, 13])
def test_no_step_is_wasted_on_rate_zero_and_none_exceeds_the_peak(name: str, warmup: int):
    found = rates(13, schedule=name, warmup_steps=warmup)
    assert (found > 0).all()
    assert found.max() <= 0.5 * (1 + 1e-6)


def one_update(name: str, params: dict, grads: dict, **changes: object) -> dict:
    base = {"name": name, "learning_rate": 0.1, "schedule": "constant", "clip_norm": 0.0}
    optimize = optimizer.make(config.Optim(**(base | changes)), 10)  # pyright: ignore[reportArgumentType]
    return optimize.update(grads, optimize.init(params), params)[0]


def with_biases(projection: str) -> dict:
    m = config.Model(
        vocab_size=11, seq_len=7, d_model=16, n_layer=1, n_head=2, norm="layer", norm_weights=True, biases=True,
        projection=projection,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    return jax.tree.map(lambda x: x + 0.3, model.initialise(m, 0))


@pytest.mark.parametrize("projection", ["fused", "per_head"])
@pytest.mark.parametrize("name", NAMES)
def test_weight_decay_shrinks_every_matrix_and_neither_biases_nor_gains(name: str, projection: str):
    params = with_biases(projection)
    grads = jax.tree.map(jnp.zeros_like, params)  # with a zero gradient, decay is all that is left
    updates = one_update(name, params, grads, weight_decay=0.25)
    for path, update in jax.tree_util.tree_leaves_with_path(updates):
        value = np.asarray(_at(params, path))
        if path[-1].key.startswith(("b_", "gain")):
            np.testing.assert_array_equal(update, 0)
        elif name == "lamb":  # inside the trust ratio: the step has the length of the parameter, times the rate
            np.testing.assert_allclose(update, -0.1 * value, rtol=1e-5)
        else:
            np.testing.assert_allclose(update, -0.1 * 0.25 * value, rtol=1e-5, atol=1e-8)


def test_sgd_adds_momentum_b1_and_decay_outside_of_it():
    params, grads = {"W": jnp.array([2.0, -4.0])}, {"W": jnp.array([1.0, 3.0])}
    optim = config.Optim(name="sgd", learning_rate=0.1, schedule="constant", b1=0.5, weight_decay=0.25, clip_norm=0.0)
    optimize = optimizer.make(optim, 10)
    state = optimize.init(params)
    velocity, w = np.zeros(2), np.array([2.0, -4.0])
    for _ in range(3):
        updates, state = optimize.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        velocity = 0.5 * velocity + np.array([1.0, 3.0])
        w = w - 0.1 * (velocity + 0.25 * w)
    np.testing.assert_allclose(params["W"], w, rtol=1e-6)


def test_adamw_steps_by_the_rate_against_the_sign_of_a_first_gradient():
    params = {"W": jnp.array([[1.0, 1.0]])}
    updates = one_update("adamw", params, {"W": jnp.array([[2.0, -0.3]])})
    np.testing.assert_allclose(updates["W"], [[-0.1, 0.1]], rtol=1e-6)


def test_clipping_scales_the_gradient_of_all_parameters_together():
    params = {"W": jnp.zeros(1), "b_x": jnp.zeros(1)}
    grads = {"W": jnp.array([3.0]), "b_x": jnp.array([4.0])}
    clipped = one_update("sgd", params, grads, clip_norm=1.0)
    np.testing.assert_allclose([clipped["W"][0], clipped["b_x"][0]], [-0.1 * 3 / 5, -0.1 * 4 / 5], rtol=1e-6)
    free = one_update("sgd", params, grads, clip_norm=0.0)
    np.testing.assert_allclose([free["W"][0], free["b_x"][0]], [-0.3, -0.4], rtol=1e-6)


def _is_orthogonalised(update: jax.Array) -> bool:
    """Muon's updates have nearly equal singular values; AdamW's first ones, ± the rate, do not."""
    values = np.linalg.svd(np.asarray(update, np.float64), compute_uv=False)
    return bool(values.min() > 0.3 * values.max())


def test_muon_takes_the_layers_2d_matrices_and_adamw_the_rest():
    for projection, expected in (("fused", {"W_QKV", "W_O", "W_in", "W_out"}), ("per_head", {"W_in", "W_out"})):
        params = with_biases(projection)
        grads = jax.tree.map(lambda x: jax.random.normal(jax.random.key(x.size), x.shape) + 2.0, params)
        updates = one_update("muon", params, grads)
        taken = set()
        for path, update in jax.tree_util.tree_leaves_with_path(updates):
            adamw_step = np.allclose(np.abs(update), 0.1, rtol=1e-4)
            if not adamw_step:
                assert _is_orthogonalised(update), path
                assert np.sqrt(np.square(update).mean()) == pytest.approx(0.1 * 0.2, rel=0.35)  # AdamW's size
                taken.add(path[-1].key)
        assert taken == expected


@pytest.mark.parametrize("name", ["muon", "adafactor", "lamb"])
def test_fused_matrices_give_every_projection_the_same_updates_and_stored_ones_do_not(name: str):
    params = with_biases("fused")
    grads = jax.tree.map(lambda x: jax.random.normal(jax.random.key(x.size), x.shape), params)
    m = config.Model(vocab_size=11, seq_len=7, d_model=16, n_layer=1, n_head=2, norm="layer", norm_weights=True,
                     biases=True)  # fmt: skip
    expected = one_update(name, params, grads)
    for target in (("per_head", "einsum"), ("fused", "three")):
        other, stored = conversion.convert(m, params, *target)
        _, stored_grads = conversion.convert(m, grads, *target)
        for matrices in ("stored", "fused"):
            updates = one_update(name, stored, stored_grads, matrices=matrices)
            _, updates = conversion.convert(other, updates, "fused", "one")
            same = jax.tree.map(np.array_equal, updates, expected)
            assert all(jax.tree.leaves(same)) == (matrices == "fused"), (target, matrices)


def _at(tree: dict, path: tuple) -> jax.Array:
    for key in path:
        tree = tree[key.key]
    return tree  # pyright: ignore[reportReturnType]
