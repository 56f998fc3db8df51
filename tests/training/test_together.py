"""Runs that step in one program: each is left as it would have been alone, up to rounding."""

import dataclasses
import os
import signal
import time
from collections.abc import Callable

import jax
import numpy as np
import pytest

from andrea_jax import data, model, runs
from andrea_jax.config import Experiment, Model
from andrea_jax.data import Dataset
from andrea_jax.model import Params
from andrea_jax.runs import Run
from andrea_jax.training import Elsewhere, Interrupted, NotFinite, bookkeeping, restore, steps, train, train_together
from andrea_jax.training.lock import locked

MakeRun = Callable[..., Run]
SEEDS = (2, 3)
SHORT = {"steps": 5, "eval_every": 3}


def seeds(make_run: MakeRun, name: str, **changes: dict) -> list[Run]:
    return [make_run(name, **changes, train={**SHORT, "seed": seed}) for seed in SEEDS]


def together(runs: list[Run], dataset: Dataset, until: int | None = None) -> list[Params | Exception]:
    return train_together(runs, dataset, [None] * len(runs), until=until)


def assert_alike(found: Run, alone: Run) -> None:
    """The same lines, files and parameters, but for rounding and what a clock measured."""
    assert steps(found) == steps(alone)
    for one, other in zip(found.metrics(), alone.metrics(), strict=True):
        assert list(one) == list(other)
        for key in one.keys() - {"tokens_per_s"}:
            np.testing.assert_allclose(one[key], other[key], rtol=2e-4, atol=1e-6, err_msg=key)
    assert {path.name for path in found.path.iterdir()} == {path.name for path in alone.path.iterdir()}
    written, expected = found.provenance, alone.provenance
    assert written.keys() == expected.keys()
    assert (written["finished"], written["n_params"]) == (expected["finished"], expected["n_params"])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), restore(found)[0], restore(alone)[0])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset, experiment: Experiment) -> list[Run]:
    """The short experiment with each seed, trained one after the other."""
    root, made = tmp_path_factory.mktemp("alone"), []
    for seed in SEEDS:
        changed = dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, seed=seed, **SHORT))
        made.append(runs.create(root, changed, "alone"))
        train(made[-1], dataset, progress=False)
    return made


def test_seeds_that_train_together_are_left_as_each_would_be_alone(
    make_run: MakeRun, dataset: Dataset, alone: list[Run]
):
    found = seeds(make_run, "together")
    for run, params in zip(found, together(found, dataset), strict=True):
        jax.tree.map(np.testing.assert_array_equal, params, restore(run)[0])
    for run, other in zip(found, alone, strict=True):
        assert_alike(run, other)
        assert [session["runs_together"] for session in run.provenance["sessions"]] == [2]
        assert [session["runs_together"] for session in other.provenance["sessions"]] == [1]
        assert run.provenance["peak_memory_bytes"] is None
    assert len({run.metrics()[-1]["eval_loss"] for run in found}) == 2


@pytest.mark.slow
def test_the_same_holds_per_head_and_where_the_optimizer_looks_at_whole_matrices(make_run: MakeRun, dataset: Dataset):
    changes = {"model": {"projection": "per_head"}, "optim": {"name": "muon"}}
    found, expected = seeds(make_run, "together", **changes), seeds(make_run, "alone", **changes)
    for run in expected:
        train(run, dataset, progress=False)
    together(found, dataset)
    for run, other in zip(found, expected, strict=True):
        assert_alike(run, other)


def test_a_signal_saves_all_at_one_step_and_each_goes_on_alone_or_together(
    make_run: MakeRun, dataset: Dataset, alone: list[Run], monkeypatch: pytest.MonkeyPatch
):
    found, original = seeds(make_run, "stopped"), data.batch

    def batch_with_a_ctrl_c(dataset: Dataset, experiment: Experiment, step: int) -> np.ndarray:
        if (experiment.train.seed, step) == (SEEDS[1], 2):
            os.kill(os.getpid(), signal.SIGINT)
        return original(dataset, experiment, step)

    monkeypatch.setattr(data, "batch", batch_with_a_ctrl_c)
    stopped = together(found, dataset)
    monkeypatch.undo()
    assert [type(one) for one in stopped] == [Interrupted] * 2
    (step,) = {one.step for one in stopped if isinstance(one, Interrupted)}
    assert [(steps(run)[-1], run.provenance["finished"]) for run in found] == [(step, False)] * 2
    train(found[0], dataset, until=4, progress=False)
    train(found[1], dataset, until=4, progress=False)
    together(found, dataset)
    for run, other in zip(found, alone, strict=True):
        assert [line["step"] for line in run.metrics()] == [line["step"] for line in other.metrics()]
        np.testing.assert_allclose(run.metrics()[-1]["eval_loss"], other.metrics()[-1]["eval_loss"], rtol=1e-5)


def test_a_run_that_fails_ends_and_does_not_change_the_others(
    make_run: MakeRun, dataset: Dataset, alone: list[Run], monkeypatch: pytest.MonkeyPatch
):
    initialise = model.initialise

    def with_a_nan(config: Model, seed: int) -> Params:
        params = initialise(config, seed)
        return jax.tree.map(lambda x: x * np.nan, params) if seed == SEEDS[0] else params

    monkeypatch.setattr(model, "initialise", with_a_nan)
    found = seeds(make_run, "together")
    failed, other = together(found, dataset)
    assert isinstance(failed, NotFinite) and str(failed).startswith(f"{found[0].path}: step 1: the loss is nan")
    assert found[0].metrics() == [] and found[0].provenance["finished"] is False
    assert isinstance(other, dict)
    assert_alike(found[1], alone[1])


def test_a_run_that_another_process_trains_or_has_trained_is_left_out(make_run: MakeRun, dataset: Dataset):
    held, free, ahead = found = [make_run("a", train={**SHORT, "seed": seed}) for seed in (2, 3, 5)]
    train(ahead, dataset, until=1, progress=False)
    with locked(held):
        ended = together(found, dataset, until=2)
    assert [type(one) for one in ended] == [Elsewhere, dict, Elsewhere]
    assert [steps(run) for run in (held, free, ahead)] == [[], [2], [1]]
    assert len(ahead.provenance["sessions"]) == 1


def test_what_one_run_does_between_steps_is_no_time_of_the_others_steps(
    make_run: MakeRun, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
):
    evaluate, pause = bookkeeping.evaluate, 0.3

    def slow(*arguments, **options):
        time.sleep(pause)
        return evaluate(*arguments, **options)

    monkeypatch.setattr(bookkeeping, "evaluate", slow)
    found = seeds(make_run, "together")
    together(found, dataset, until=3)
    timed = 2  # steps 2 and 3: the first is not timed
    assert all(timed * 5 * 13 / run.provenance["tokens_per_s"] < pause for run in found)


def test_each_run_has_its_own_heads_scored_in_its_share_of_the_time(make_run: MakeRun, dataset: Dataset):
    found, scored = [make_run("a", train={**SHORT, "seed": seed, "profile_every": 3}) for seed in SEEDS], {}

    def profile_of(run: Run):
        def profile(step: int, params: Params, run_s: float) -> str:
            scored[run.name] = step, params, run_s
            return "scored"

        return profile

    train_together(found, dataset, [profile_of(run) for run in found], until=3)
    for run in found:
        step, params, run_s = scored[run.name]
        assert step == 3
        jax.tree.map(np.testing.assert_array_equal, params, restore(run, 3)[0])
        np.testing.assert_allclose(run_s, 5 * 5 * 13 / run.provenance["tokens_per_s"] / 2)  # 5 steps, 2 runs
