"""Target sets, checked by hand."""

import tracemalloc

import numpy as np
import pytest

from andrea_jax.heads import targets
from andrea_jax.heads.targets import Targets


def ids(*tokens: int) -> np.ndarray:
    return np.array([tokens])


def as_sets(found: Targets, length: int) -> dict[int, set[int]]:
    return {q: found.keys(0, q) for q in range(length) if found.keys(0, q)}


def test_the_followers_of_every_earlier_copy_are_induction_targets_but_never_the_query():
    assert as_sets(targets.induction_all(ids(0, 5, 5, 5, 7, 5)), 6) == {3: {2}, 5: {2, 3, 4}}


def test_the_first_repeat_asks_only_tokens_with_one_earlier_copy():
    tokens = ids(0, 5, 6, 7, 5, 6, 7, 5, 6, 7)
    assert as_sets(targets.induction(tokens), 10) == {4: {2}, 5: {3}, 6: {4}}
    assert as_sets(targets.induction_all(tokens), 10) == {4: {2}, 5: {3}, 6: {4}, 7: {2, 5}, 8: {3, 6}, 9: {4, 7}}


def test_a_token_that_repeats_at_once_has_no_follower_to_attend_to():
    assert as_sets(targets.induction(ids(0, 5, 5, 6)), 4) == {}


def test_duplicates_are_earlier_copies_of_the_token():
    assert as_sets(targets.duplicate_token(ids(0, 5, 6, 5, 5, 6)), 6) == {3: {1}, 4: {1, 3}, 5: {2}}


@pytest.mark.parametrize(("n_ids", "length"), [(2, 23), (5, 61), (300, 37), (5, 1)])
def test_pairs_of_equal_tokens_are_those_of_the_whole_square_in_its_order(n_ids: int, length: int):
    tokens = np.random.default_rng(0).integers(1, n_ids, (3, length))
    tokens[:, 0] = 0
    square = np.tril(tokens[:, :, None] == tokens[:, None], -1) & (np.arange(length) > 0)
    found = targets.duplicate_token(tokens)
    np.testing.assert_array_equal(np.stack([found.sequence, found.query, found.key]), np.nonzero(square))


def test_pairs_of_a_long_sequence_need_no_square():
    tokens = np.concatenate([[0], np.tile(np.arange(1, 5002), 4)])[None]  # a square of it has 400 million entries
    tracemalloc.start()
    found = targets.induction_all(tokens)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.key) == 5001 * (1 + 2 + 3) and peak < 2**24


def test_previous_token_reaches_bos_and_current_and_first_leave_row_0_out():
    tokens = ids(0, 5, 6, 7)
    assert as_sets(targets.previous_token(tokens), 4) == {1: {0}, 2: {1}, 3: {2}}
    assert as_sets(targets.current_token(tokens), 4) == {1: {1}, 2: {2}, 3: {3}}
    assert as_sets(targets.first_token(tokens), 4) == {1: {0}, 2: {0}, 3: {0}}
    assert as_sets(targets.fixed_offset(tokens, 2), 4) == {2: {0}, 3: {1}}


def test_the_latest_wanted_token_is_the_only_target_and_never_the_query_itself():
    wanted = np.isin(np.arange(8), [3, 4])
    assert as_sets(targets.latest(ids(0, 5, 3, 4, 7, 3, 6), wanted), 7) == {3: {2}, 4: {3}, 5: {3}, 6: {5}}
    assert as_sets(targets.latest(ids(0, 5, 6, 7), wanted), 4) == {}
    two = targets.latest(np.array([[0, 3, 5, 5], [0, 5, 4, 5]]), wanted)
    assert [two.keys(0, q) for q in (1, 2, 3)] == [set(), {1}, {1}]
    assert [two.keys(1, q) for q in (1, 2, 3)] == [set(), set(), {2}]


def test_sequences_are_kept_apart():
    found = targets.duplicate_token(np.array([[0, 5, 6, 5], [0, 6, 6, 5]]))
    assert (found.keys(0, 3), found.keys(0, 2), found.keys(1, 2), found.keys(1, 3)) == ({1}, set(), {1}, set())


def test_a_wrong_offset_is_asked_where_induction_is_and_avoids_its_targets_and_bos():
    tokens = ids(0, 5, 6, 7, 5, 6, 7, 5, 6, 7)  # period 3, right offset 2
    right = targets.induction_all(tokens)
    assert as_sets(targets.wrong_offset(right, 4), 10) == {5: {1}, 6: {2}, 7: {3}, 8: {4}, 9: {5}}  # q = 4: BOS
    assert as_sets(targets.wrong_offset(right, 5), 10) == {6: {1}}  # from q = 7 on, it is the follower in copy 1
    assert as_sets(targets.wrong_offset(right, 2), 10) == {}


def test_a_window_that_crosses_documents_is_refused():
    targets.check_single_documents(np.array([[0, 5, 6], [0, 7, 8]]))
    with pytest.raises(ValueError, match="sequence 1 has a second BOS at position 2"):
        targets.check_single_documents(np.array([[0, 5, 6], [0, 7, 0]]))
    with pytest.raises(ValueError, match="must start with BOS"):
        targets.check_single_documents(np.array([[5, 6, 7]]))
