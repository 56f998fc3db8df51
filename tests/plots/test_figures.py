import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pandas as pd
import plot_data
import pytest
from matplotlib.text import Text

from andrea_jax import plots
from andrea_jax.errors import UserError
from andrea_jax.plots import figures, style

DRIFT = {"sgd": [0.0, 2e-8, 6e-8], "adamw": [3e-7, 2e-6, 4e-6], "muon": [0.03, 0.1, 0.2]}
FIGURES = {
    "loss": lambda: plots.loss_curve(plot_data.metrics(), 4353),
    "gradients": lambda: plots.head_gradients(plot_data.metrics()),
    "profile of 8 heads": lambda: plots.head_profile(plot_data.table(), plot_data.best(plot_data.table())),
    "patterns": lambda: plots.patterns(plot_data.patterns()),
    "brackets": lambda: plots.bracket_rules(plot_data.brackets()),
    "offsets": lambda: plots.offset_profiles(plot_data.offsets()),
    "checks": lambda: plots.projection_check(plot_data.checks()),
    "timing": lambda: plots.projection_timing(plot_data.timing()),
    "drift": lambda: plots.projection_training(DRIFT),
}


def one_head() -> plot_data.Profile:
    return plot_data.profile(1, 1, undefined=("bracket", "duplicate_token"))


EDGES = {
    "one head": lambda: plots.head_profile(one_head().table, one_head().best),
    "one head's gradient": lambda: plots.head_gradients(plot_data.metrics(1, 1, steps=50)),
    "one head's offsets": lambda: plots.offset_profiles(plot_data.offsets(1, 1)),
    "one log line": lambda: plots.loss_curve(plot_data.metrics(steps=10), 257),
    "nothing defined": lambda: plots.head_profile(
        plot_data.table(undefined=plot_data.PROBES), plot_data.best(plot_data.table(undefined=plot_data.PROBES))
    ),
    "no hardest pair": lambda: plots.bracket_rules(plot_data.brackets(n_hardest=0)),
    "one pattern": lambda: plots.patterns(plot_data.patterns(7, panels=1)),
    "all bit-equal": lambda: plots.projection_check(plot_data.checks().assign(max_difference=0.0)),
    "a disagreement": lambda: plots.projection_check(plot_data.checks(scores=0.3)),
}


@pytest.mark.parametrize("name", [*FIGURES, *EDGES])
def test_no_text_covers_another_or_leaves_the_figure(name):
    assert_readable((FIGURES | EDGES)[name]())


@pytest.mark.slow
@pytest.mark.parametrize("draw", [
    lambda: plots.head_profile(plot_data.table(6, 12), plot_data.best(plot_data.table(6, 12))),
    lambda: plots.head_profile(plot_data.table(12, 12), plot_data.best(plot_data.table(12, 12))),
    lambda: plots.patterns(plot_data.patterns(64)),
])  # fmt: skip
def test_large_figures_stay_readable(draw):
    assert_readable(draw())


def assert_readable(figure: plots.Figure) -> None:
    drawn = drawn_texts(figure)
    names, boxes = [name for name, _ in drawn], np.array([box for _, box in drawn])
    width, height = figure.get_size_inches() * style.DPI
    outside = (boxes < -1).any(axis=1) | (boxes[:, 2] > width + 1) | (boxes[:, 3] > height + 1)
    assert not outside.any(), [name for name, out in zip(names, outside, strict=True) if out]
    overlap = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:]) - np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    pairs = np.argwhere(np.triu((overlap > 1.5).all(axis=-1), 1))  # line boxes are a little taller than their letters
    assert not len(pairs), [(names[a], names[b]) for a, b in pairs]


def drawn_texts(figure: plots.Figure) -> list[tuple[str, np.ndarray]]:
    """What is drawn (ticks out of view are not), with its box: left, low, right, high, in dots."""
    boxes, draw = {}, Text.draw

    def record(text: Text, renderer) -> None:
        if text.get_text().strip() and text.get_visible():
            boxes[id(text)] = (text.get_text(), text.get_window_extent(renderer).extents)
        draw(text, renderer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", record)
        figure.encode("png")
    return list(boxes.values())


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_same_data_gives_the_same_bytes(kind):
    assert FIGURES["loss"]().encode(kind) == FIGURES["loss"]().encode(kind)


def test_titles_say_what_the_data_says():
    titles = {name: draw().get_suptitle().replace("\n", " ") for name, draw in FIGURES.items()}
    assert titles["profile of 8 heads"] == "Head 1.1 puts 0.81 of its attention on induction targets (uniform: 0.03)"
    assert titles["loss"] == "Held-out loss ends at 2.00 nats/token after 4.1M tokens (chance: 8.38)"
    assert titles["checks"] == "Fused and per-head agree within tolerance in logits, gradients and scores"
    assert titles["timing"] == "per-head, loop takes 1.83 times as long as fused, one (forward + backward)"


def test_a_head_within_the_null_is_grey_and_one_above_it_blue():
    rows = [plot_data.row("induction", 0, 0, 0.04, 0.02, 0.03), plot_data.row("induction", 0, 1, 0.9, 0.02, 0.03)]
    table = pd.DataFrame(rows)
    colours = plots.head_profile(table, plot_data.best(table)).axes[0].images[0].get_array()
    grey, blue = colours[1, 0], colours[2, 0]
    assert np.ptp(grey) == 0 and 0.8 < grey[0] < 1
    assert blue[2] > blue[0] + 0.2


def test_more_than_forty_heads_get_a_panel_a_layer():
    def panels(table):
        return len(plots.head_profile(table, plot_data.best(table)).axes) - 1  # one is the colour bar

    only = plot_data.table(5, 9).query("probe == 'induction'")
    assert panels(only) == 6  # five, and an empty place in the grid
    assert panels(only.query("layer < 4")) == 1


def test_targets_are_outlined_where_query_and_key_say():
    pattern = plot_data.patterns(5, panels=1)[0]
    outlines = plots.patterns([pattern]).axes[0].collections[0].get_paths()
    corners = sorted(tuple(path.vertices[0]) for path in outlines)
    assert corners == [(q - 1.5, q - 0.5) for q in range(1, 5)]  # x is the key q − 1, y the query q


def test_dollar_signs_in_tokens_are_no_mathematics_and_missing_glyphs_are_named():
    labels = [label.get_text() for label in plots.patterns(plot_data.patterns(panels=1)).axes[0].get_yticklabels()]
    assert {"$a$", "U+6F22", "</script>", "\\xff"} <= set(labels)


def test_tokens_that_do_not_fit_their_pattern_are_an_error():
    pattern = plot_data.patterns(7, panels=1)[0]
    short = plots.Pattern(0, 1, "induction", 0.5, 0.1, pattern.tokens[:5], pattern.pattern, pattern.targets)
    with pytest.raises(UserError, match=r"5 tokens need .* shape \(5, 5\), and pattern is \(7, 7\)"):
        plots.patterns([short])
    with pytest.raises(UserError, match="at most 64 of them, not 65"):
        plots.patterns(plot_data.patterns(65, panels=1))


def test_the_running_mean_is_centred_and_leaves_out_what_is_missing(monkeypatch):
    monkeypatch.setattr(figures, "WINDOWS", 2)  # 7 points: a window of 3
    smooth = figures.smooth(np.array([1.0, 2.0, 6.0, np.nan, 4.0, 4.0, 10.0]))
    np.testing.assert_allclose(smooth, [1.5, 3.0, 4.0, 5.0, 4.0, 6.0, 7.0])


def test_steps_above_the_axis_belong_to_the_tokens_below_it():
    axes = plots.loss_curve(plot_data.metrics(), 4353).axes[0]
    held_out = axes.lines[2].get_xdata()
    np.testing.assert_allclose(held_out[:2], [50 * 4096, 100 * 4096])  # evaluations do not record their tokens


def test_drawing_leaves_matplotlib_as_it_was_and_needs_no_pyplot():
    before = dict(mpl.rcParams)
    plots.offset_profiles(plot_data.offsets()).encode("png")
    assert dict(mpl.rcParams) == before
    check = "import sys, andrea_jax.plots; sys.exit('matplotlib.pyplot' in sys.modules or 'jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_ink_is_readable_on_every_colour_of_the_map():
    def luminance(colour):
        c = np.asarray(mpl.colors.to_rgb(colour))
        linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    for background in style.EXCESS(np.linspace(0, 1, 41))[:, :3]:
        pair = sorted([luminance(background), luminance(style.ink(background))])
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5  # WCAG AA for text


def test_drift_is_drawn_over_its_own_range_and_an_exact_zero_is_left_out():
    figure = plots.projection_training(DRIFT)
    (ax,) = figure.axes
    low, high = ax.get_ylim()
    assert ax.get_yscale() == "log" and 1e-9 < low < 2e-8 and 0.2 < high < 3
    assert np.isnan(ax.lines[0].get_ydata()[0])
    assert figure.get_suptitle().replace("\n", " ") == (
        "After 3 steps from the same numbers, fused and per-head differ by "
        "6e-08 under sgd, 4e-06 under adamw and 2e-01 under muon"
    )


def test_a_tolerance_of_0_is_said_and_leaves_the_scale_to_the_others():
    checks = plot_data.checks()
    (ax,) = plots.projection_check(checks).axes
    exact = pd.DataFrame({"quantity": ["weights there and back"], "max_difference": [0.0], "tolerance": [0.0]})
    (with_it,) = plots.projection_check(pd.concat([checks, exact], ignore_index=True)).axes
    assert with_it.get_xlim() == ax.get_xlim()
    assert "0, bit-equal (tolerance 0)" in [text.get_text() for text in with_it.texts]
