"""Head profiles while a run trains: when they are made, what they may take, and who finds them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from andrea_jax import config_files, data, profiled, runs, training
from andrea_jax.heads import Profile
from andrea_jax.loaded import load_run, profiled_steps
from andrea_jax.profiled import FIRST_S, Profiler, profiler
from andrea_jax.runs import Run


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 50.0
        monkeypatch.setattr(profiled.time, "perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Building and compiling takes 4 s, each profile then 1 s."""
    clock = Clock(monkeypatch)

    class Quick:
        def __init__(self, *_: object, **__: object): ...

        def measure(self, params: dict) -> None:
            clock.now += 4.0

        def __call__(self, params: dict) -> "Quick":
            clock.now += 1.0
            return self

        def save(self, folder: Path, step: int) -> None:
            (folder / f"profile-{step}.parquet").touch()

    monkeypatch.setattr(profiled, "QuickProfile", Quick)
    return clock


@pytest.fixture
def run(tiny_config: Path, tmp_path: Path) -> Run:
    return runs.create(tmp_path, config_files.load(tiny_config, ["train.profile_every=2"]), "tiny")


def test_profiles_are_made_until_they_would_take_over_three_percent(run: Run, clock: Clock):
    profile = Profiler(run, None)  # pyright: ignore[reportArgumentType]
    said = [profile(step, {}, 230.0) for step in (2, 4, 6, 8)]  # 3% of it: 6.9 s, enough for 5 + 1 s
    assert said[0] == "step 2: head profile in 5.0 s; all so far took 2.2% of the run"
    assert said[1] == "step 4: head profile in 1.0 s; all so far took 2.6% of the run"
    assert said[2] == "step 6: no head profile, with it they would take 7.0 s, above 3% of a run of 230 s"
    assert profiled_steps(run) == [2, 4]
    assert run.provenance["profiles"] == {"made": 2, "skipped": 2, "seconds": 6.0, "share": 6.0 / 230.0}


def test_a_short_run_has_none_and_says_so(run: Run, clock: Clock):
    profile = Profiler(run, None)  # pyright: ignore[reportArgumentType]
    assert "no head profile" in profile(2, {}, FIRST_S / 0.03 - 1)
    assert "no head profile" in profile(2, {}, 0.0)  # the speed is not known yet
    assert profiled_steps(run) == []
    assert "head profile in 5.0 s" in profile(4, {}, FIRST_S / 0.03 + 1)


def test_what_was_spent_before_a_resume_counts(run: Run, clock: Clock):
    first = Profiler(run, None)  # pyright: ignore[reportArgumentType]
    first(2, {}, 300.0)  # 3%: 9 s
    again = Profiler(run, None)  # pyright: ignore[reportArgumentType]
    assert "with it they would take 11.0 s" in again(4, {}, 300.0)
    assert run.provenance["profiles"]["made"] == 1


def test_only_a_config_that_asks_gets_a_profiler(run: Run, tiny_run: Path):
    assert profiler(Run.open(tiny_run), None) is None  # pyright: ignore[reportArgumentType]
    assert isinstance(profiler(run, None), Profiler)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_a_run_is_profiled_on_the_way_and_its_last_step_in_full(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(profiled, "SHARE", 1e9)
    dataset = data.prepare(run.experiment)
    training.train(run, dataset, progress=False, profile=profiler(run, dataset))
    assert profiled_steps(run) == [2, 4]  # of 5 steps; every 2
    opened = load_run(run.path)
    assert opened.profile().n_tokens == 6 * 31
    assert sorted(opened.profiles()) == [2, 4, 5]  # the checkpoint that is left is of 5


@pytest.mark.slow
def test_a_profile_on_few_sequences_is_made_again_where_the_heads_are_looked_at(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, andrea: Callable[..., tuple[int, str, str]]
):
    copy = Path(shutil.copytree(tiny_run, tmp_path / tiny_run.name))
    loaded = load_run(copy)
    whole = loaded.profile()
    few = whole.table.assign(n=whole.table["n"] // 2)
    Profile(few, whole.best, whole.periods, whole.offsets, whole.brackets).save(loaded.run.heads, 5)
    assert andrea("heads", copy)[0] == 0
    assert Profile.load(loaded.run.heads, 5).n_tokens == 6 * 31
