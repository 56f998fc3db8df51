"""What the figures and tables of circuits and of similar heads say of data made by hand."""

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from andrea_jax.plots import circuit_figures, circuit_findings, circuit_tables, similarity_figures

COPYING = pd.DataFrame({"layer": [0, 0, 1], "head": [0, 1, 0], "copying": [0.1, -0.9, 0.8], "z": [1.0, -9.0, 8.0],
                        "null_sd": 0.1, "threshold": 2.4, "beyond": [False, True, True]})  # fmt: skip
COMPOSITION = pd.DataFrame({"kind": ["Q", "Q", "K", "K", "V", "V"], "layer_1": 0, "head_1": [0, 1] * 3, "layer_2": 1,
                            "head_2": 0, "composition": [0.1, 0.2, 0.31, 0.1, 0.1, 0.1], "z": [0, 2, 7, 1, -4, 0.0],
                            "beyond": [False, False, True, False, False, False], "initial": np.nan,
                            "initial_z": np.nan, "null_mean": 0.1, "null_sd": 0.03, "threshold": 2.4})  # fmt: skip
PARTS = pd.DataFrame({"component": ["token", "head 0.0", "head 0.1", "MLP 0"],
                      "contribution": [0.25, -3.0, 2.0, -0.5]})  # fmt: skip
LENS = pd.DataFrame({"layer": [0, 1, 2], "log_prob": [-4, -1, -0.5], "rank": [9, 1, 1], "top": [3, 5, 5],
                     "top_log_prob": [-2, -1, -0.5], "entropy": [3, 2, 1.0],
                     "top_piece": ["a", "[b]", "[b]"]})  # fmt: skip
PAIRS = pd.DataFrame(
    [(q, k, 0.5, x) for (q, k), x in zip(np.ndindex(3, 3), [0, 1, 0, 0, 0, 6, -2, 0, 1.0], strict=True)],
    columns=["query_component", "key_component", "score", "excess"],
).replace({"query_component": dict(enumerate("tab")), "key_component": dict(enumerate("tab"))})
HEADS = pd.DataFrame({"layer": [0, 0, 1], "head": [0, 1, 0], "like_layer": [0, 0, 0], "like_head": [1, 0, 1],
                      "js": [0.1, 0.1, 0.8], "low": [0.05, 0.05, 0.7], "high": [0.2, 0.2, 0.9], "even": [0.5, 0.5, 0.1],
                      "same_layer": [1, 1, 0], "same_head": [0, 0, 1], "cka": [0.3, 0.4, 0.4],
                      "r2": [0.6, 0.7, np.nan], "spread": 2.0, "group": pd.array([1, 1, None], "Int64"),
                      "order": [1, 0, 2], "x": [0.3, 0.3, -0.6], "y": [0.0, 0.1, -0.1]})  # fmt: skip
HEAD_PAIRS = pd.DataFrame({"layer_1": [0, 0, 0], "head_1": [0, 0, 1], "layer_2": [0, 1, 1], "head_2": [1, 0, 0],
                           "js": [0.1, 0.8, 0.8], "cka": [0.1, 0.3, 0.4]})  # fmt: skip


def printed(*tables) -> str:
    console = Console(width=120)
    with console.capture() as shown:
        console.print(*tables)
    return shown.get()


def test_the_title_of_circuits_names_the_strongest_pair_and_counts_heads_that_copy():
    text = circuit_findings.circuits(COPYING, COMPOSITION)
    assert text.startswith("Strongest pair: 0.0 → 1.0, by the later head's key (K-composition 0.31, z = 7; 17% of 6 ")
    assert text.endswith("1 of 3 heads copy beyond the null")
    nothing = COMPOSITION.assign(beyond=False)
    assert circuit_findings.circuits(COPYING, nothing).startswith("No head reads another beyond what random weights do")
    assert "no head can read another" in circuit_findings.circuits(COPYING, COMPOSITION.head(0))


def test_what_a_figure_leaves_out_of_an_attribution_is_summed_in_one_row():
    table = circuit_findings.largest(PARTS, 2)
    assert table["component"].tolist() == ["head 0.0", "head 0.1", "2 others"]
    assert table["contribution"].tolist() == [-3, 2, -0.25]
    assert len(circuit_findings.largest(PARTS, 4)) == 4


def test_the_title_of_an_attribution_says_from_where_on_the_token_is_the_likeliest():
    asked = {"text": "x" * 40, "token": "y", "against": None, "logit": -1.25}
    text = circuit_findings.attribution(PARTS, LENS, **asked)
    assert text == (
        f"After “…{'x' * 24}”, the logit of “y” is -1.25: head 0.0 -3.00, head 0.1 +2.00, MLP 0 -0.50; "
        "likeliest from before layer 1 on"
    )
    late = circuit_findings.attribution(PARTS, LENS.assign(rank=[1, 2, 1]), **asked)
    assert late.endswith("likeliest at the end")
    assert circuit_findings.attribution(PARTS, LENS.assign(rank=7), **asked).endswith("rank 7 at the end")


def test_the_pairs_of_a_score_keep_their_order_and_their_sum_whatever_is_left_out():
    table = circuit_findings.excess_table(PAIRS, 2)
    assert list(table.index) == ["a", "b", "others", "all"] and list(table.columns) == ["t", "b", "others", "all"]
    assert table.loc["a"].tolist() == [0, 6, 0, 6] and table.loc["others"].tolist() == [0, 0, 1, 1]
    assert table.loc["all"].tolist() == [-2, 7, 1, 6]
    assert list(circuit_findings.excess_table(PAIRS, 5).columns) == ["t", "a", "b", "all"]
    assert circuit_findings.why(PAIRS, "1.0", "“x” (5)", "“y” (3)", 0.75) == (
        "Head 1.0, at “x” (5), puts 0.75 of its attention on “y” (3): what b wrote at the key does +7.0 of +6.0, most "
        "of it where it meets what a wrote at the query (+6.0)"
    )


def test_similar_heads_are_named_by_group_and_without_one_the_nearest_pair_is():
    assert similarity_figures.finding(HEADS) == "Heads that attend alike: {0.0, 0.1}; 1 of 3 are like no other"
    alone = HEADS.assign(group=pd.array([None] * 3, "Int64"))
    assert "the nearest, 0.0 and 0.1, are 0.10 [0.05, 0.20] apart" in similarity_figures.finding(alone)


def test_the_tables_for_the_terminal_show_pieces_as_they_are_and_what_is_undefined_as_a_dash():
    text = printed(circuit_tables.lens_table(LENS, "[b]"), circuit_tables.similarity_table(HEADS))
    assert "Logit lens of “[b]”" in text and "“[b]”" in text
    assert [line.split()[-1] for line in text.splitlines() if line.startswith(("0.0 ", "1.0 "))] == ["1", "–"]
    shown = printed(circuit_tables.composition_table(COMPOSITION), circuit_tables.copying_table(COPYING))
    assert "0.0 → 1.0" in shown and "step 0" not in shown and "-0.90" in shown
    assert "step 0" in printed(circuit_tables.composition_table(COMPOSITION.assign(initial=0.1, initial_z=0.5)))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: circuit_figures.circuits(COPYING, COMPOSITION),
        lambda: circuit_figures.circuits(COPYING, COMPOSITION.head(0)),
        lambda: circuit_figures.attribution(PARTS, LENS, text="x", token="y", against="z", logit=-1.25),
        lambda: circuit_figures.why(PAIRS, "1.0", "“x” (5)", "“y” (3)", 0.75, score=4.5, mean=-1.5),
        lambda: similarity_figures.similarity(HEADS, HEAD_PAIRS),
    ],
    ids=["circuits", "one layer", "attribution", "why", "similarity"],
)
def test_every_axis_says_what_it_shows(draw):
    made = draw()
    made.draw_without_rendering()
    shown = [ax for ax in made.axes if ax.get_visible()]
    assert all(ax.get_xlabel() or ax.get_ylabel() or ax.get_title(loc="left") for ax in shown)
    assert made.get_suptitle()
