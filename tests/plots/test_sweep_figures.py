"""What a swept key changes beside what a seed changes."""

import numpy as np
import pandas as pd
import pytest
from test_figures import assert_readable

from andrea_jax.plots import effect, effects, sweep
from andrea_jax.plots.sweep_figures import finding

LOSSES = {1: (2.5, 2.6, 2.55), 4: (2.2, 2.1, 2.3), 8: (2.3, 2.35, 2.25)}
SCORES = {1: (0.2, 0.4, 0.3), 4: (0.35, 0.5, 0.2), 8: (0.3, 0.3, 0.3)}


def table(seeds: int = 3) -> pd.DataFrame:
    rows = []
    for measure, values, baseline in (("loss (nats)", LOSSES, None), ("best head", SCORES, 0.1)):
        for setting, of_seeds in values.items():
            for seed, value in enumerate(of_seeds[:seeds]):
                rows.append(
                    {"setting": setting, "seed": seed, "measure": measure, "value": value, "baseline": baseline}
                )
    return pd.DataFrame(rows).astype({"baseline": float})


def test_an_effect_is_between_the_settings_with_the_extreme_means():
    loss, score = effects(table()).to_dict("records")
    assert (loss["lowest"], loss["highest"]) == (4, 1)
    assert loss["low"] == pytest.approx(2.2) and loss["high"] == pytest.approx(2.55)
    assert loss["difference"] == pytest.approx(0.35) and loss["seeds"] == pytest.approx(0.2)
    assert (score["highest"], score["seeds"]) == (4, pytest.approx(0.3))


def test_an_effect_is_beyond_the_seeds_only_where_all_of_them_agree():
    assert effects(table())["beyond"].tolist() == [True, False]
    assert "every seed agrees (seeds differ by up to 0.20)" in finding(table(), "model.n_head")
    assert "but the seeds overlap" in effect(effects(table()).to_dict("records")[1], "model.n_head")


def test_one_seed_settles_nothing_and_says_so():
    single = effects(table(seeds=1))
    assert single["beyond"].tolist() == [None, None]
    assert "one seed, so nothing says whether" in finding(table(seeds=1), "model.n_head")


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_figure_has_a_point_a_seed_and_is_readable(seeds):
    figure = sweep(table(seeds), "model.n_head")
    assert_readable(figure)
    for ax, values in zip(figure.axes, (LOSSES, SCORES), strict=True):
        points = [line.get_ydata() for line in ax.lines if line.get_linestyle() == "None"]
        np.testing.assert_allclose(np.transpose(points), [values[setting][:seeds] for setting in (1, 4, 8)])
    assert figure.axes[1].get_xlabel() == "model.n_head"
    assert [line.get_linestyle() for ax in figure.axes for line in ax.lines].count(
        "--"
    ) == 1  # a baseline for scores only


def test_the_legend_names_what_any_panel_draws_and_stands_in_the_place_of_a_missing_panel():
    speed = table().query("measure == 'loss (nats)'").assign(measure="tokens/s", value=lambda rows: 2e4 * rows["value"])
    figure = sweep(pd.concat([table(), speed]), "model.n_head")
    *panels, spare = figure.axes
    assert [ax.get_legend() for ax in panels] == [None] * 3 and not spare.axison
    legend = spare.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    interval = "95% interval of the mean (may leave the panel)"
    assert sorted(names) == sorted(["mean over seeds", interval, "seed 0", "seed 1", "seed 2", "uniform attention"])
    figure.draw_without_rendering()
    assert "40,000" in [label.get_text() for label in panels[-1].get_yticklabels()]


def test_a_setting_has_the_t_interval_of_its_mean_and_may_lack_a_seed():
    lacking = table().drop(index=[1])  # the loss of setting 1, seed 1
    figure = sweep(lacking, "model.n_head", "A title of its own")
    assert figure.get_suptitle() == "A title of its own"
    (bars,) = figure.axes[0].collections
    low, high = np.asarray(bars.get_segments())[1][:, 1]  # setting 4: 2.2, 2.1, 2.3, whose s is 0.1
    half = 4.302653 * 0.1 / np.sqrt(3)
    assert (low, high) == (pytest.approx(2.2 - half, abs=1e-5), pytest.approx(2.2 + half, abs=1e-5))
    seeds = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    assert np.isnan(seeds["seed 1"]).tolist() == [True, False, False]


def test_an_interval_much_wider_than_the_points_does_not_squeeze_them():
    two = table(seeds=2)  # t(1) = 12.7
    low, high = sweep(two, "model.n_head").axes[0].get_ylim()
    assert (low, high) == (pytest.approx(2.1 - 0.5), pytest.approx(2.6 + 0.5))
