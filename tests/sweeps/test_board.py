"""The table of a sweep, read from run directories."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from andrea_jax import runs
from andrea_jax.config import Data, Experiment, Model, Train
from andrea_jax.runs import Run
from andrea_jax.sweeps.board import Board, look, result
from andrea_jax.sweeps.jobs import Outcome, Swept, fail, last_outcome

STEPS, A_STEP = 100, 7 * 31  # tokens a step


@pytest.fixture
def made(tmp_path: Path) -> list[Run]:
    model = Model(vocab_size=307, seq_len=128, d_model=24, n_layer=1, n_head=3)
    of_seed = [Train(steps=STEPS, batch_size=7, seed=seed) for seed in range(5)]
    experiments = [Experiment(model=model, data=Data(seq_len=31), train=train) for train in of_seed]
    return [runs.create(tmp_path, experiment, "a") for experiment in experiments]


def shown(*tables) -> str:
    out = io.StringIO()
    for table in tables:
        Console(file=out, width=160).print(table)
    return out.getvalue()


def line(step: int, **values: float) -> dict:
    return {"step": step, "loss": 2.5, "tokens_per_s": 434.0} | values


def test_a_row_shows_the_last_lines_and_the_time_that_is_left(made):
    made[0].append_metrics(line(20))
    made[0].append_metrics({"step": 25, "eval_loss": 2.25})
    made[0].append_metrics(line(30, loss=2.125))
    left = (STEPS - 30) * A_STEP / 434  # 35 s
    assert look(made[0], "training") == ["30/100", "2.125", "2.250", "434", f"0:{left:.0f}"]
    assert look(made[0], "stopped")[-1] == ""


def test_a_run_without_metrics_is_at_step_0(made):
    assert look(made[0], "training") == ["0/100", "", "", "", ""]


def test_a_line_that_is_being_written_is_left_for_the_next_look(made):
    made[0].append_metrics(line(20))
    with (made[0].path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "lo')
    assert look(made[0], "training")[0] == "20/100"


def test_a_long_file_is_read_from_its_end(made):
    for step in range(1, 1500):
        made[0].append_metrics(line(step, grad_norm=0.123456789))
    assert look(made[0], "stopped")[0] == "1499/100"


def test_the_state_of_a_run_is_what_its_directory_says(made):
    _, stopped, finished, failed, again = made
    stopped.append_metrics(line(10))
    finished.record(finished=True)
    fail(failed.path, "memory ran out\nin two lines", "Traceback ...")
    again.record(finished=False)
    assert [last_outcome(run).state for run in made] == ["waiting", "stopped", "finished", "failed", "waiting"]
    assert last_outcome(failed).message == "memory ran out"
    assert "Traceback ..." in (failed.path / "failure.txt").read_text()


def test_the_table_has_a_row_a_run_and_where_there_are_too_many_only_those_that_matter(made):
    made[0].record(finished=True)
    board = Board(made, ["train.seed"])
    board.began(made[3].path)
    assert "5 runs: 1 finished, 3 waiting, 1 training" in shown(board.table())
    assert all(f"seed {i}" in shown(board.table(5)) for i in range(5))
    few = shown(board.table(4))
    assert "seed 3" in few and "seed 0" not in few and "seed 4" not in few


def test_where_there_is_no_terminal_a_run_that_ends_is_a_line_and_where_nothing_is_wanted_nothing(made, capsys):
    board = Board(made, ["train.seed"])
    for wanted in (True, False):
        with board.shown(wanted):
            board.began(made[1].path)
            board.ended(made[1].path, Outcome("failed", "memory ran out"))
        said = capsys.readouterr()
        assert said.err == ("seed 1: failed, memory ran out (4 waiting, 1 failed)\n" if wanted else "")
        assert said.out == ""


def test_the_result_names_every_run_that_did_not_finish_and_why(made):
    found = [Swept(run, "finished", "") for run in made[:3]]
    assert len(result(found)) == 1
    found += [
        Swept(made[3], "failed", "the loss is nan [sic]"),
        Swept(made[4], "elsewhere", "another process trains it"),
    ]
    text = shown(*result(found))
    assert "5 runs: 3 finished, 1 failed, 1 elsewhere" in text
    assert str(made[3].path) in text and "failed: the loss is nan [sic]" in text
    assert str(made[4].path) in text and str(made[0].path) not in text
