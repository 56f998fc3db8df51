"""Heads through training: when each behaviour appears, and what the figure says of it."""

import dataclasses

import numpy as np
import pandas as pd
import plot_data
import pytest
from test_figures import assert_readable
from test_report import make_run

from andrea_jax import plots
from andrea_jax.plots.development_figures import FEWEST, appearances, development, finding

STEPS = (0, 1, 2, 4, 8, 16, 32)


def scores_at(step: int, curves: dict[str, dict[int, float]], half_width: float = 0.01) -> plot_data.Profile:
    """A profile in which head 0.3 (previous token) and head 1.1 (induction) have the scores of their curves."""
    made = plot_data.profile()
    table = made.table.copy()
    for probe, name in (("previous_token", (0, 3)), ("induction", (1, 1))):
        mine = (table["probe"] == probe) & (table["layer"] == name[0]) & (table["head"] == name[1])
        score = curves[probe][step]
        table.loc[mine, ["score", "low", "high"]] = [score, score - half_width, score + half_width]
    return dataclasses.replace(made, table=table, best=plot_data.best(table))


def grown(induction: tuple[float, ...], previous: tuple[float, ...] = (0.12, 0.12, 0.12, 0.2, 0.8, 0.9, 0.95), **kw):
    """step -> profile."""
    curves = {"induction": dict(zip(STEPS, induction, strict=True)),
              "previous_token": dict(zip(STEPS, previous, strict=True))}  # fmt: skip
    return {step: scores_at(step, curves, **kw) for step in STEPS}


LATE = (0.03, 0.03, 0.03, 0.03, 0.05, 0.7, 0.83)  # baseline 0.03, so half way to 0.83 is 0.43


def of(probe: str, found: pd.DataFrame) -> dict:
    return found.set_index("probe").loc[probe].to_dict()


def test_a_behaviour_appears_where_it_passes_half_way_from_its_baseline_to_its_last_score():
    found = appearances(grown(LATE), tokens_a_step=100)
    row = of("induction", found)
    assert (row["layer"], row["head"], row["after"], row["by"]) == (1, 1, 800, 1600)
    assert row["score"] == pytest.approx(0.83) and row["baseline"] == pytest.approx(0.03)
    assert (of("previous_token", found)["after"], of("previous_token", found)["by"]) == (400, 800)


def test_what_comes_and_goes_and_comes_again_counts_from_its_last_rise():
    row = of("induction", appearances(grown((0.03, 0.03, 0.6, 0.7, 0.1, 0.7, 0.83)), 100))
    assert (row["after"], row["by"]) == (800, 1600)


def test_a_checkpoint_whose_interval_reaches_half_way_is_not_below_it():
    faint = appearances(grown(LATE, half_width=0.39), 100)  # 0.05 + 0.39 passes 0.43, 0.03 + 0.39 does not
    assert (of("induction", faint)["after"], of("induction", faint)["by"]) == (400, 800)


def test_a_behaviour_that_the_first_checkpoint_has_is_older_than_it():
    row = of("induction", appearances(grown((0.8,) * 7), 100))
    assert np.isnan(row["after"]) and row["by"] == 0
    assert finding(appearances(grown((0.8,) * 7), 100), 7).startswith(
        "Induction (head 1.1: 0.80, uniform 0.03) is there from the first checkpoint on; previous token"
    )


def test_a_last_score_barely_above_its_baseline_has_no_date():
    found = appearances(grown((0.03,) * 6 + (0.05,), half_width=0.015), 100)  # half way is 0.04, and 0.03 reaches 0.045
    assert np.isnan(of("induction", found)["after"]) and np.isnan(of("induction", found)["by"])
    assert finding(found, 7).startswith("Induction (head 1.1: 0.05, uniform 0.03) is too faint to say since when; ")


def test_the_title_tells_when_induction_appears_and_the_head_it_needs():
    assert finding(appearances(grown(LATE), 4096), 7) == (
        "Induction (head 1.1: 0.83, uniform 0.03) appears between 32.8k and 65.5k tokens; "
        "previous token (head 0.3: 0.95, uniform 0.12) between 16.4k and 32.8k tokens"
    )


def test_nothing_found_is_said_and_has_no_row():
    table = plot_data.table()
    null = table.assign(score=table["baseline"], low=table["baseline"] - 0.01, high=table["baseline"] + 0.01)
    profile = dataclasses.replace(plot_data.profile(), table=null, best=plot_data.best(null))
    found = appearances(dict.fromkeys(STEPS, profile), 100)
    assert found.empty
    assert finding(found, 7) == "No head lies above its null at the last of 7 checkpoints"


def evaluated() -> list[dict]:
    """plot_data's metrics with an in-context score at every evaluation."""
    bands = {"eval_in_context": -0.1, "eval_in_context_late": [48, 64], "eval_in_context_early": [8, 16]}
    return [row | (bands if "eval_loss" in row else {}) for row in plot_data.metrics(steps=50)]


@pytest.mark.parametrize("metrics", [evaluated(), plot_data.metrics(steps=50)], ids=["evaluated", "not evaluated"])
def test_the_figure_is_readable_with_and_without_an_in_context_score(metrics):
    figure = development(grown(LATE), metrics)
    assert_readable(figure)
    titles = [ax.get_title(loc="left") for ax in figure.axes if ax.get_visible()]
    assert ("in-context score: loss at positions 48–63 − at 8–15" in titles) == ("eval_in_context" in metrics[-1])
    assert "induction: head 1.1" in titles and titles[-1] == "mean entropy of every head's pattern"


def test_the_blue_line_is_the_followed_head_and_the_band_where_it_appears():
    figure = development(grown(LATE), evaluated())
    ax = next(ax for ax in figure.axes if ax.get_title(loc="left").startswith("induction"))
    blue = next(line for line in ax.lines if line.get_marker() == "o")
    np.testing.assert_allclose(np.asarray(blue.get_ydata(), float), LATE, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(blue.get_xdata(), float), plot_data.TOKENS_A_STEP * np.array(STEPS))
    assert (
        len([line for line in ax.lines if line.get_linestyle() == "-" and line is not blue]) == 8
    )  # every head, faint
    spans = [patch.get_extents().transformed(ax.transData.inverted()) for patch in ax.patches]
    np.testing.assert_allclose([(s.x0, s.x1) for s in spans], [(8 * 4096, 16 * 4096)], rtol=1e-6)


def test_two_checkpoints_are_no_development():
    with pytest.raises(ValueError, match="3 checkpoints or more, not 2"):
        development({step: plot_data.profile() for step in (0, 9)}, plot_data.metrics())


@pytest.mark.parametrize("n", [2, 7])
def test_a_report_shows_the_development_of_three_checkpoints_and_otherwise_says_why_not(tmp_path, n):
    run = make_run(tmp_path)
    for row in evaluated():
        run.append_metrics(row)
    profiles = dict(list(grown(LATE).items())[-n:])
    text = plots.write_report(run, profiles[32], step=32, profiles=profiles).read_text(encoding="utf-8")
    what_to_do = "train.profile_every while it trains, or train.log_spaced_checkpoints=true, then report --development"
    missing = f"Not computed for this run: development (it takes {FEWEST} scored checkpoints: {what_to_do})."
    assert (missing in text) == (n < 3)
    assert (run.figures / "development.svg").is_file() == (n >= 3)
    assert '<section id="development">' in text
