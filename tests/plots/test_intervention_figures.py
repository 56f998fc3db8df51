"""Figures and tables of what heads are worth: their titles say what the numbers say."""

import io
import re

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from rich.table import Table

from andrea_jax.plots import intervention_figures as figures
from andrea_jax.plots.intervention_tables import damage_tables, importance_tables, pruning_table, sweep_caption


def damage(n_layer: int = 2, n_head: int = 3, kinds: tuple[str, ...] = ("zero", "mean")) -> pd.DataFrame:
    """Head 0.1 costs 2 nats of loss, head 1.0 5 nats on second copies; head 0.0 nothing; nothing asked on brackets."""
    rows = []
    for kind in kinds:
        for measure in ("loss", "in_context", "induction", "induction_accuracy", "bracket"):
            for layer, head in np.ndindex(n_layer, n_head):
                value = {("loss", 0, 1): 2.0, ("induction", 1, 0): 5.0}.get(
                    (measure, layer, head), 0.1 * (layer + head)
                )
                value = np.nan if measure == "bracket" else value * (1.5 if kind == "zero" else 1)
                ends = {"damage": value, "low": value - 0.05, "high": value + 0.05}
                names = {"kind": kind, "heads": f"{layer}.{head}", "layer": layer, "head": head, "measure": measure}
                rows.append(
                    names | ends | {"intact": 2.0, "ablated": 2 + value, "n": 0 if measure == "bracket" else 50}
                )
    return pd.DataFrame(rows)


def importances() -> tuple[pd.DataFrame, pd.DataFrame]:
    table = pd.DataFrame({"measure": "loss", "layer": [0, 0, 1, 1], "head": [0, 1, 0, 1],
                          "importance": [0.2, 0.1, 0.04, 0.0]})  # fmt: skip
    table = table.assign(low=table["importance"] * 0.9, high=table["importance"] * 1.1, n=20)
    for i, kind in enumerate(("zero", "mean")):
        value = np.array([1.5, -0.02, 0.3, 0.0]) / (1 + i)
        table[kind], table[f"{kind}_low"], table[f"{kind}_high"] = value, value - 0.01, value + 0.01
    rows = [{"measure": "loss", "kind": kind, "scope": scope, "rho": rho, "low": rho - 0.1, "high": rho + 0.1}
            for kind in ("zero", "mean") for scope, rho in (("all", 0.8), ("within layers", 0.5))]  # fmt: skip
    return table, pd.DataFrame(rows)


def curve() -> pd.DataFrame:
    rows = []
    for strategy, slope in (("importance", 0.1), ("re-estimated", 0.08), ("random", 0.3)):
        for removed in (0, 2, 4, 6):
            cost = slope * removed
            rows.append({"strategy": strategy, "removed": removed, "fraction": removed / 10, "loss": 2 + cost,
                         "damage": cost, "low": cost * 0.9, "high": cost * 1.2, "heads": ""})  # fmt: skip
    return pd.DataFrame(rows)


def printed(*tables: Table) -> str:
    console = Console(width=140, file=io.StringIO(), record=True)
    for table in tables:
        console.print(table)
    return console.export_text()


def test_the_damage_maps_title_names_the_head_most_missed_by_each_measure():
    made = figures.damage_map(damage())
    title = made.get_suptitle().replace("\n", " ")
    assert "mean-ablation" in title
    assert "0.1 for the loss on held-out text, 2.00 [1.95, 2.05]" in title
    assert "1.0 for the loss on second copies, 5.00 [4.95, 5.05]" in title
    panels = [ax for ax in made.axes if ax.get_title(loc="left")]
    assert len(panels) == 4  # two measures, since brackets were asked nowhere; zero beside mean
    texts = [text.get_text() for text in panels[0].texts]
    assert texts[2:4] == ["3.00", "[2.95, 3.05]"]  # head 0.1, zeroed


def test_a_damage_whose_interval_holds_0_is_grey_and_a_pruned_head_leaves_its_cell_empty():
    table = damage()
    made = figures.damage_map(table[~((table["layer"] == 1) & (table["head"] == 2))])
    image = made.axes[0].images[0].get_array()
    assert image is not None
    np.testing.assert_allclose(image[0, 0], 0xEB / 255)
    np.testing.assert_allclose(image[1, 2], 1)
    assert image[0, 1].max() < 0.9


@pytest.mark.slow
def test_144_heads_are_drawn_without_their_intervals_and_stay_on_the_page():
    made = figures.damage_map(damage(12, 12))
    assert len(made.axes[0].texts) == 144
    assert made.get_figwidth() < 16 and len(made.encode("png")) > 10_000


def test_where_nothing_is_missed_the_title_says_so():
    table = damage(kinds=("mean",)).assign(damage=0.0, low=-0.1, high=0.1)
    assert figures.damage_finding(table) == "No head's absence (mean) raises a loss beyond its interval"
    assert figures.number(-0.001) == "0.00" and figures.number(-0.01) == "-0.01"


def test_the_scatters_title_says_whether_gradients_rank_as_damage_does():
    table, correlations = importances()
    made = figures.importance_scatter(table, correlations)
    title = made.get_suptitle().replace("\n", " ")
    assert title.startswith("Within a layer gradient importance ranks heads as damage does: Spearman's rho +0.50 [0.40")
    weak = correlations.assign(low=-0.2)
    assert "says little about damage" in figures.importance_finding(weak)
    single = correlations.assign(rho=np.where(correlations["scope"] == "all", correlations["rho"], np.nan))
    assert figures.importance_finding(single).startswith("Over all heads")
    assert "Too few heads" in figures.importance_finding(correlations.assign(rho=np.nan))
    named = [text.get_text() for text in made.axes[0].texts]
    assert named == ["0.0", "0.1", "1.0"]  # importance 0 has no place on a log scale
    assert len(made.encode("svg")) > 1000


def test_the_curves_title_is_about_half_of_the_heads():
    made = figures.pruning_curve(curve())
    title = made.get_suptitle().replace("\n", " ")
    assert "Taking out 40% of the heads costs 0.40 [0.36, 0.48] least important first" in title
    assert "1.20 [1.08, 1.44] at random" in title


def test_what_was_not_computed_is_not_drawn():
    nothing = dict.fromkeys(("ablation", "importance", "correlations", "pruning"))
    assert figures.drawn(nothing) == {"ablation": None, "importance": None, "pruning": None}
    some = figures.drawn(nothing | {"pruning": curve()})
    assert some["pruning"] is not None and some["ablation"] is None
    assert set(figures.READING) == set(some)


def test_the_terminal_shows_a_row_a_head_and_leaves_out_what_was_asked_nowhere():
    text = printed(*damage_tables(damage(), sweep_caption(6, 49_152, 12.34)))
    assert "Damage: zero" in text and "Damage: mean" in text and "bracket" not in text
    assert re.search(r"0\.1 +2\.00 \[1\.95, 2\.05\] +0\.10 \[0\.05, 0\.15\]", text)
    assert "each head by itself, on 49.2k tokens" in text and "12.3 heads/s" in text
    assert "removed together" in sweep_caption(1, 10, 1.0)
    table, correlations = importances()
    text = printed(*importance_tables(table, correlations))
    assert re.search(r"0\.0 +0\.200 \[0\.180, 0\.220\] +1\.500", text) and "+0.50 [0.40, 0.60]" in text
    text = printed(pruning_table(curve()))
    assert "2.000 nats/token intact" in text
    assert re.search(r"4 +40% +0\.40 \[0\.36, 0\.48\] +0\.32 \[0\.29, 0\.38\] +1\.20", text)
