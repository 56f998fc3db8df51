"""What a reader must know before believing a table of runs: in what else than the swept keys they differ."""

from collections.abc import Iterable, Sequence

from andrea_jax import side_by_side
from andrea_jax.runs import Run
from andrea_jax.sweeps.differences import Contrast
from andrea_jax.sweeps.measured import Measured


def notes(measured_runs: Sequence[Measured], contrasts: Sequence[Contrast]) -> list[str]:
    """One sentence a reason for doubt; none where the runs differ in the compared keys and the seed only."""
    runs = [one.run for one in measured_runs]
    found = [f"{one.text}: {', '.join(one.keys)} differ at once, so no one of them explains a difference"
             for one in contrasts if len(one.keys) > 1]  # fmt: skip
    found += side_by_side.notes([run for run in runs if "data_hash" in run.provenance])
    for one in measured_runs:
        if one.step != one.experiment.train.steps:
            found.append(f"{one.run.name}: is compared at step {one.step} of {one.experiment.train.steps}")
    for what, values in _circumstances(runs).items():
        if len(set(values)) > 1:
            counts = ", ".join(f"{value} ({values.count(value)} runs)" for value in dict.fromkeys(values))
            found.append(f"trained on different {what}: {counts}")
    dirty = sum(any(session["dirty"] for session in _sessions(run)) for run in runs)
    if dirty:
        found.append(f"{dirty} of {len(runs)} runs were trained by code with uncommitted changes")
    return found


def _circumstances(runs: Sequence[Run]) -> dict[str, list[str]]:
    """What else can change the numbers, in words, for each run."""
    by_run = [_sessions(run) for run in runs]
    return {
        "commits": [_all(str(one["commit"])[:10] for one in sessions) for sessions in by_run],
        "versions of jax": [_all(one["versions"]["jax"] for one in sessions) for sessions in by_run],
        "devices": [_all(one["device"]["kind"] for one in sessions if "device" in one) for sessions in by_run],
        # it changes tokens/s and the last digits; not written by older code, which trained one run at a time
        "numbers of seeds at a time": [
            _all(str(one.get("runs_together", 1)) for one in sessions) for sessions in by_run
        ],
    }


def _sessions(run: Run) -> list[dict]:
    """Every start of training; the run's creation where there was none."""
    written = run.provenance
    return written.get("sessions", [written])


def _all(values: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(values)) or "unknown"
