"""`LoadedRun.view`: from a run and a text to the page."""

import dataclasses

import numpy as np
import pytest

import andrea_jax
from andrea_jax import model, runs
from andrea_jax.conversion import convert
from andrea_jax.errors import UserError
from andrea_jax.viewer import pack

TEXT = "def f(x):\n    é"


@pytest.fixture(scope="module")
def loaded(tiny_run):
    return andrea_jax.load_run(tiny_run)


def with_model(loaded, config, params):
    """The run as if it had been trained with another model."""
    experiment = dataclasses.replace(loaded.experiment, model=config)
    return dataclasses.replace(loaded, run=runs.Run(loaded.run.path, experiment), params=params)


def test_the_page_shows_the_pattern_that_the_trace_has(loaded):
    payload = loaded.view(TEXT, layers=[1], heads=[2]).payload
    n = len(payload["tokens"])
    triangle = pack.restore(pack.from_text(payload["sides"][0]["patterns"][0][0], n * (n + 1) // 2))
    expected = loaded.trace(TEXT).pattern(layer=1, head=2)[np.tril_indices(n)]
    np.testing.assert_allclose(triangle, expected, atol=1 / 255)
    assert payload["layers"] == [1] and payload["heads"] == [2]


def test_tokens_keep_their_newlines_and_lone_bytes_are_shown_as_such(loaded):
    tokens = loaded.view(TEXT).payload["tokens"]
    assert tokens[0] == "⟨bos⟩" and tokens[10] == "\n" and tokens[-2:] == ["\\xc3", "\\xa9"]


def test_two_steps_of_a_run_are_called_by_their_steps(loaded):
    earlier = dataclasses.replace(loaded, step=3)
    assert [side["name"] for side in earlier.view(TEXT, against=loaded).payload["sides"]] == ["step 3", "step 5"]


def test_two_projections_of_a_step_are_called_by_their_projection(loaded):
    other = with_model(loaded, *convert(loaded.experiment.model, loaded.params, "per_head"))
    assert [side["name"] for side in loaded.view(TEXT, against=other).payload["sides"]] == ["fused", "per-head"]


def test_an_ablation_is_shown_against_the_intact_model(loaded):
    payload = loaded.view(TEXT, ablate=(0, 1)).payload
    assert [side["name"] for side in payload["sides"]] == ["intact", "without head 0.1"]
    assert payload["sides"][0]["patterns"][0] == payload["sides"][1]["patterns"][0]


def test_an_unscored_run_has_no_badges(loaded):
    assert not any(badge for layer in loaded.view(TEXT).payload["badges"] for badge in layer)


def test_a_view_has_two_sides_at_most_and_both_read_the_same_tokens(loaded):
    with pytest.raises(UserError, match=r"ablate = '0.3': must be a pair \(layer, head\)"):
        loaded.view(TEXT, ablate="0.3")
    with pytest.raises(UserError, match="against or ablate, not both"):
        loaded.view(TEXT, against=loaded, ablate=(0, 1))
    bigger = dataclasses.replace(loaded.experiment.model, n_layer=1)
    with pytest.raises(UserError, match="has 1 layers × 3 heads"):
        loaded.view(TEXT, against=with_model(loaded, bigger, model.initialise(bigger, 0)))
