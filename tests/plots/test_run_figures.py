"""Figures of several runs say what they show and can be read."""

import numpy as np
import pandas as pd
import plot_data
import pytest
from test_figures import assert_readable

from andrea_jax.plots import run_figures


def matches() -> pd.DataFrame:
    rows = [("another seed", 0.1, 0.2, 0.3, 0.004), ("another seed", 0.25, 0.2, 0.3, 0.5),
            ("n_head 4 against 2 · w_o identity · positions rotary", 0.12, 0.2, 0.3, 0.002)]  # fmt: skip
    return pd.DataFrame(rows, columns=["what", "distance", "low", "high", "p"])


def test_profiles_are_drawn_a_panel_a_run_with_all_its_heads():
    made = [plot_data.profile(2, n_head) for n_head in (2, 4, 3)]
    names = ["n_head 2", "n_head 4", "n_head 3"]
    tables = {name: profile.table for name, profile in zip(names, made, strict=True)}
    figure = run_figures.profiles(tables, {name: profile.best for name, profile in zip(names, made, strict=True)})
    assert_readable(figure)
    assert [ax.get_title(loc="left") for ax in figure.axes[:3]] == names
    assert [len(ax.get_yticks()) for ax in figure.axes[:3]] == [5, 9, 7]  # the baselines, then every head


def test_the_title_of_profiles_names_the_behaviour_that_differs_most_and_where():
    rows = {"n_head 2": (0.9, 0.1), "n_head 4": (0.85, 0.7), "n_head 3": (0.95, 0.4)}
    best = {name: pd.DataFrame({"probe": ["previous_token", "induction", "bracket"], "score": [*scores, np.nan],
                                "n": [9, 9, 0]}) for name, scores in rows.items()}  # fmt: skip
    assert run_figures.widest(best) == (
        "The best heads differ most in induction: from 0.10 (n_head 2) to 0.70 (n_head 4)"
    )
    nothing = {name: table.assign(n=0) for name, table in best.items()}
    assert run_figures.widest(nothing).startswith("No behaviour was found")


def test_a_dot_is_filled_where_heads_match_closer_than_chance():
    figure = run_figures.matched_heads(matches())
    assert_readable(figure)
    filled, hollow = ([line.get_xdata().tolist() for line in figure.axes[0].lines[i::2]] for i in (0, 1))
    assert filled == [[0.1], [0.12]] and hollow == [[0.25], []]
    title = figure.get_suptitle().replace("\n", " ")
    assert "another seed (1 of 2)" in title and "positions rotary (1 of 1)" in title


def test_specialization_is_drawn_a_line_a_run_and_the_title_names_the_ends():
    rows = [
        (f"{name}{seed}", name, step, 61 * step, top * step / 64)
        for name, top in (("n_head 2", 0.3), ("n_head 4", 0.6))
        for seed in (0, 1)
        for step in (0, 8, 64)
    ]
    table = pd.DataFrame(rows, columns=["run", "setting", "step", "tokens", "specialization"])
    figure = run_figures.specialization(table)
    assert_readable(figure)
    assert len(figure.axes[0].lines) == 4
    title = figure.get_suptitle().replace("\n", " ")
    assert title == "Specialization ends at 0.60 (n_head 4) and 0.30 (n_head 2); 0 is even attention"


@pytest.mark.parametrize(
    ("low", "verdict", "words"),
    [
        (-0.3, "beyond noise", "largest change -0.200 [-0.300, -0.100], b against a (3 seeds, beyond noise)"),
        (np.nan, "too few seeds", "largest change -0.200, b against a (too few seeds to say)"),
    ],
)
def test_the_largest_change_is_told_with_its_verdict(low, verdict, words):
    columns = ["contrast", "measure", "difference", "low", "high", "n", "verdict"]
    rows = [
        ("c against a", "loss", 0.1, 0.0, 0.2, 3, "within noise"),
        ("b against a", "loss", -0.2, low, -0.1, 3, verdict),
    ]
    table = pd.DataFrame(rows, columns=columns)
    assert run_figures.changed(table, "loss", "Loss") == f"Loss: {words}"
    assert run_figures.changed(table, "speed", "Speed") == "Speed: nothing to compare"
