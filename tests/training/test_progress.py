"""What is shown and what is written while a run trains."""

import io
from collections.abc import Callable

import numpy as np
import pytest
from rich.console import Console

from andrea_jax.runs import Run
from andrea_jax.training import NotFinite, progress, recorder
from andrea_jax.training.progress import Bar, Lines, Silent, display, duration
from andrea_jax.training.recorder import LAG, Recorder

MakeRun = Callable[..., Run]


class Clock:
    """Time that passes only when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 100.0
        for module, name in ((progress, "monotonic"), (recorder, "perf_counter")):
            monkeypatch.setattr(module.time, name, lambda: self.now)


def test_outside_a_terminal_a_line_comes_every_five_seconds_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    clock = Clock(monkeypatch)
    lines = display(True, 40, 0)
    assert isinstance(lines, Lines)
    for step in range(1, 41):
        clock.now += 0.5
        lines.step(step, 3.14159, 1234.5)
    said = capsys.readouterr().err.splitlines()
    expected = ((10, 15), (20, 10), (30, 5), (40, 0))
    assert said == [f"step {n}/40  loss 3.142  1,234 tokens/s  {left} s left" for n, left in expected]


def test_time_left_counts_only_the_steps_done_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    clock = Clock(monkeypatch)
    lines = Lines(100, done=90)
    clock.now += 6.0
    lines.step(92, 1.0, 10.0)
    assert "24 s left" in capsys.readouterr().err  # 2 steps took 6 s, 8 are left


def test_the_step_that_compiles_tells_nothing_about_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    clock = Clock(monkeypatch)
    lines = Lines(1000, done=0)
    clock.now += 100.0  # compiling
    lines.step(1, 5.5, 0.0)
    clock.now += 9.0
    lines.step(10, 4.5, 10.0)
    assert capsys.readouterr().err.splitlines() == [
        "step 1/1000  loss 5.500",
        "step 10/1000  loss 4.500  10 tokens/s  16.5 min left",  # 9 steps took 9 s, 990 are left
    ]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (119, "119 s"), (450, "7.5 min"), (11_520, "3.2 h"), (1_045_440, "12.1 days")]
)
def test_durations_are_told_in_units_that_people_use(seconds: float, words: str):
    assert duration(seconds) == words


def test_in_a_terminal_there_is_a_bar_with_step_loss_and_speed():
    written = io.StringIO()
    bar = Bar(Console(file=written, force_terminal=True, width=120), steps=50, done=7)
    bar.step(8, 2.5, 4321.0)
    bar.say("held-out [loss] 2.1")
    bar.close()
    for expected in ("step 8/50", "loss 2.500", "4,321 tokens/s", "held-out [loss] 2.1"):
        assert expected in written.getvalue()


def test_nothing_is_shown_where_nothing_is_wanted(capsys: pytest.CaptureFixture[str]):
    silent = display(False, 10, 0)
    silent.step(1, 1.0, 1.0)
    silent.say("hello")
    assert capsys.readouterr() == ("", "")


class OnDevice:
    """A number that knows whether it was sent to the host, and whether somebody waited for it."""

    def __init__(self, value: float):
        self.value, self.sent, self.fetched = value, False, False

    def copy_to_host_async(self) -> None:
        self.sent = True

    def __float__(self) -> float:
        self.fetched = True
        return self.value


def metrics(loss: float) -> dict:
    numbers = {"loss": OnDevice(loss), "grad_norm": OnDevice(1.0), "learning_rate": OnDevice(0.5)}
    return {**numbers, "head_grad_norm": np.ones((1, 2))}


def test_the_last_steps_dispatched_are_not_waited_for_though_their_metrics_are_on_their_way(make_run: MakeRun):
    written = Recorder(make_run("a"), Silent(), [])
    steps = [metrics(float(i)) for i in range(6)]
    for i, found in enumerate(steps, start=1):
        written.add(i, found)
    assert [found["loss"].fetched for found in steps] == [True] * (6 - LAG) + [False] * LAG
    assert all(found[name].sent for found in steps for name in ("loss", "grad_norm", "learning_rate"))
    written.drain()
    assert all(found["loss"].fetched for found in steps)
    assert written.unlogged == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert written.head_grad_norm == [[1.0, 1.0]]


def test_a_line_holds_the_mean_loss_since_the_last_one_also_across_a_resume(make_run: MakeRun):
    run = make_run("a")
    written = Recorder(run, Silent(), [5.0, 4.0])  # two steps before the checkpoint were not logged yet
    for step in range(9, 24):
        written.add(step, metrics(float(step)))
    written.drain()
    assert [(line["step"], line["loss"]) for line in run.metrics()] == [(10, 7.0), (20, 15.5), (23, 22.0)]


def test_compiling_and_evaluating_do_not_count_as_training_time(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch):
    clock, run = Clock(monkeypatch), make_run("a")

    class Slow(OnDevice):
        def __float__(self) -> float:
            clock.now += 0.5  # the device takes this long for a step
            return self.value

    written = Recorder(run, Silent(), [])
    assert written.tokens_per_s == 0.0
    clock.now += 1000.0  # compiling
    for step in range(1, 21):
        written.add(step, metrics(1.0) | {"loss": Slow(1.0)})
        if step == 12:
            written.drain()
            clock.now += 1000.0  # evaluating
    written.drain()
    assert written.tokens_per_s == pytest.approx(5 * 13 / 0.5)
    assert [line["tokens_per_s"] for line in run.metrics()] == pytest.approx([5 * 13 / 0.5] * 2)


@pytest.mark.parametrize(("loss", "grad_norm"), [(float("nan"), 1.0), (2.0, float("inf"))])
def test_a_number_that_is_not_finite_is_named_with_its_step(make_run: MakeRun, loss: float, grad_norm: float):
    run = make_run("a")
    written = Recorder(run, Silent(), [])
    written.add(10, metrics(loss) | {"grad_norm": OnDevice(grad_norm)})
    with pytest.raises(NotFinite, match=f"step 10: the loss is {loss} and the gradient norm {grad_norm}"):
        written.drain()
    assert run.metrics() == []
