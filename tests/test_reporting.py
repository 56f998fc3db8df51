"""What a report shows of a run: which heads, on which text, with which targets."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import andrea_jax
from andrea_jax import reporting
from andrea_jax.heads import Profile


@pytest.fixture(scope="module")
def loaded(tiny_run):
    return andrea_jax.load_run(tiny_run)


def profile_with(**low_of_probe: float) -> Profile:
    """Best heads only: head 1.2, score 0.5, baseline 0.2, and the low end of each probe's interval as named."""
    rows = [
        {"probe": probe, "layer": 1, "head": 2, "score": 0.5, "baseline": 0.2, "n": 9, "low": 0.1}
        | ({"low": low_of_probe[probe]} if probe in low_of_probe else {})
        for probe in reporting.SHOWN
    ]
    nothing = pd.DataFrame()
    return Profile(nothing, pd.DataFrame(rows), nothing, nothing, nothing)


def test_only_heads_whose_interval_lies_above_the_baseline_are_shown(loaded):
    shown = reporting.patterns(loaded, profile_with(first_token=0.21, induction=0.3, current_token=0.2))
    assert [(p.probe, p.layer, p.head) for p in shown] == [("induction", 1, 2), ("first_token", 1, 2)]


def test_a_probe_without_a_target_is_left_out(loaded):
    profile = profile_with(first_token=0.3)
    best = profile.best.assign(n=0)
    assert reporting.patterns(loaded, dataclasses.replace(profile, best=best)) == []


def test_induction_is_shown_on_a_repeated_block_and_points_just_after_the_first_copy(loaded):
    (shown,) = reporting.patterns(loaded, profile_with(induction=0.3))
    assert shown.tokens[1:15] == shown.tokens[15:29]  # BOS, 14 tokens, the same 14 tokens
    query, key = np.nonzero(shown.targets)
    assert (query - key == 13).all()
    assert query.tolist() == list(range(15, 29))


def test_the_targets_of_the_previous_token_lie_one_below_the_diagonal(loaded):
    (shown,) = reporting.patterns(loaded, profile_with(previous_token=0.3))
    assert len(shown.tokens) == 31  # data.seq_len, shorter than a snippet may be
    assert np.array_equal(shown.targets, np.eye(31, k=-1, dtype=bool))
    assert shown.pattern.shape == (31, 31)


@pytest.mark.slow
def test_a_trained_model_equals_itself_with_the_other_projection(loaded):
    checks = reporting.equality(loaded)
    assert (checks["max_difference"] <= checks["tolerance"]).all()
