"""A trained run, opened for looking at: its parameters, tokenizer, data and head profile.

run = andrea_jax.load_run("runs/quickstart-1a2b3c4d")
run.profile().best
run.trace("def f(x):").pattern(layer=1, head=2)
"""

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from andrea_jax import data, heads
from andrea_jax.config import BOS, Experiment
from andrea_jax.data import Dataset, Tokenizer
from andrea_jax.errors import UserError
from andrea_jax.heads import Profile
from andrea_jax.model import Params
from andrea_jax.runs import Run
from andrea_jax.trace import Trace, trace
from andrea_jax.training import restore


@dataclass(frozen=True)
class LoadedRun:
    """`params` are those of the checkpoint of `step`."""

    run: Run
    params: Params
    step: int

    @property
    def experiment(self) -> Experiment:
        return self.run.experiment

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer saved in the run directory; the data are not needed for it."""
        return Tokenizer.load(self.run.path / "tokenizer.json")

    @functools.cached_property
    def dataset(self) -> Dataset:
        """The data the run was trained on, from the cache or built again. UserError where they are not the same."""
        dataset, trained_on = data.prepare(self.experiment), self.run.provenance["data_hash"]
        if dataset.hash != trained_on:
            text = f"was trained on data with hash {trained_on}, and here data.corpus has {dataset.hash}"
            raise UserError(f"{self.run.path}: {text} (the standard library's text differs by Python version)")
        return dataset

    def tokens(self, text: str) -> np.ndarray:
        """BOS and the tokens of `text`, int32 [1, seq]. UserError where they need more positions than there are."""
        ids, most = [BOS, *self.tokenizer.encode(text)], self.experiment.model.seq_len
        if len(ids) > most:
            raise UserError(f"text: {len(ids)} tokens with BOS, and the model has model.seq_len = {most} positions")
        return np.array([ids], np.int32)

    def trace(self, text: str, points: tuple[str, ...] = ("q", "k", "lse")) -> Trace:
        """What the heads do on `text`: see `trace.trace`."""
        e = self.experiment
        return trace(
            e.model, self.params, self.tokens(text), dtype=e.compute.dtype, backend=e.compute.backend, points=points
        )

    def profile(self, progress: heads.Progress | None = None) -> Profile:
        """The head profile of this checkpoint: read from the run directory, or computed and saved there."""
        if (self.run.heads / f"profile-{self.step}.parquet").is_file():
            return Profile.load(self.run.heads, self.step)
        e = self.experiment
        found = heads.profile(
            e.model,
            self.params,
            self.dataset,
            e.probe,
            seq_len=e.data.seq_len,
            dtype=e.compute.dtype,
            backend=e.compute.backend,
            progress=progress,
        )
        found.save(self.run.heads, self.step)
        return found

    def __repr__(self) -> str:
        m, lines = self.experiment.model, self.run.metrics()
        losses = [line["eval_loss"] for line in lines if "eval_loss" in line]
        held_out = f", held-out loss {losses[-1]:.3f} nats/token" if losses else ""
        shape = f"{m.n_layer} layers × {m.n_head} heads, d_model {m.d_model}, {m.projection}"
        return f"LoadedRun({self.run.name}: {shape}, step {self.step}{held_out})"


def load_run(path: Path | str, step: int | Literal["last", "best"] = "last", backend: str | None = None) -> LoadedRun:
    """Opens a run directory. UserError where it is none, or has no such checkpoint.

    `backend` replaces the run's own attention backend, so that a run from a GPU opens anywhere.
    """
    run = Run.open(path)
    params, found = restore(run, step)
    if backend is not None:
        compute = dataclasses.replace(run.experiment.compute, backend=backend)
        run = Run(run.path, dataclasses.replace(run.experiment, compute=compute))
    return LoadedRun(run, params, found)
