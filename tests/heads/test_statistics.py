"""Ratios, intervals, and choosing on one half to report on the other."""

import numpy as np
import pytest

from andrea_jax.heads import statistics, tables
from andrea_jax.heads.scores import Sums
from andrea_jax.heads.tables import Result


def sums(mass: np.ndarray, n: np.ndarray) -> Sums:
    return Sums(mass.astype(np.float32), np.zeros_like(mass), 0.125 * n, n)


def test_a_score_divides_by_the_queries_not_by_the_sequences():
    found = statistics.estimate(sums(np.array([[[1.0, 0.0]], [[5.0, 2.5]]]), np.array([1, 9])))
    assert found is not None
    np.testing.assert_allclose(found.score, [[0.6, 0.25]])
    assert found.score.dtype == found.low.dtype == np.float32


def test_the_interval_is_that_of_a_mean_over_sequences():
    values = np.random.default_rng(1).random((397, 1, 1))
    found = statistics.estimate(sums(values, np.ones(397, int)))
    half = 1.96 * values.std() / np.sqrt(397)
    assert found is not None
    assert found.low.item() == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert found.high.item() == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_sequences_without_a_target_do_not_move_the_score():
    found = statistics.estimate(sums(np.array([[[0.5]], [[0.0]], [[0.5]]]), np.array([1, 0, 1])))
    assert found is not None
    assert found.score.item() == found.low.item() == found.high.item() == 0.5


def test_no_target_at_all_is_undefined_and_not_nan():
    assert statistics.estimate(sums(np.zeros((3, 2, 2)), np.zeros(3, int))) is None
    row = tables.rows("bracket", Result(sums(np.zeros((3, 2, 2)), np.zeros(3, int)), reason="no Python"))
    assert row["undefined"].all() and row["score"].isna().all() and set(row["reason"]) == {"no Python"}


def test_the_head_is_chosen_on_the_even_sequences_and_reported_on_the_odd_ones():
    mass = np.zeros((7, 2, 3))
    mass[0::2, 1, 2] = 0.9  # this head shines only where it is chosen
    mass[1::2, 1, 2] = 0.3
    mass[1::2, 0, 1] = 0.8  # this one only where nobody looks
    best = tables.best("induction", Result(sums(mass, np.ones(7, int)))).iloc[0]
    assert (best["layer"], best["head"], best["n"]) == (1, 2, 3)
    assert best["score"] == pytest.approx(0.3)


def test_the_best_entropy_is_the_lowest():
    entropy = np.full((4, 1, 3), 2.0)
    entropy[:, 0, 1] = 0.5
    assert tables.best("entropy", Result(sums(entropy, np.ones(4, int)), sign=-1)).iloc[0]["head"] == 1


@pytest.mark.parametrize("empty", [statistics.CHOOSE, statistics.REPORT])
def test_a_half_without_targets_has_no_best_head(empty: slice):
    n = np.ones(4, int)
    n[empty] = 0
    best = tables.best("bracket", Result(sums(np.ones((4, 1, 3)) * n[:, None, None], n))).iloc[0]
    assert best["undefined"] and best.isna()["layer"] and best.isna()["score"] and best["reason"]


def test_the_control_is_the_largest_over_wrong_offsets_head_by_head():
    right = sums(np.ones((2, 1, 2)), np.ones(2, int))
    wrong = [sums(np.array([[[0.1, 0.6]]] * 2), np.ones(2, int)), sums(np.array([[[0.3, 0.0]]] * 2), np.ones(2, int))]
    nothing = sums(np.zeros((2, 1, 2)), np.zeros(2, int))
    np.testing.assert_allclose(tables.rows("induction", Result(right, (*wrong, nothing)))["control"], [0.3, 0.6])


def test_each_head_reports_its_own_best_distance():
    near, far = np.full((4, 1, 2), 0.1), np.full((4, 1, 2), 0.1)
    near[:, 0, 0], far[:, 0, 1] = 0.7, 0.9
    table, best = tables.best_offsets({1: sums(near, np.full(4, 1)), 5: sums(far, np.full(4, 1))})
    assert table["offset"].tolist() == [1, 5] and best["offset"].tolist() == [5]
    np.testing.assert_allclose(table["score"], [0.7, 0.9], rtol=1e-6)
    assert (table["n"] == 2).all()
