"""From summed losses to the table of damage, and the tasks that they are summed over."""

from types import SimpleNamespace

import numpy as np
import pytest
from edited_andrea import CONFIG, PARAMS, TASK, TOKENS

from andrea_jax import data
from andrea_jax.data import BracketWindows
from andrea_jax.data.annotated_windows import AnnotatedWindows, Words
from andrea_jax.interventions import Task, ablate, brackets, damage, names, repeats, text


@pytest.fixture
def crafted(monkeypatch):
    """ablate() of heads 0.1 and {0.0, 1.2} on made-up sums of three sequences of 8 positions."""
    late, early = np.zeros((3, 8), bool), np.zeros((3, 8), bool)
    late[:, 6:], early[:, 1:3] = True, True
    asked = {"loss": np.ones((3, 8), bool), "late": late, "early": early, "bracket": np.zeros((3, 8), bool)}
    asked["induction"] = np.array([[1] * 4 + [0] * 4, [1] * 2 + [0] * 6, [0] * 8], bool)
    sums = np.zeros((3, 3, 5, 2), np.float32)  # intact and two edits, sequence, behaviour, (nats, right)
    sums[:, :, 0, 0] = [[8, 16, 24], [16, 24, 32], [8, 24, 40]]
    sums[:, :, 1, 0], sums[:, :, 2, 0] = [[2], [4], [2]], [[4], [4], [6]]
    sums[:, :2, 4, 0], sums[:, :2, 4, 1] = [[4, 2], [12, 6], [4, 2]], [[4, 1], [1, 1], [4, 1]]
    monkeypatch.setattr(damage, "answers", lambda *a, **k: sums)
    task = Task(np.zeros((3, 9), np.int32), asked)
    return ablate(CONFIG, {}, [task], kinds=("mean",), sets=[[(0, 1)], [(0, 0), (1, 2)]])


def test_damage_is_a_difference_of_means_in_which_more_is_worse(crafted):
    table = crafted.table.set_index(["measure", "heads"])
    assert list(crafted.table.columns[:3]) == ["kind", "heads", "layer"]
    loss = table.loc["loss", "0.1"]
    assert (loss["layer"], loss["head"], loss["n"], loss["kind"]) == (0, 1, 24, "mean")
    assert (loss["intact"], loss["ablated"], loss["damage"]) == (2, 3, 1)
    assert loss["low"] == loss["high"] == 1  # every sequence lost 8 nats on 8 positions: pairing leaves no spread
    both = table.loc["loss", "0.0 1.2"]
    assert both["damage"] == pytest.approx(1) and both["low"] < 1 < both["high"]  # 0, 8 and 16 nats
    assert both[["layer", "head"]].isna().all()
    wrong = table.loc["induction_accuracy", "0.1"]  # 5 of 6 right, then 2
    assert (wrong["damage"], wrong["n"]) == (pytest.approx(3 / 6), 6)
    assert table.loc[
        "induction",
        "0.1",
    ]["damage"] == pytest.approx((18 - 6) / 6)


def test_the_in_context_score_is_late_minus_early_and_its_damage_the_rise(crafted):
    row = crafted.table.set_index(["measure", "heads"]).loc["in_context"]
    assert row["intact"].tolist() == [1 - 2] * 2  # 2 nats on two late positions, 4 on two early ones
    assert row["ablated"].tolist() == [2 - 2, 1 - 3] and row["damage"].tolist() == [1, -1]
    assert row["n"].tolist() == [12, 12]
    assert not set(crafted.table["measure"]) & {"late", "early", "loss_accuracy"}


def test_a_name_is_asked_at_each_of_its_tokens_and_again_where_the_window_has_had_it():
    places = [[0, 1, 2], [0, 4, 4], [0, 5, 6], [1, 3, 4]]  # window, first and last token
    surface = np.array(["Ann Lee", "Bob", "Ann Lee", "Ann Lee"])  # the last is the first of its window
    nothing = Words(*[np.zeros(0)] * 8)
    task = names(AnnotatedWindows(np.zeros((2, 8), int), np.full(2, 8), nothing, np.array(places), surface, "NE"))
    predicted = {name: [(np.flatnonzero(row) + 1).tolist() for row in asked] for name, asked in task.asked.items()}
    assert predicted == {"name": [[1, 2, 4, 5, 6], [3, 4]], "name_again": [[5, 6], []]}


def test_what_is_asked_nowhere_is_null_and_says_n_0(crafted):
    rows = crafted.table[crafted.table["measure"].str.startswith("bracket")]
    assert len(rows) == 4 and (rows["n"] == 0).all()
    assert rows[["damage", "low", "high", "intact", "ablated"]].isna().all(axis=None)


def test_the_speed_of_a_sweep_and_its_progress_are_told():
    told: list[tuple[int, int]] = []
    found = ablate(CONFIG, PARAMS, [TASK], backend="reference", progress=lambda *at: told.append(at))
    assert found.heads_per_s > 0 and found.tokens == 5 * 13
    assert told[-1] == (2 * 13 * 5,) * 2 and told == sorted(told)


def test_induction_is_asked_within_the_second_copy_where_the_first_foretells_the_token():
    dataset = SimpleNamespace(frequent_ids=np.arange(1, 60))
    task = repeats(dataset, (5, 7), 30, 8, 0)
    assert task.tokens.shape == (8, 29)  # four copies of the longer block
    for row, asked in zip(task.tokens, task.asked["induction"], strict=True):
        period = next(p for p in (5, 7) if (row[1 : 1 + p] == row[1 + p : 1 + 2 * p]).all())
        at = np.flatnonzero(asked)
        assert (at + 1).tolist() == list(range(period + 2, 2 * period + 1))  # tokens of copy two, but for its first
        assert (row[at + 1] == row[at + 1 - period]).all() and (row[at] == row[at - period]).all()


def test_brackets_are_asked_at_the_token_before_the_closer(monkeypatch):
    tokens = np.array([[0, 5, 6, 7, 8, 9]])
    column = np.array([0, 0])
    windows = BracketWindows(
        tokens, innermost=column, sequence=column, closer=np.array([3, 5]), opener=np.array([1, 2]), depth=column,
        distance=column, nearest=np.array([1, 4]), nearest_same_type=np.array([1, 4]), openers=column, same_type=column,
        unclosed=column, reason="",
    )  # fmt: skip
    monkeypatch.setattr(data, "bracket_windows", lambda dataset, seq_len, n, seed: windows)
    task = brackets(SimpleNamespace(), 5, 1, 0)
    assert {name: np.flatnonzero(asked[0]).tolist() for name, asked in task.asked.items()} == {
        "bracket": [2, 4], "bracket_hard": [4], "bracket_hardest": [4],
    }  # fmt: skip


def test_text_is_asked_everywhere_and_in_the_declared_bands(monkeypatch):
    monkeypatch.setattr(data, "heldout_windows", lambda dataset, seq_len, n, seed: np.zeros((n, seq_len + 1), int))
    task = text(SimpleNamespace(), 64, 3, 0)
    assert task.asked["loss"].all() and task.asked["loss"].shape == (3, 64)
    bands = {name: np.flatnonzero(task.asked[name][1])[[0, -1]].tolist() for name in ("late", "early")}
    assert bands == {"late": [48, 63], "early": [8, 15]}


def test_positions_of_any_kind_can_be_asked():
    names = np.zeros((5, 13), bool)
    names[[0, 3], [4, 7]] = True  # say, the tokens before two named entities
    found = ablate(CONFIG, PARAMS, [Task(TOKENS, {"loss": TASK.asked["loss"], "entity": names})], backend="reference")
    assert set(found.table["measure"]) == {"loss", "entity", "entity_accuracy"}
    assert (found.table.loc[found.table["measure"] == "entity", "n"] == 2).all()
