"""Batches are pure functions of (seed, step); repeats repeat; held-out windows stay inside one document."""

import numpy as np
import pytest

from andrea_jax.data import batch, heldout_windows, training_periods
from andrea_jax.errors import UserError

# 89 letters whose neighbours never occur twice in the same order, so that a window's place can be read off it
LETTERS = "".join(chr(0x21 + i) for i in range(89))


def shortest_period(window: np.ndarray) -> int:
    """The least P with window[i] == window[i + P] everywhere; its length where there is none."""
    return next((p for p in range(1, len(window)) if (window[:-p] == window[p:]).all()), len(window))


@pytest.fixture
def dataset(dataset_of):
    return dataset_of({"a": LETTERS[:50], "b": LETTERS[50:]}, {"c": LETTERS, "d": LETTERS[::-1], "e": "short"})


@pytest.fixture
def frequent(dataset_of):
    """Twenty documents of the same letters, and one more with a "~" that is too rare to be drawn uniformly."""
    return dataset_of({f"{i}": LETTERS[:50] for i in range(20)} | {"rare": LETTERS[:50] + "~" * 19}, {"c": LETTERS})


def test_a_batch_depends_on_seed_and_step_alone(dataset, experiment_of):
    experiment = experiment_of(repeat_share=0.5)
    first = batch(dataset, experiment, 11)
    batch(dataset, experiment, 12)
    np.testing.assert_array_equal(batch(dataset, experiment_of(repeat_share=0.5), 11), first)
    assert (batch(dataset, experiment, 12) != first).any()
    assert (batch(dataset, experiment_of(repeat_share=0.5, seed=4), 11) != first).any()


def test_a_window_is_bos_and_a_contiguous_piece_of_the_training_stream(dataset, experiment_of):
    windows = np.concatenate([batch(dataset, experiment_of(), step) for step in range(20)])
    assert windows.shape == (140, 24) and windows.dtype == np.int32
    assert (windows[:, 0] == 0).all()
    stream = [0, *LETTERS[:50].encode(), 0, *LETTERS[50:].encode()]
    stream = [byte + 1 if byte else 0 for byte in stream]
    pieces = {tuple(stream[i : i + 23]) for i in range(len(stream) - 22)}
    drawn = {tuple(window[1:].tolist()) for window in windows}
    assert drawn <= pieces
    assert len(drawn) > 40  # 140 draws out of 69 places
    assert any(0 in window for window in drawn)  # windows may cross into the next document, and its BOS stays


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("kind", ["text", "random", "mixed"])
@pytest.mark.parametrize("rows", [slice(0, 3), slice(3, 7), slice(5, 6), slice(1, 7, 2), slice(7, 7)])
def test_the_rows_of_a_host_are_the_rows_of_the_global_batch(frequent, experiment_of, kind, rows, shuffled):
    experiment = experiment_of(repeat_share=0.6, repeat_kind=kind, shuffled=shuffled)
    for step in range(5):
        whole = batch(frequent, experiment, step)
        np.testing.assert_array_equal(batch(frequent, experiment, step, rows=rows), whole[rows])


@pytest.mark.parametrize("kind", ["random", "mixed"])
def test_drawn_segments_repeat_with_an_allowed_period_too(frequent, experiment_of, kind):
    windows = batch(frequent, experiment_of(repeat_share=1.0, repeat_kind=kind, batch_size=53), 3)[:, 1:]
    assert all(any((w[:-p] == w[p:]).all() for p in (2, 4, 6, 7)) for w in windows)


def test_the_stated_share_of_the_windows_repeats_with_an_allowed_period(dataset, experiment_of):
    experiment = experiment_of(repeat_share=0.6)  # round(0.6 * 7) = 4 rows
    periods = []
    for step in range(100):
        windows = batch(dataset, experiment, step)
        periods += [shortest_period(window[1:]) for window in windows[:4]]
        assert all(shortest_period(window[1:]) == 23 for window in windows[4:])
    assert set(periods) == {2, 4, 6, 7}  # 2..7, both ends, without the probe's 3 and 5
    counts = [periods.count(period) for period in (2, 4, 6, 7)]
    assert 70 < min(counts) <= max(counts) < 130  # 100 of each expected, standard deviation 8.7


def test_shuffled_windows_have_the_tokens_of_the_text_in_another_order_and_repeat_as_before(frequent, experiment_of):
    kept = {"repeat_share": 0.6, "repeat_kind": "mixed"}  # windows 0 and 3 repeat text, 1 and 2 drawn ids
    ordered, shuffled = (batch(frequent, experiment_of(**kept, shuffled=x), 11) for x in (False, True))
    np.testing.assert_array_equal(shuffled[1:3], ordered[1:3])
    np.testing.assert_array_equal(shuffled[:, 0], ordered[:, 0])
    for one, other in zip(ordered[4:, 1:], shuffled[4:, 1:], strict=True):
        assert (one != other).any()
        assert sorted(one.tolist()) == sorted(other.tolist())
    for one, other in zip(ordered[[0, 3], 1:], shuffled[[0, 3], 1:], strict=True):
        period = shortest_period(one)
        assert shortest_period(other) == period in (2, 4, 6, 7)
        assert sorted(one[:period].tolist()) == sorted(other[:period].tolist())


def test_every_place_of_a_shuffled_window_is_as_likely_for_every_token(dataset, experiment_of):
    experiment = experiment_of(shuffled=True, batch_size=3000)
    ordered, shuffled = (batch(dataset, e, 5)[:, 1:] for e in (experiment_of(batch_size=3000), experiment))
    single = (ordered[:, :1] != ordered[:, 1:]).all(axis=1)  # the first token comes up once
    places = np.bincount((shuffled == ordered[:, :1])[single].argmax(axis=1), minlength=23)
    assert single.sum() > 2900 and abs(places / single.sum() - 1 / 23).max() < 0.02  # standard deviation 0.004


def test_periods_of_the_probe_are_no_training_periods(experiment_of):
    experiment = experiment_of(repeat_periods=(3, 8), probe_periods=(3, 5, 31))
    assert training_periods(experiment).tolist() == [4, 6, 7, 8]


def _share_of_rare(dataset, experiment, rows):
    """How often the 51 ids of `frequent`, "~" among them, come up in these rows; the share of "~" and all ids seen."""
    ids = np.concatenate([batch(dataset, experiment, step)[rows, 1:].ravel() for step in range(40)])
    return (ids == 1 + ord("~")).mean(), set(ids.tolist())


def test_random_segments_use_every_frequent_id_and_no_other(frequent, experiment_of):
    experiment = experiment_of(repeat_share=1.0, repeat_kind="random", batch_size=101)
    rare, seen = _share_of_rare(frequent, experiment, slice(None))
    assert rare == 0
    assert seen == {1 + byte for byte in LETTERS[:50].encode()}


def test_mixed_segments_are_text_in_one_third_frequencies_in_one_and_uniform_in_one(frequent, experiment_of):
    experiment = experiment_of(repeat_share=1.0, repeat_kind="mixed", batch_size=102)
    text = batch(frequent, experiment_of(repeat_share=1.0, batch_size=102), 7)
    np.testing.assert_array_equal(batch(frequent, experiment, 7)[::3], text[::3])
    rare, seen = _share_of_rare(frequent, experiment, slice(1, None, 3))
    assert 0.012 < rare < 0.024  # 19 of 1,090 tokens are "~": 0.0174; about 9,000 independent draws
    assert 0 in seen  # BOS comes up as often as it stands in the stream
    assert _share_of_rare(frequent, experiment, slice(2, None, 3))[1] == {1 + b for b in LETTERS[:50].encode()}


def test_random_segments_from_a_text_without_frequent_ids_are_refused(dataset, experiment_of):
    with pytest.raises(UserError, match=r'data.repeat_kind = "random".*no token occurs 20 times'):
        batch(dataset, experiment_of(repeat_share=1.0, repeat_kind="random"), 0)


def test_heldout_windows_lie_inside_one_document_half_at_starts(dataset):
    windows = heldout_windows(dataset, 19, 4, seed=5)
    assert windows.shape == (4, 20) and windows.dtype == np.int32
    assert (windows[:, 0] == 0).all()
    ids = [byte + 1 for byte in LETTERS.encode()]
    starts = {tuple(ids[:19]), tuple(ids[::-1][:19])}
    middles = {tuple(text[i : i + 19]) for text in (ids, ids[::-1]) for i in range(1, 89 - 19 + 1)}
    drawn = [tuple(window[1:].tolist()) for window in windows]
    assert sum(window in starts for window in drawn) == 2
    assert sum(window in middles for window in drawn) == 2
    np.testing.assert_array_equal(heldout_windows(dataset, 19, 4, seed=5), windows)
    assert (heldout_windows(dataset, 19, 4, seed=6) != windows).any()


def test_all_windows_can_be_drawn_and_none_twice(dataset):
    n_windows = 2 * (89 - 19 + 1)  # two documents are long enough
    windows = heldout_windows(dataset, 19, n_windows, seed=5)
    assert len({tuple(window.tolist()) for window in windows}) == n_windows
    with pytest.raises(
        UserError, match=r"143 held-out windows of 19 tokens .* 3 held-out documents.* 89 tokens, hold 142"
    ):
        heldout_windows(dataset, 19, n_windows + 1, seed=5)


def test_a_document_as_long_as_the_window_has_a_start_and_no_middle(dataset_of):
    dataset = dataset_of({"a": LETTERS}, {"b": LETTERS[:19], "c": LETTERS[40:60]})
    windows = heldout_windows(dataset, 19, 3, seed=0)
    ids = [byte + 1 for byte in LETTERS.encode()]
    assert {tuple(window[1:].tolist()) for window in windows} == {tuple(ids[i : i + 19]) for i in (0, 40, 41)}


def test_no_heldout_document_of_that_length_is_an_error(dataset):
    with pytest.raises(UserError, match="the longest of 89 tokens, hold 0"):
        heldout_windows(dataset, 97, 2, seed=0)
