"""Intervals over seeds, by hand and beside scipy's."""

import math

import numpy as np
import pytest
from scipy import stats

from andrea_jax import seeds

A, B = {0: 2.0, 1: 2.5, 2: 2.3}, {0: 1.9, 1: 2.2, 2: 2.1}


def test_a_mean_has_students_interval():
    found = seeds.mean([1.0, 2.0, 3.0])
    half = 4.302653 / math.sqrt(3)  # t(2) at 97.5% from a table; s = 1
    assert (found.value, found.n) == (2.0, 3)
    assert (found.low, found.high) == (pytest.approx(2 - half, abs=1e-5), pytest.approx(2 + half, abs=1e-5))


def test_one_seed_has_no_interval_and_no_verdict():
    found = seeds.mean([0.7])
    assert found.value == 0.7 and math.isnan(found.low) and math.isnan(found.high)
    assert found.verdict == "too few seeds"
    assert math.isnan(seeds.mean([]).value)


def test_seeds_that_are_shared_are_paired():
    found = seeds.difference(A, B)
    expected = stats.ttest_rel(list(B.values()), list(A.values())).confidence_interval(0.95)
    assert found.value == pytest.approx(-0.2) and found.n == 3
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert found.verdict == "within noise"


def test_a_difference_that_every_seed_shows_alike_is_beyond_noise_although_the_seeds_overlap():
    shifted = {seed: value + 0.1 + 0.001 * seed for seed, value in A.items()}
    assert min(shifted.values()) < max(A.values())
    assert seeds.difference(A, shifted).verdict == "beyond noise"


def test_seeds_that_are_not_shared_are_compared_by_welch():
    other = {seed + 10: value for seed, value in B.items()} | {20: 2.6}
    found = seeds.difference(A, other)
    expected = stats.ttest_ind(list(other.values()), list(A.values()), equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert found.value == pytest.approx(2.2 - 6.8 / 3) and found.n == 3


def test_pairing_uses_the_shared_seeds_only_and_leaves_out_what_is_not_a_number():
    found = seeds.difference(A | {3: 9.0}, B | {2: math.nan, 7: 0.0})
    assert found.n == 2 and found.value == pytest.approx(np.mean([-0.1, -0.3]))


@pytest.mark.parametrize(
    ("a", "b", "value"), [({0: 1.0}, {1: 3.0}, 2.0), ({0: 1.0}, {0: 3.0}, 2.0), ({}, {0: 1.0}, None)]
)
def test_too_few_seeds_give_a_difference_without_an_interval(a, b, value):
    found = seeds.difference(a, b)
    assert found.value == value if value is not None else math.isnan(found.value)
    assert math.isnan(found.low) and found.verdict == "too few seeds"


def test_equal_values_differ_by_exactly_nothing():
    found = seeds.difference({0: 1.5, 1: 1.5}, {2: 1.5, 3: 1.5})
    assert (found.value, found.low, found.high, found.verdict) == (0, 0, 0, "within noise")


def test_an_interval_that_is_one_of_several_is_wider():
    """Student's t at 2 degrees of freedom: 4.3027 at 97.5%, 6.2053 at 98.75%."""
    found = seeds.Estimate(0.5, 0.4, 0.6, 3).widened(2)
    assert (found.value, found.n) == (0.5, 3)
    assert (found.low, found.high) == pytest.approx((0.5 - 0.14422, 0.5 + 0.14422), abs=1e-5)
    assert seeds.Estimate(0.5, 0.5, 0.5, 3).widened(1) == seeds.Estimate(0.5, 0.5, 0.5, 3)
    assert seeds.mean([0.5]).widened(7).verdict == "too few seeds"
