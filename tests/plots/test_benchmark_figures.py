"""Figures and tables of the benchmarks."""

import benchmark_data as data
import pytest
from rich.console import Console
from test_figures import assert_readable

from andrea_jax.plots import benchmark_figures as figures
from andrea_jax.plots.benchmark_rows import where
from andrea_jax.plots.benchmark_tables import TABLES

OF = "NVIDIA H200, bfloat16, jax 0.11.2, 2026-11-29; ceiling 790 TFLOP/s, a large matrix product"
ONE_SHAPE = [row for row in data.attention() if row["batch"] == 32 and row["head_dim"] == 64]
FIGURES = {
    "attention": lambda: figures.attention(data.attention(), OF),
    "attention, one shape, no peer": lambda: figures.attention(where(ONE_SHAPE, kind="backend"), OF),
    "projections": lambda: figures.projections(data.projections(), OF, 790),
    "projections on a CPU": lambda: figures.projections(data.projections(thresholds=(None,)), OF, 790),
    "layout": lambda: figures.layout(data.layout(), OF),
    "head-dim": lambda: figures.head_dim(data.head_dim(odd=None), OF),
}


@pytest.mark.parametrize("name", FIGURES)
def test_no_text_covers_another_or_leaves_the_figure(name):
    assert_readable(FIGURES[name]())


def test_a_contender_far_behind_stands_at_the_edge_with_its_ratio():
    panel = FIGURES["attention"]().axes[0]
    assert panel.get_xlim()[1] < 5
    assert {"57", "39", "14"} <= {text.get_text() for text in panel.texts}  # reference, chunked, XLA at the first shape


def test_ratios_are_to_the_fastest_peer_and_without_peers_to_the_fastest():
    def medians(figure):
        return [float(line.get_xdata()[0]) for line in figure.axes[0].lines if line.get_linestyle() == "None"]

    with_peers = figures.attention(ONE_SHAPE, OF)
    assert min(medians(with_peers)) == pytest.approx(141 / 158)
    assert min(medians(FIGURES["attention, one shape, no peer"]())) == 1


def text(name: str, rows: list[dict]) -> str:
    console = Console(width=140)
    with console.capture() as captured:
        console.print(*TABLES[name](rows))
    return captured.get()


def test_tables_have_every_time_a_dash_where_there_is_none_and_counts_in_brackets():
    attention = text("attention", data.attention())
    assert all(word in attention for word in ("Attention forward, µs a call", "torch-flex", "17642", "32×1024×12×64"))
    assert attention.count("–") == 4 + 2  # the reference on two shapes, three passes
    projections = text("projections", data.projections())
    assert "(36)" in projections and "(216)" in projections and "1024" in projections
    layout = text("layout", data.layout())
    assert "a call a head" in layout and "25" in layout and "141 (1)" in layout
    assert "72 × 16" in text("head-dim", data.head_dim())


def test_the_fastest_of_a_column_is_bold():
    (forward, *_) = TABLES["attention"](data.attention())
    bold = [cell.plain for cell in forward.columns[1].cells if getattr(cell, "style", "") == "bold"]
    assert bold == ["141"]
