"""Probes on annotated text: targets by hand, and heads that are explained by a fixed offset."""

from pathlib import Path

import numpy as np
import pytest
from conllu_page import PAGE, write

from andrea_jax.data import annotated as conllu
from andrea_jax.data.annotated_windows import AnnotatedWindows, windows
from andrea_jax.data.tokenizer import byte_tokenizer
from andrea_jax.heads import Measured, Sums, Targets, annotated, planted


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> AnnotatedWindows:
    """Ann met Bob. Ann didn't smile. / The dog met Zoë.   In bytes: Ann 1–3, met 5–7, Bob 9–11, Ann 14–16, did 18–20,
    n't 21–23, smile 25–29; The 1–3, dog 5–7, met 9–11, Zoë 13–16."""
    return windows(conllu.read(write(tmp_path_factory.mktemp("page"), PAGE)), byte_tokenizer(), 37, 9)


def as_dict(found: Targets) -> dict[tuple[int, int], set[int]]:
    asked = sorted(set(zip(found.sequence.tolist(), found.query.tolist(), strict=True)))
    return {at: found.keys(*at) for at in asked}


def test_names_are_asked_before_and_at_a_name_for_the_latest_and_for_all_before_it(placed: AnnotatedWindows):
    found = annotated.probes(placed)
    ann, bob = {1, 2, 3}, {9, 10, 11}
    assert as_dict(found["recent_name_before"]) == {(0, 8): ann, (0, 13): bob}
    assert as_dict(found["earlier_name_before"]) == {(0, 8): ann, (0, 13): ann | bob}
    assert as_dict(found["recent_name_inside"]) == {(0, 9): ann, (0, 14): bob}
    assert as_dict(found["earlier_name_inside"]) == {(0, 9): ann, (0, 14): ann | bob}
    assert as_dict(found["same_name"]) == {(0, q): ann for q in (14, 15, 16)}


def test_the_control_of_names_are_capitalised_words_that_are_none(placed: AnnotatedWindows):
    found = annotated.probes(placed)
    assert as_dict(found["control of recent_name_before"]) == {(1, 12): {1, 2, 3}}
    assert as_dict(found["control of earlier_name_inside"]) == {(1, 13): {1, 2, 3}}
    assert as_dict(found["control of same_name"]) == {}


def test_a_tag_is_sought_from_every_query_but_not_in_itself(placed: AnnotatedWindows):
    found = as_dict(annotated.probes(placed)["tag VERB"])
    assert found[0, 7] == {5, 6} and found[0, 12] == {5, 6, 7} and found[0, 30] == {5, 6, 7, *range(25, 30)}
    assert min(found) == (0, 6) and max(found) == (1, 17)  # nothing in the padding


def test_of_head_and_dependent_only_the_earlier_is_a_target_from_last_token_to_last_token(placed: AnnotatedWindows):
    found = annotated.probes(placed)
    assert as_dict(found["to_head"]) == {(0, 11): {7}, (1, 16): {11}}
    assert as_dict(found["to_dependent"]) == {(0, 7): {3}, (0, 29): {16, 20, 23}, (1, 7): {3}, (1, 11): {7}}
    assert as_dict(found["to_dependent nsubj"]) == {(0, 7): {3}, (0, 29): {16}, (1, 11): {7}}
    assert not any("punct" in name for name in found)


def test_a_rule_hits_where_a_target_is_that_far_back_and_the_far_ones_count_evenly():
    asked = Targets(*np.array([[0, 0, 1], [5, 40, 7], [3, 2, 6]], np.int32))
    hits, far = annotated.rule_hits(asked, 2)
    assert hits[0, 2] == 1 and hits[1, 1] == 1 and hits.sum() == 2
    np.testing.assert_allclose(far, [1 / 7, 0])  # positions 1 to 7 are farther than 32 from 40


def test_a_head_beats_the_offset_rule_only_where_the_distances_differ():
    """One target a query, four sequences of ten queries: distances 2 and 5 in turn, or always 2; head 0.1 finds all."""
    sequence, query = np.repeat(np.arange(4), 10), np.tile(np.arange(10, 20), 4)
    mass = np.stack([np.full(4, 1.0), np.full(4, 10.0)], axis=-1)[:, None].astype(np.float32)
    offsets = {f"offset {d}": Sums(mass / 40, mass, np.full(4, 0.6), np.full(4, 10)) for d in range(33)}
    for distance, score, beats in ((np.where(query % 2, 2, 5), 0.5, True), (np.full(40, 2), 1.0, False)):
        asked = Targets(*np.stack([sequence, query, query - distance]).astype(np.int32))
        sums = Sums(mass, mass, np.full(4, 0.6), np.full(4, 10))
        table, best = annotated.summary("to_head", asked, Measured({"to_head": sums} | offsets, None, mass[:0, 0]))
        (row,) = best.to_dict("records")
        assert (row["layer"], row["head"], row["score"], row["n"]) == (0, 1, 1.0, 20)
        assert (row["offset_score"], row["beats_offset"]) == (score, beats)
        assert table["beats_offset"].tolist() == [False, beats]
        assert row["own_offsets"] == pytest.approx(1 / 40)  # a fortieth of head 0.1's mass at every distance


def test_a_positional_head_finds_the_object_and_does_not_beat_the_best_offset(tmp_path: Path):
    """In "Ann met Bob." and "The dog met Zoe." the object ends 4 after its verb; planted head 1.1 looks 4 back."""
    page = write(tmp_path, PAGE.replace("Zoë", "Zoe") + "\n" + PAGE.replace("Zoë", "Zoe"))
    found = windows(conllu.read(page), byte_tokenizer(), 37, 9)
    config, params = planted(vocab_size=257, seq_len=37, offset=4)
    result = annotated.profile(config, params, found)
    row = result.best.set_index("probe").loc["to_head obj"]
    assert (row["layer"], row["head"], row["offset"], row["n"]) == (1, 1, 4, 2)
    assert row["score"] == pytest.approx(1, abs=1e-4) and row["offset_score"] == 1 and not row["beats_offset"]
    assert row["own_offsets"] == pytest.approx(1, abs=1e-4)  # its profile says it all
    names = result.best.set_index("probe")["control_baseline"]
    assert np.isnan(names["to_head obj"])
