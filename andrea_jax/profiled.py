"""Head profiles while a run trains, for at most 3% of its time: what train.profile_every asks for."""

import time

from andrea_jax.data import Dataset
from andrea_jax.heads import QuickProfile
from andrea_jax.model import Params
from andrea_jax.runs import Run

SHARE = 0.03  # of the time that all steps of the run take
FIRST_S = 6.0  # the first compiles; a guess, since a run for which that is more than its share should not begin


class Profiler:
    """profiler(step, params, run_s) saves a step's head profile in the run, on few sequences; for `training.train`.

    run_s is the time that all steps of the run take at the speed so far. A profile that would bring all of them above
    `SHARE` of it is skipped. What they took, also before a resume, is in the provenance: profiles = {made, skipped,
    seconds, share}.
    """

    def __init__(self, run: Run, dataset: Dataset):
        self._run, self._dataset = run, dataset
        self._quick: QuickProfile | None = None
        self._next_s = FIRST_S
        self._so_far = run.provenance.get("profiles", {"made": 0, "skipped": 0, "seconds": 0.0})  # none at the start

    def __call__(self, step: int, params: Params, run_s: float) -> str:
        """What was done, in words."""
        allowed = SHARE * run_s
        if self._so_far["seconds"] + self._next_s > allowed:
            self._so_far["skipped"] += 1
            self._record(run_s)
            text = f"with it they would take {self._so_far['seconds'] + self._next_s:.1f} s"
            return f"step {step}: no head profile, {text}, above {SHARE:.0%} of a run of {run_s:.0f} s"
        begin = time.perf_counter()
        quick = self._quick or self._prepared(params)
        ready = time.perf_counter()
        quick(params).save(self._run.heads, step)
        end = time.perf_counter()
        self._next_s = end - ready
        self._so_far["made"] += 1
        self._so_far["seconds"] += end - begin
        self._record(run_s)
        all_s = self._so_far["seconds"]
        return f"step {step}: head profile in {end - begin:.1f} s; all so far took {all_s / run_s:.1%} of the run"

    def _prepared(self, params: Params) -> QuickProfile:
        """Compiled, so that the next call tells what a profile takes."""
        e = self._run.experiment
        compute = {"dtype": e.compute.dtype, "backend": e.compute.backend}
        self._quick = QuickProfile(e.model, self._dataset, e.probe, seq_len=e.data.seq_len, **compute)
        self._quick.measure(params)
        return self._quick

    def _record(self, run_s: float) -> None:
        self._run.record(profiles=self._so_far | {"share": self._so_far["seconds"] / run_s if run_s else 0.0})


def profiler(run: Run, dataset: Dataset) -> Profiler | None:
    """None where the experiment asks for no profiles."""
    return Profiler(run, dataset) if run.experiment.train.profile_every else None
