"""Heads against bracket rules, on pairs counted by hand."""

import numpy as np
import pytest

from andrea_jax.data import BracketWindows
from andrea_jax.heads import brackets
from andrea_jax.heads.scores import Measured, Sums


def windows() -> BracketWindows:
    """Twice `BOS f ( a [ 1 ] , ( b ) , c )`: ( at 2 and 8, [ at 4; closers ] at 6, ) at 10 and 13."""
    one = {
        "closer": [6, 10, 13],
        "opener": [4, 8, 2],
        "depth": [2, 2, 1],
        "nearest": [4, 8, 8],
        "nearest_same_type": [4, 8, 8],
        "openers": [[2, 4, -1], [2, 4, 8], [2, 4, 8]],
        "same_type": [[4, -1, -1], [2, 8, -1], [2, 8, -1]],
        "unclosed": [[2, 4, -1], [2, 8, -1], [2, -1, -1]],
    }
    both = {name: np.concatenate([np.array(x, np.int32)] * 2) for name, x in one.items()}
    tokens = np.tile(np.arange(14, dtype=np.int32), (2, 1))
    sequence = np.repeat(np.arange(2, dtype=np.int32), 3)
    innermost = np.tile(np.array([-1] * 3 + [2, 2, 4, 2, 2, 2, 8, 2, 2, 2, -1], np.int32), (2, 1))
    return BracketWindows(tokens, innermost, sequence, distance=both["closer"] - both["opener"], reason="", **both)


def measured() -> Measured:
    """Head 0.1 is the best; before the closer it puts 0.2, 0.4 on the openers of ], 0.1, 0.1, 0.6 and 0.3, 0, 0.1."""
    mass = np.zeros((2, 1, 2), np.float32)
    mass[:, 0, 1] = 1.3
    sums = Sums(mass, mass, np.ones(2), np.array([3, 3]))
    before = [0.2, 0.4, 0.1, 0.1, 0.6, 0.3, 0.0, 0.1]
    listed = np.zeros((32, 1, 2), np.float32)
    listed[:16, 0, 1] = before * 2
    return Measured(dict.fromkeys(brackets.ASKED, sums), None, listed)


def score(table, name: str, pairs: str, probe: str = "bracket") -> float:
    (row,) = table[(table["name"] == name) & (table["pairs"] == pairs) & (table["probe"] == probe)].itertuples()
    return row.score


def test_the_openers_of_a_closer_are_listed_before_it_and_at_it():
    found = brackets.openers(windows())
    assert [found.keys(0, q) for q in (5, 9, 12, 6, 10, 13)] == [{2, 4}, {2, 4, 8}, {2, 4, 8}] * 2
    assert brackets.matches(windows(), "bracket").keys(1, 12) == {2}
    assert brackets.matches(windows(), "bracket_at_closer").keys(1, 13) == {2}


def test_every_position_inside_brackets_has_its_innermost_opener():
    found = brackets.open_bracket(windows())
    for sequence in (0, 1):
        inside = {q: found.keys(sequence, q) for q in range(14) if found.keys(sequence, q)}
        assert inside == {q: {2} for q in (3, 4, 6, 7, 8, 10, 11, 12)} | {5: {4}, 9: {8}}
    assert len(found.key) == 20


def test_a_head_is_scored_raw_and_among_openers_pair_by_pair():
    table = brackets.table(windows(), measured())
    assert score(table, "head 0.1", "all") == pytest.approx((0.4 + 0.6 + 0.3) / 3)
    assert score(table, "head 0.1", "hard") == score(table, "head 0.1", "hardest") == pytest.approx(0.3)
    assert score(table, "head 0.1, of openers", "all") == pytest.approx((0.4 / 0.6 + 0.6 / 0.8 + 0.3 / 0.4) / 3)
    assert score(table, "head 0.1, of openers", "hardest") == pytest.approx(0.75)
    assert score(table, "head 0.1, of openers", "all", "bracket_at_closer") == 0  # no mass on any opener: no nan


def test_rules_are_scored_on_the_same_pairs():
    table = brackets.table(windows(), measured())
    all_pairs = {"nearest opener": 2 / 3, "nearest of its type": 2 / 3, "uniform of its type": (1 + 1 / 2 + 1 / 2) / 3,
                 "uniform unclosed": (1 / 2 + 1 / 2 + 1) / 3, "previous token": 2 / 3,
                 "causal uniform": (1 / 6 + 1 / 10 + 1 / 13) / 3}  # fmt: skip
    for rule, expected in all_pairs.items():
        assert score(table, rule, "all") == pytest.approx(expected), rule
    assert score(table, "nearest opener", "hardest") == score(table, "nearest of its type", "hardest") == 0
    assert score(table, "uniform of its type", "hardest") == 0.5
    assert score(table, "previous token", "all", "bracket_at_closer") == 0


def test_windows_are_added_until_the_half_that_reports_has_the_wanted_hardest_pairs(dataset_named, monkeypatch):
    monkeypatch.setattr(brackets, "WANTED_HARDEST", 5)
    stream = brackets.stream(dataset_named("textwrap.py"), 97, 4, 0)
    windows = stream.windows
    reporting = windows.sequence[windows.hardest & (windows.sequence % 2 == 1)]
    assert len(windows.tokens) > 4
    assert len(reporting) >= 5 > (reporting < len(windows.tokens) - 1).sum()  # no window too many


def test_only_the_half_that_did_not_choose_the_head_is_counted():
    table = brackets.table(windows(), measured())
    counts = table[table["probe"] == "bracket"].groupby("pairs", sort=False)["n"].unique().str[0].to_dict()
    assert counts == {"all": 3, "hard": 1, "hardest": 1, "depth 1": 1, "depth 2": 2, "depth 3 and more": 0,
                      "distance below 8": 2, "distance 8 to 31": 1, "distance 32 and more": 0}  # fmt: skip
    assert table.loc[table["n"] == 0, "score"].isna().all()
