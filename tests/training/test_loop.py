"""Training a run: what it writes, exact resuming, stopping, and what goes wrong with a message."""

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
import tiny_training

from andrea_jax import data, model, runs
from andrea_jax.config import Experiment
from andrea_jax.data import Dataset, Tokenizer
from andrea_jax.errors import UserError
from andrea_jax.runs import Run
from andrea_jax.training import Interrupted, NotFinite, loop, optimizer, restore, steps, train
from andrea_jax.training.checkpoints import Checkpoints, State
from andrea_jax.training.lanes import Alone
from andrea_jax.training.placement import ONE_DEVICE

MakeRun = Callable[..., Run]


def lines(run: Run) -> list[dict]:
    """The lines of metrics.jsonl without what a clock measured."""
    return [{key: value for key, value in line.items() if key != "tokens_per_s"} for line in run.metrics()]


def last_state(run: Run) -> State:
    with Checkpoints(run) as saved:
        state = saved.last(optimizer.make(run.experiment.optim, run.experiment.train.steps))
    assert state is not None
    return state


def assert_same_bits(found: Run, expected: Run) -> None:
    a, b = last_state(found), last_state(expected)
    assert (a.step, a.unlogged) == (b.step, b.unlogged)
    jax.tree.map(np.testing.assert_array_equal, (a.params, a.opt_state), (b.params, b.opt_state))
    assert lines(found) == lines(expected)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset, experiment: Experiment) -> Run:
    """The tiny experiment, trained without a stop."""
    run = runs.create(tmp_path_factory.mktemp("straight"), experiment, "straight")
    train(run, dataset, progress=False)
    return run


def test_lines_come_every_ten_steps_and_evaluations_every_eval_every(straight: Run):
    training = [line for line in straight.metrics() if "loss" in line]
    evaluations = [line for line in straight.metrics() if "eval_loss" in line]
    assert [line["step"] for line in training] == [10, 20, 23]
    assert [line["tokens"] for line in training] == [10 * 65, 20 * 65, 23 * 65]
    assert set(training[0]) == {"step", "tokens", "loss", "grad_norm", "learning_rate", "tokens_per_s"}
    assert [line["step"] for line in evaluations] == [7, 14, 21, 23]
    assert np.shape(evaluations[0]["head_grad_norm"]) == (1, 2)
    assert {"eval_loss", "eval_loss_per_byte", "eval_n_tokens", "eval_in_context"} <= set(evaluations[0])
    assert evaluations[-1]["eval_loss"] < evaluations[0]["eval_loss"] < np.log(257)


def test_the_run_says_what_it_was_trained_on_and_that_it_is_finished(straight: Run, dataset: Dataset):
    written = straight.provenance
    assert written["finished"] is True
    assert written["data_hash"] == dataset.hash
    assert written["data"] == dataset.summary
    assert written["n_params"] == 257 * 16 * 2 + 17 * 16 + 12 * 16**2
    assert isinstance(written["device"], dict)
    assert written["device"]["platform"] == "cpu"
    assert isinstance(written["tokens_per_s"], float)
    assert Tokenizer.load(straight.path / "tokenizer.json").token_bytes == dataset.tokenizer.token_bytes


def test_the_parameters_returned_are_those_of_the_last_checkpoint(make_run: MakeRun, dataset: Dataset):
    run = make_run("a")
    params = train(run, dataset, until=3, progress=False)
    jax.tree.map(np.testing.assert_array_equal, params, restore(run, 3)[0])


@pytest.mark.parametrize("stops", [(9,), (7, 8), (20,)])
def test_stopping_and_continuing_gives_the_same_bits_as_not_stopping(
    make_run: MakeRun, dataset: Dataset, straight: Run, stops: tuple[int, ...]
):
    run = make_run("resumed")
    for stop in stops:
        train(run, dataset, until=stop, progress=False)
        assert steps(run)[-1] == stop
        assert run.provenance["finished"] is False
    train(run, dataset, progress=False)
    assert_same_bits(run, straight)


def test_what_a_killed_run_wrote_after_its_last_checkpoint_is_trained_again(
    make_run: MakeRun, dataset: Dataset, straight: Run
):
    run = make_run("killed")
    train(run, dataset, until=14, progress=False)
    run.append_metrics({"step": 20, "loss": 9.0})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 21, "lo')
    with pytest.warns(UserWarning, match="skipped"):
        train(run, dataset, progress=False)
    assert_same_bits(run, straight)


def test_training_a_finished_run_changes_nothing(make_run: MakeRun, dataset: Dataset):
    run = make_run("a")
    first = train(run, dataset, progress=False)
    before = run.metrics(), run.provenance
    again = train(run, dataset, progress=False)
    jax.tree.map(np.testing.assert_array_equal, again, first)
    assert (run.metrics(), run.provenance) == before


def test_log_spaced_checkpoints_begin_with_the_initial_numbers(make_run: MakeRun, dataset: Dataset):
    run = make_run("a", train={"log_spaced_checkpoints": True})
    train(run, dataset, until=11, progress=False)
    assert steps(run) == [0, 1, 2, 4, 7, 8, 11]  # 7 was evaluated, and 11 is the last
    jax.tree.map(np.testing.assert_array_equal, restore(run, 0)[0], model.initialise(run.experiment.model, 0))


def test_other_data_than_the_run_began_with_is_refused(make_run: MakeRun, dataset: Dataset):
    run = make_run("a")
    train(run, dataset, until=1, progress=False)
    with pytest.raises(UserError, match="made-0, and this data has made-1; train a new run"):
        train(run, dataclasses.replace(dataset, hash="made-1"), progress=False)


def test_a_loss_that_is_not_finite_stops_the_run_and_names_step_and_checkpoint(make_run: MakeRun, dataset: Dataset):
    run = make_run("a", optim={"learning_rate": 1.2e38, "clip_norm": 0.0, "warmup_steps": 0})
    with pytest.raises(NotFinite, match=r"step \d+: the loss is .*; there is no checkpoint"):
        train(run, dataset, progress=False)
    assert steps(run) == []
    run = make_run("b", optim={"learning_rate": 1.2e38, "clip_norm": 0.0, "warmup_steps": 0}, train={"eval_every": 1})
    with pytest.raises(
        NotFinite, match=r"step 2: the .*loss is .*nan; the last checkpoint is of step 1, a lower optim"
    ):
        train(run, dataset, progress=False)
    assert steps(run) == [1]


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_continue(
    make_run: MakeRun, dataset: Dataset, straight: Run, monkeypatch: pytest.MonkeyPatch
):
    run = make_run("stopped")
    original, made = data.batch, []

    def batch_with_a_ctrl_c(*arguments, **options):
        made.append(1)
        if len(made) == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments, **options)

    monkeypatch.setattr(data, "batch", batch_with_a_ctrl_c)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match=r"stopped after step \d+ of 23; .*andrea train .* continues") as stopped:
        train(run, dataset, progress=False)
    assert signal.getsignal(signal.SIGINT) is handler
    assert stopped.value.run is run
    assert steps(run)[-1] == stopped.value.step < 23
    assert run.provenance["finished"] is False
    monkeypatch.undo()
    train(run, dataset, progress=False)
    assert_same_bits(run, straight)


def test_training_works_in_a_thread_that_gets_no_signals(make_run: MakeRun, dataset: Dataset):
    run = make_run("a")
    worker = threading.Thread(target=train, args=(run, dataset), kwargs={"until": 2, "progress": False})
    worker.start()
    worker.join()
    assert steps(run) == [2]


def test_batches_come_in_order_from_the_thread_and_its_errors_reach_the_loop(
    make_run: MakeRun, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
):
    experiment = make_run("a").experiment
    lanes = Alone(experiment, dataset, ONE_DEVICE, State(3, {}, (), []))
    with loop._batches(lanes.batch, 3, 12) as batches:
        found = [np.asarray(tokens) for tokens in batches]
    np.testing.assert_array_equal(found, [data.batch(dataset, experiment, step) for step in range(3, 12)])

    def broken(*arguments, **options):
        raise UserError("the text vanished")

    monkeypatch.setattr(data, "batch", broken)
    with (
        pytest.raises(UserError, match="the text vanished"),
        loop._batches(lanes.batch, 0, 5) as batches,
    ):
        next(batches)


@pytest.mark.slow
def test_a_real_sigint_in_another_process_leaves_a_run_that_continues_exactly(tmp_path: Path, dataset: Dataset):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            from pathlib import Path
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            import tiny_training
            from andrea_jax import runs
            from andrea_jax.training import Interrupted, train
            try:
                train(runs.Run.open(Path(sys.argv[1])), tiny_training.tiny_dataset())
            except Interrupted as stopped:
                print(stopped, file=sys.stderr)
                sys.exit(130)
            """
        )
    )
    experiment = tiny_training.tiny_experiment_of(steps=4000, eval_every=1500)
    run, expected = (runs.create(tmp_path, experiment, name) for name in ("stopped", "straight"))
    process = subprocess.Popen([sys.executable, str(script), str(run.path)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not any(line["step"] >= 100 for line in run.metrics()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "stopped after step" in said
    assert 100 <= steps(run)[-1] < 4000
    train(run, dataset, progress=False)
    train(expected, dataset, progress=False)
    assert_same_bits(run, expected)
