"""Gradient importance against finite differences by hand, and its rank correlation against scipy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from edited_andrea import CONFIG, HEADS, PARAMS, TASK, TOKENS, Inner, forward, losses
from scipy.stats import spearmanr

from andrea_jax.conversion import convert
from andrea_jax.interventions import Task, gate_gradients, importance
from andrea_jax.interventions.correlation import rank_correlation, spearman
from andrea_jax.interventions.damage import ablate


@pytest.fixture(scope="module")
def gradients() -> np.ndarray:
    return gate_gradients(CONFIG, PARAMS, TASK, "some", backend="reference")


def loss_with_gate(sequence: int, place: tuple[int, int], gate: float) -> float:
    def edit(layer: int, inner: Inner) -> Inner:
        z = inner.z.copy()
        if layer == place[0]:
            z[place[1]] *= gate
        return inner._replace(z=z)

    logits, _ = forward(CONFIG, PARAMS, TOKENS[sequence, :-1], edit)
    return losses(logits, TOKENS[sequence, 1:])[TASK.asked["some"][sequence]].mean()


def test_the_gradient_of_a_gate_is_the_slope_of_that_sequences_own_mean_loss(gradients):
    for sequence, layer, head in ((0, 0, 4), (2, 1, 1), (4, 0, 0)):
        rise = loss_with_gate(sequence, (layer, head), 1 + 1e-5) - loss_with_gate(sequence, (layer, head), 1 - 1e-5)
        assert gradients[sequence, layer, head] == pytest.approx(rise / 2e-5, rel=2e-3, abs=2e-5)


def test_importance_does_not_depend_on_the_batch(gradients):
    one_by_one = gate_gradients(CONFIG, PARAMS, TASK, "some", backend="reference", batch_size=2)  # 2, 2 and a padded 1
    whole, parts = (np.abs(x).mean(axis=0) for x in (gradients, one_by_one))
    np.testing.assert_allclose(parts, whole, rtol=1e-5)


def test_a_batchs_mean_gradient_would_let_sequences_cancel(gradients):
    by_example, of_batch = np.abs(gradients).mean(axis=0), np.abs(gradients.mean(axis=0))
    assert (by_example >= of_batch * 0.999).all()
    assert (of_batch / by_example).min() < 0.3
    assert spearmanr(by_example.ravel(), of_batch.ravel()).statistic < 0.9


@pytest.mark.slow
def test_both_projections_give_the_same_importance(gradients):
    config, params = convert(CONFIG, PARAMS, "per_head")
    other = gate_gradients(config, params, TASK, "some", backend="reference")
    np.testing.assert_allclose(other, gradients, rtol=1e-4, atol=1e-6)


def test_heads_already_gone_have_no_gradient_and_the_others_that_of_the_model_without_them(gradients):
    left = np.ones((2, 6), bool)
    left[0, 4] = False
    found = gate_gradients(CONFIG, PARAMS, TASK, "some", left=left, backend="reference")
    without = jax.tree.map(jnp.array, PARAMS)
    weights = without["layers"]["0"]["attention"]["projection"]
    weights["W_O"] = weights["W_O"].at[32:40].set(0)
    expected = gate_gradients(CONFIG, without, TASK, "some", backend="reference")
    assert not found[:, 0, 4].any() and not np.allclose(expected, gradients, atol=1e-3)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_importance_stands_beside_the_damage_that_ablation_measures():
    found = importance(CONFIG, PARAMS, [TASK], backend="reference")
    damage = ablate(CONFIG, PARAMS, [TASK], backend="reference").table
    table = found.table.set_index(["measure", "layer", "head"])
    assert len(table) == 2 * 12 and list(table.loc["loss"].index) == HEADS
    for kind, ends in (("zero", ("zero_low", "zero_high")), ("mean", ("mean_low", "mean_high"))):
        for measure in ("loss", "some"):
            rows = damage[(damage["kind"] == kind) & (damage["measure"] == measure)]
            for column, name in zip((kind, *ends), ("damage", "low", "high"), strict=True):
                np.testing.assert_allclose(table.loc[measure, column], rows[name], rtol=1e-6)
    rho = found.correlations.set_index(["measure", "kind", "scope"])["rho"]
    some = table.loc["some"]
    assert rho["some", "mean", "all"] == pytest.approx(spearmanr(some["importance"], some["mean"]).statistic)
    in_layers = [spearmanr(some.loc[layer, "importance"], some.loc[layer, "mean"]).statistic for layer in (0, 1)]
    assert rho["some", "mean", "layer 1"] == pytest.approx(in_layers[1])
    assert rho["some", "mean", "within layers"] == pytest.approx(np.mean(in_layers))
    assert (found.correlations["low"] <= found.correlations["high"]).all()


@pytest.mark.slow
def test_sequences_that_are_asked_nowhere_are_left_out():
    asked = TASK.asked["some"].copy()
    asked[1] = False
    found = importance(CONFIG, PARAMS, [Task(TOKENS, {"loss": TASK.asked["loss"], "some": asked})], backend="reference")
    assert found.table.groupby("measure")["n"].first().to_dict() == {"loss": 5, "some": 4}


def test_ranks_are_shared_by_equal_values_and_correlate_as_scipy_says():
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 4, (3, 11)).astype(float), rng.normal(size=(3, 11))
    found = rank_correlation(x, y)
    np.testing.assert_allclose(found, [spearmanr(a, b).statistic for a, b in zip(x, y, strict=True)])
    assert np.isnan(rank_correlation(np.ones((1, 5)), y[:1, :5])).all()  # all equal: no ranking
    assert np.isnan(rank_correlation(x[:, :1], y[:, :1])).all()  # one head


def test_pooling_layers_can_turn_a_correlation_round():
    part = np.array([[1.0, 2, 3, 11, 12, 13]]).repeat(4, axis=0)  # within each layer of three heads rising with ...
    other = np.array([[21.0, 22, 23, 1, 2, 3]]).repeat(4, axis=0)  # ... this, and across layers against it
    one, layers = np.ones(4), [slice(0, 3), slice(3, 6)]
    found = {scope: rho[0] for scope, rho, _ in spearman((part, one), (other, one), layers)}
    assert found["within layers"] == found["layer 0"] == found["layer 1"] == pytest.approx(1)
    assert found["all"] < 0
