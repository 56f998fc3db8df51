"""What a loaded run offers to a notebook."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import andrea_jax
from andrea_jax import config_files, loaded, runs
from andrea_jax.errors import UserError
from andrea_jax.generate import generate
from andrea_jax.heads import Profile
from andrea_jax.loaded import profiled_steps
from andrea_jax.training import steps


@pytest.fixture(scope="module")
def experiment(tiny_config: Path):
    return config_files.load(tiny_config, ["train.log_spaced_checkpoints=true", "probe.n_sequences=4"])


@pytest.fixture(scope="module")
def developed(experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with checkpoints 0, 1, 2, 4, 5; tests that write to it copy it."""
    return andrea_jax.train_run(experiment, "tiny", tmp_path_factory.mktemp("runs")).run.path


@pytest.fixture(scope="module")
def run(developed):
    return andrea_jax.load_run(developed)


@pytest.fixture
def copy(developed: Path, tmp_path: Path):
    return andrea_jax.load_run(shutil.copytree(developed, tmp_path / developed.name))


def test_the_package_lists_what_it_offers_and_names_what_it_does_not_have():
    assert {"compare", "load_run", "train_run", "LoadedRun"} <= set(dir(andrea_jax))
    with pytest.raises(AttributeError, match="no attribute 'loadrun'"):
        _ = andrea_jax.loadrun


def test_the_bound_model_gives_the_logits_of_a_trace_bit_for_bit(run):
    traced = run.trace("x = (a, [b])")
    compiled = np.asarray(traced.logits)
    again = np.asarray(run.trace("x = (a, [b])", points=("z", "head_output")).logits)
    assert np.array_equal(compiled, again)
    np.testing.assert_allclose(np.asarray(run.model(run.tokens("x = (a, [b])"))), compiled, rtol=1e-4, atol=1e-5)


def test_comparing_with_a_path_says_that_the_run_must_be_opened(run):
    with pytest.raises(UserError, match="compare: b must be an opened run, as load_run gives it, not 'runs/other'"):
        andrea_jax.compare(run, "runs/other")
    with pytest.raises(UserError, match="view: against must be an opened run, as load_run gives it, not 'runs/other'"):
        run.view("def", against="runs/other")


def test_metrics_are_one_row_a_step_with_null_where_nothing_was_measured(run):
    table, lines = run.metrics, run.run.metrics()
    assert len(table) < len(lines)  # step 5 was logged and evaluated: two lines, one row
    assert table["step"].is_unique
    last = table.set_index("step").loc[5]
    assert last["loss"] == next(line["loss"] for line in lines if "loss" in line and line["step"] == 5)
    assert last["eval_loss"] == lines[-1]["eval_loss"]
    assert np.isnan(table.set_index("step").loc[3, "loss"])  # evaluated between two logged steps


def test_a_sample_is_the_text_and_what_generate_adds(run):
    text = run.sample("def ", 7, temperature=0.8, seed=3)
    model = run.experiment.model
    added = generate(model, run.params, run.tokens("def "), 7, temperature=0.8, seed=3, backend="reference")
    assert text == "def " + run.tokenizer.decode(added[0].tolist())


def test_at_another_step_the_run_has_that_steps_parameters(run):
    first = run.at(0)
    assert (first.step, run.step) == (0, 5)
    assert not np.array_equal(first.params["W_U"], run.params["W_U"])
    with pytest.raises(UserError, match=r"no checkpoint of step 3; it has those of steps 0, 1, 2, 4, 5"):
        run.at(3)


@pytest.fixture
def scored(monkeypatch) -> list[float]:
    """Stands in for the probes: a profile is one number of the parameters it was asked for, which is also noted."""
    asked: list[float] = []

    def profile(model, params, dataset, probe, *, seq_len, dtype, backend, progress):
        assert (seq_len, dtype, backend) == (31, "float32", "reference")
        asked.append(float(np.abs(params["W_U"]).sum()))
        table = pd.DataFrame({"layer": [0], "head": [0], "score": [asked[-1]]})
        nothing = pd.DataFrame({"none": []})
        return Profile(table, nothing, nothing, nothing, nothing)

    monkeypatch.setattr(loaded.heads, "profile", profile)
    return asked


def test_a_converted_run_has_the_other_projection_and_the_same_logits_and_can_be_viewed_against_it(run):
    other = run.converted("per_head")
    assert (run.experiment.model.projection, other.experiment.model.projection) == ("fused", "per_head")
    tokens = run.tokens("def f(x)")
    np.testing.assert_allclose(other.model(tokens), run.model(tokens), atol=1e-5)
    page = run.view("def f(x)", against=other).html
    assert "per-head" in page and "fused" in page


def test_profiles_are_those_of_every_checkpoint_and_computed_once(copy, scored):
    told = []
    profiles = copy.profiles(lambda *at: told.append(at))
    assert list(profiles) == steps(copy.run) == profiled_steps(copy.run) == [0, 1, 2, 4, 5]
    assert told == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
    expected = {step: float(np.abs(copy.at(step).params["W_U"]).sum()) for step in profiles}
    assert {step: profile.table["score"].item() for step, profile in profiles.items()} == expected
    assert len(set(expected.values())) == len(scored) == 5
    copy.profiles()
    assert len(scored) == 5


def test_two_checkpoints_with_the_same_bytes_are_called_out(copy, scored):
    shutil.rmtree(copy.run.checkpoints / "2")
    shutil.copytree(copy.run.checkpoints / "1", copy.run.checkpoints / "2")
    for step in (0, 4, 5):
        shutil.rmtree(copy.run.checkpoints / str(step))
    with pytest.warns(UserWarning, match="checkpoints 1 and 2 are byte-identical"):
        copy.profiles()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy.profiles()  # nothing is scored now


def test_a_finished_run_is_opened_and_an_interrupted_one_trained_to_its_end(experiment, developed, monkeypatch):
    trained = []
    real = loaded.train
    monkeypatch.setattr(loaded, "train", lambda run, *a, **k: trained.append(steps(run)[-1:]) or real(run, *a, **k))
    assert andrea_jax.train_run(experiment, "tiny", developed.parent).step == 5
    assert trained == []
    other = developed.parent / "other"
    half = runs.create(other, experiment, "tiny")
    real(half, andrea_jax.load_run(developed).dataset, until=2, progress=False)
    assert andrea_jax.train_run(experiment, "tiny", other).step == 5
    assert trained == [[2]]


def test_a_run_shows_its_config_its_last_metrics_and_what_is_saved(run):
    shown = repr(run)
    loss = run.run.metrics()[-1]
    for words in (
        "2 layers × 3 heads, d_model 24, head_dim 8, fused, learned positions: 27,048 parameters",
        "bytes, vocabulary 257, 40% of the windows repeat",
        "adamw, learning rate 0.01, 7 × 31 tokens a step, seed 0",
        f"held-out {loss['eval_loss']:.3f}, in-context {loss['eval_in_context']:+.3f}",
        "checkpoints  0, 1, 2, 4, 5",
    ):
        assert words in shown, words
    assert len(shown.splitlines()) == 6


def test_a_trace_shows_shapes_and_no_numbers(run):
    shown = repr(run.trace("abc", points=("q", "lse")))
    assert shown.splitlines() == [
        "Trace of 2 layers × 3 heads",
        "  logits         float32 [1, 4, 257]",
        "  lse            float32 [2, 1, 3, 4]",
        "  q              float32 [2, 1, 4, 3, 8]",
    ]


def test_a_profile_shows_its_best_heads(copy):
    profile = copy.profile()
    lines = repr(profile).splitlines()
    assert lines[0].startswith("Profile of 6 heads")
    assert [line.split()[0] for line in lines[2:]] == list(profile.best["probe"])
    assert profile._repr_html_().count("<tr") == 1 + len(profile.best)
