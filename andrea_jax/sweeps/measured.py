"""Runs as tables: a row a run, and a row a run × layer × head × probe."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from andrea_jax.config import Experiment
from andrea_jax.config_keys import value_of
from andrea_jax.errors import UserError
from andrea_jax.heads import Profile, specialization
from andrea_jax.loaded import load_run, profiled_steps
from andrea_jax.runs import Run
from andrea_jax.side_by_side import measured
from andrea_jax.sweeps.plan import SEED, shown
from andrea_jax.training import steps

BEST = ("previous_token", "induction", "bracket")  # probes whose best head is a measure of the run
MEASURES = {  # column of the table of runs -> what it is called
    "heldout_loss": "held-out loss (nats/token)",
    "heldout_loss_per_byte": "held-out loss (nats/byte)",
    "in_context": "in-context score (nats)",
    "specialization": "specialization, mean over heads",
    **{probe: f"{probe.replace('_', ' ')}, best head's score" for probe in BEST},
    "tokens_per_s": "training speed (tokens/s)",
}
TOKENS = {"model.vocab_size", "data.tokenizer", "data.corpus"}  # where they differ, losses a token do not compare
PROFILE = ["layer", "head", "probe", "score", "low", "high", "baseline", "control", "n", "undefined"]


@dataclass(frozen=True)
class Measured:
    """A run at one of its steps, with its head profile there."""

    run: Run
    step: int
    profile: Profile

    @property
    def experiment(self) -> Experiment:
        return self.run.experiment

    @property
    def seed(self) -> int:
        return self.experiment.train.seed

    @functools.cached_property
    def developed(self) -> dict[int, Profile]:
        """step -> head profile, of every step whose profile lies in the run directory."""
        return {step: Profile.load(self.run.heads, step) for step in profiled_steps(self.run)}

    def setting(self, keys: Sequence[str]) -> tuple[str, ...]:
        """The values of the keys, but for the seed."""
        return tuple(shown(value_of(self.experiment, key)) for key in keys if key != SEED)


def measures(keys: Sequence[str]) -> list[str]:
    """The `MEASURES` that say something where these keys differ: the loss a byte only where tokens do."""
    return [name for name in MEASURES if name != "heldout_loss_per_byte" or TOKENS.intersection(keys)]


def measure(path: Path | str, step: int | Literal["last", "best"] = "last", backend: str | None = None) -> Measured:
    """Opens a run; its head profile is read where it is saved there, and else computed and saved."""
    run = Run.open(path)
    wanted = steps(run)[-1] if step == "last" and steps(run) else step
    if wanted not in profiled_steps(run):
        loaded = load_run(path, step, backend)
        return Measured(run, loaded.step, loaded.profile())
    return Measured(run, int(wanted), Profile.load(run.heads, int(wanted)))


def distinct(runs: Sequence[Run]) -> None:
    """Raises UserError where two of them are the same experiment: one seed would count twice."""
    seen: dict[str, Path] = {}
    for run in runs:
        identity = run.provenance["run_id"]
        if identity in seen:
            raise UserError(f"{seen[identity]} and {run.path}: are the same experiment, run {identity}; name it once")
        seen[identity] = run.path


def runs_table(measured_runs: Sequence[Measured], keys: Sequence[str]) -> pd.DataFrame:
    """A row a run: run, step, the values of `keys`, train.seed, the `MEASURES` (nan where one was not taken),
    peak_memory_mib, n_params, and from the provenance device, data_hash, commit, dirty, python, jax."""
    return pd.DataFrame([_run_row(one, keys) for one in measured_runs])


def _run_row(one: Measured, keys: Sequence[str]) -> dict[str, object]:
    written, losses = one.run.provenance, measured(one.run, one.step)
    best = {row["probe"]: row["score"] for row in one.profile.best.to_dict("records")}
    peak = written.get("peak_memory_bytes")  # absent from runs of older code, null on CPUs
    return {
        **_which(one, keys),
        "loss": losses["loss"],
        "heldout_loss": losses["eval_loss"],
        "heldout_loss_per_byte": losses["eval_loss_per_byte"],
        "in_context": losses["eval_in_context"],
        "specialization": _specialization(one.profile),
        **{probe: float(best[probe]) for probe in BEST},
        "tokens_per_s": written.get("tokens_per_s", np.nan),  # absent where no step was timed
        "peak_memory_mib": np.nan if peak is None else peak / 2**20,
        "n_params": written.get("n_params"),  # this and what follows is absent where training never began
        "device": written["device"]["kind"] if "device" in written else None,
        "data_hash": written.get("data_hash"),
        "commit": written["commit"],
        "dirty": written["dirty"],
        "python": written["versions"]["python"],
        "jax": written["versions"]["jax"],
    }


def _which(one: Measured, keys: Sequence[str]) -> dict[str, object]:
    values = {key: _plain(value_of(one.experiment, key)) for key in keys if key != SEED}
    return {"run": one.run.name, "step": one.step, **values, SEED: one.seed}


def _plain(value: object) -> object:
    return shown(value) if isinstance(value, tuple) else value


def heads_table(measured_runs: Sequence[Measured], keys: Sequence[str]) -> pd.DataFrame:
    """A row a run × layer × head × probe: the run's columns as in `runs_table`, and those of `Profile.table`."""
    parts = []
    for one in measured_runs:
        table = one.profile.table.loc[:, PROFILE]
        which = pd.DataFrame({name: [value] * len(table) for name, value in _which(one, keys).items()}, table.index)
        parts.append(pd.concat([which, table], axis=1))
    return pd.concat(parts, ignore_index=True)


def development_table(measured_runs: Sequence[Measured], keys: Sequence[str]) -> pd.DataFrame:
    """A row a run × step whose profile is saved, for runs that have three or more: run, values, step, tokens (seen so
    far), specialization (mean over heads). Empty where no run has."""
    rows = []
    for one in measured_runs:
        a_step = one.experiment.train.batch_size * one.experiment.data.seq_len
        for step, profile in one.developed.items() if len(one.developed) > 2 else ():
            found = {"step": step, "tokens": step * a_step, "specialization": _specialization(profile)}
            rows.append(_which(one, keys) | found)
    return pd.DataFrame(rows)


def _specialization(profile: Profile) -> float:
    """Mean over heads."""
    return float(specialization(profile)["specialization"].to_numpy(np.float64).mean())
