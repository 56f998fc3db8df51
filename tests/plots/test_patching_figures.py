"""What moves a logit difference: the figure's title, the table, and the map of each kind of place."""

import numpy as np
import pandas as pd
import pytest

from andrea_jax.plots import patching_figures as figures
from andrea_jax.plots.messages import show

PIECES = ["⟨bos⟩", "x", "(", "$y$"]


def places(by: str) -> pd.DataFrame:
    """Two layers of three heads, four positions; the fifth place does most."""
    axes = {"head": (2, 3), "path": (2, 3), "position": (2, 4), "head_position": (2, 3, 4)}[by]
    names = {"position": ["layer", "position"]}.get(by, ["layer", "head", "position"][: len(axes)])
    table = pd.DataFrame(dict(zip(names, np.indices(axes).reshape(len(axes), -1), strict=True)))
    effect = np.where(np.arange(len(table)) == 4, -3.0, 0.25)
    return table.assign(effect=effect, low=effect - 0.1, high=effect + 0.1, share=effect / -4)


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ("head", "The clean output of head 1.1 moves the logit difference by -3.00, 75% of the way from -1.00"),
        ("position", "The clean output of layer 1 at “⟨bos⟩” (0) moves the logit difference by -3.00"),
        ("head_position", "The clean output of head 0.1 at “⟨bos⟩” (0) moves"),
        ("path", "The corrupted output of head 1.1, through these paths alone, moves the logit difference by -3.00, "
                 "75% of the way from +3.00 (clean) to -1.00 (corrupted)"),
    ],
)  # fmt: skip
def test_the_title_names_the_place_with_the_largest_effect_whatever_its_sign(by: str, said: str):
    assert figures.finding(places(by), by, PIECES, (3.0, -1.0)).startswith(said)


def test_equal_runs_have_no_share_and_one_pair_no_interval(capsys):
    table = places("head").assign(share=np.nan)
    assert "of the way" not in figures.finding(table, "head", PIECES, (1.0, 1.0))
    show(figures.patching_table(table, "head", PIECES, 1))
    out = capsys.readouterr().out
    assert "–" in out and "no interval" in out and "[" not in out


@pytest.mark.parametrize("by", ["head", "head_position"])
def test_the_map_has_a_number_in_every_cell_that_there_is(by: str):
    table = places(by).drop(index=5)  # a pruned layer has fewer heads
    (ax, _) = figures.patching(table, by, PIECES, (3.0, -1.0)).axes
    assert [text.get_text() for text in ax.texts].count("-3.00") == 1 and len(ax.texts) == len(table)


def test_of_many_heads_the_map_shows_those_that_do_most(monkeypatch):
    monkeypatch.setattr(figures, "HEADS", 2)
    table = places("head_position")
    table.loc[23, "effect"] = 1.0  # head 1.2
    (ax, _) = figures.patching(table, "head_position", PIECES, (3.0, -1.0)).axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0.1", "1.2"]
    assert ax.get_ylabel() == "head (the 2 that do most)"
