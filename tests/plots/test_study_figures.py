"""Figures of the studies of the claims."""

import io

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from PIL import Image
from test_figures import assert_readable

from andrea_jax.plots.study_figures import FLOOR, correlations, trajectories

STEPS = 7


def gaps(optimizer: str, kind: str, seed: int, values: list[float]) -> pd.DataFrame:
    return pd.DataFrame(
        {"optimizer": optimizer, "kind": kind, "seed": seed, "step": range(1, STEPS + 1), "gap": values}
    )


def heights(ax: Axes) -> list[np.ndarray]:
    return [np.asarray(line.get_ydata(), float) for line in ax.lines]


@pytest.fixture
def parting() -> pd.DataFrame:
    """Two optimizers and two seeds; under sgd the seeds never part, under muon per head does from step 3 on."""
    rows = [gaps(name, "moved", seed, [0.0] * STEPS) for name in ("sgd", "muon") for seed in (0, 1)]
    rows += [gaps("sgd", "per head", seed, [0.0] * STEPS) for seed in (0, 1)]
    return pd.concat([*rows, *(gaps("muon", "per head", seed, [0, 0, 0.2, 0, 0, 0, 0]) for seed in (0, 1))])


def test_a_panel_an_optimizer_shows_the_largest_gap_of_five_steps_seed_by_seed(parting):
    figure = trajectories(parting, "Do they part?")
    assert_readable(figure)
    sgd, muon, legend = figure.axes
    assert [ax.get_title("left") for ax in (sgd, muon)] == ["sgd", "muon"]
    assert len(sgd.lines) == len(muon.lines) == 4
    nothing = [FLOOR] * STEPS
    np.testing.assert_allclose(heights(sgd), [nothing] * 4)
    expected = [nothing, nothing, *[[FLOOR, FLOOR, 0.2, 0.2, 0.2, 0.2, 0.2]] * 2]
    np.testing.assert_allclose(heights(muon), expected)
    found = legend.get_legend()
    assert found is not None and [text.get_text() for text in found.get_texts()] == ["moved", "per head"]


def test_correlations_are_lines_with_bars_a_panel_a_meaning():
    rows = [{"meaning": meaning, "gradient": gradient, "step": step, "value": 0.1 * i, "low": 0.1 * i - 0.3,
             "high": 0.1 * i + 0.2} for meaning in ("damage", "1 − CKA", "1 − R²") for gradient in ("gate", "weights")
            for i, step in enumerate((64, 256, 1024, 2000))]  # fmt: skip
    figure = correlations(pd.DataFrame(rows), "Do they agree?")
    assert_readable(figure)
    assert [ax.get_title("left") for ax in figure.axes] == ["damage", "1 − CKA", "1 − R²"]
    for ax in figure.axes:
        gate, weights, zero = ax.lines
        np.testing.assert_allclose(np.asarray(gate.get_ydata(), float), [0, 0.1, 0.2, 0.3])
        beside = np.asarray(weights.get_xdata(), float)
        np.testing.assert_allclose(beside, [0.07, 1.07, 2.07, 3.07])  # beside the other's
        assert [text.get_text() for text in ax.get_xticklabels()] == ["64", "256", "1,024", "2,000"]
        bars = ax.collections[0]
        assert isinstance(bars, LineCollection)
        ends = [np.asarray(segment)[:, 1] for segment in bars.get_segments()]
        np.testing.assert_allclose(ends, [(0.1 * i - 0.3, 0.1 * i + 0.2) for i in range(4)])
        assert zero.get_ydata() == [0, 0]
        assert len(ax.collections) == 2


def test_a_small_png_has_the_pixels_of_the_large_one_in_fewer_bytes(parting):
    figure = trajectories(parting, "Do they part?")
    large, small = figure.encode("png"), figure.small()
    images = [Image.open(io.BytesIO(data)).convert("RGB") for data in (large, small)]
    assert images[0].size == images[1].size
    assert np.abs(np.subtract(*(np.asarray(image, int) for image in images))).mean() < 1
    assert len(small) < 0.6 * len(large)
