"""A trained run, opened for looking at: its parameters, tokenizer, data and head profile.

run = andrea_jax.load_run("runs/quickstart-1a2b3c4d")
run                                                    its shape, data and last metrics
run.profile().best
run.trace("def f(x):").pattern(layer=1, head=2)
run.view("def f(x):")                                  the attention viewer
run.sample("def f(", 40)
"""

import dataclasses
import functools
import hashlib
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, get_args

import jax
import numpy as np
import pandas as pd

from andrea_jax import data, heads, runs
from andrea_jax.config import BOS, Backend, Experiment
from andrea_jax.conversion import ProjectionName, convert
from andrea_jax.data import Dataset, Tokenizer
from andrea_jax.errors import UserError, did_you_mean
from andrea_jax.generate import generate
from andrea_jax.heads import Profile
from andrea_jax.model import Andrea, Params, bind
from andrea_jax.profiled import profiler
from andrea_jax.runs import Run
from andrea_jax.trace import Trace, trace
from andrea_jax.training import restore, steps, train

if TYPE_CHECKING:
    from andrea_jax.viewer import View

_LOG = logging.getLogger("andrea_jax")


class _Compute(TypedDict):
    """How the run computes, as keyword arguments."""

    dtype: str
    backend: str


@dataclass(frozen=True)
class LoadedRun:
    """`params` are those of the checkpoint of `step`; saved: as the run directory holds them, not converted."""

    run: Run
    params: Params
    step: int
    saved: bool = True

    @property
    def experiment(self) -> Experiment:
        return self.run.experiment

    @functools.cached_property
    def model(self) -> Andrea:
        """The model with these parameters: `run.model(tokens, tap=...)`, tokens int32 [batch, seq] -> logits."""
        return bind(self.experiment.model, self.params, **self._compute)

    @property
    def _compute(self) -> _Compute:
        return {"dtype": self.experiment.compute.dtype, "backend": self.experiment.compute.backend}

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer saved in the run directory; the data are not needed for it. UserError where it is gone."""
        path = self.run.path / "tokenizer.json"
        if not path.is_file():
            raise UserError(f"{path}: no such file; without its tokenizer a run can neither read nor write text")
        return Tokenizer.load(path)

    @functools.cached_property
    def dataset(self) -> Dataset:
        """The data the run was trained on, from the cache or built again. UserError where they are not the same.

        An imported model was trained elsewhere: the data it is first looked at with are recorded as its own.
        """
        dataset = data.prepare(self.experiment, progress=_LOG.info, tokenizer=self.run.path / "tokenizer.json")
        trained_on = self.run.provenance.get("data_hash")
        if trained_on is None:
            self.run.record(data_hash=dataset.hash)
        elif dataset.hash != trained_on:
            text = f"was trained on data with hash {trained_on}, and here data.corpus has {dataset.hash}"
            raise UserError(f"{self.run.path}: {text} (the standard library's text differs by Python version)")
        return dataset

    @property
    def metrics(self) -> pd.DataFrame:
        """What training recorded: a row a step, columns step, tokens, loss, eval_loss, ...; null where not measured.

        Losses in nats a token, tokens_per_s in tokens a second. `run.run.metrics()` has the lines of the file.
        """
        merged: dict[int, dict] = {}
        for line in self.run.metrics():
            merged.setdefault(line["step"], {}).update(line)
        return pd.DataFrame(list(merged.values()))

    def at(self, step: int | Literal["last", "best"]) -> "LoadedRun":
        """The same run at another checkpoint. UserError where it has none of that step."""
        self._refuse_converted()
        return LoadedRun(self.run, *restore(self.run, step))

    def converted(self, projection: ProjectionName) -> "LoadedRun":
        """The same model, its weights stored the other way ("per_head" or "fused"): copied, never computed.

        Its head profile is its own: computed when asked for, and no file of the run directory.
        """
        config, params = convert(self.experiment.model, self.params, projection)
        run = Run(self.run.path, dataclasses.replace(self.experiment, model=config))
        return LoadedRun(run, params, self.step, saved=False)

    def tokens(self, text: str) -> np.ndarray:
        """BOS and the tokens of `text`, int32 [1, seq]. UserError where they need more positions than there are."""
        if not isinstance(text, str):
            raise UserError(f"text: must be a str, not {text!r:.40}; for token ids there are run.model and trace.trace")
        ids, most = [BOS, *self.tokenizer.encode(text)], self.experiment.model.seq_len
        if len(ids) > most:
            raise UserError(f"text: {len(ids)} tokens with BOS, and the model has model.seq_len = {most} positions")
        return np.array([ids], np.int32)

    def trace(self, text: str, points: tuple[str, ...] = ("q", "k", "lse")) -> Trace:
        """What the heads do on `text`: see `trace.trace`, which compiles once a number of tokens."""
        return trace(self.experiment.model, self.params, self.tokens(text), points=points, **self._compute)

    def sample(self, text: str, n: int = 32, *, temperature: float = 0.0, seed: int = 0) -> str:
        """`text` and n tokens that the model adds; temperature 0 takes the likeliest. See `generate.generate`."""
        config, prompt = self.experiment.model, self.tokens(text)
        added = generate(config, self.params, prompt, n, temperature=temperature, seed=seed, **self._compute)
        return text + self.tokenizer.decode(added[0].tolist())

    def view(
        self,
        text: str,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        against: "LoadedRun | None" = None,
        ablate: tuple[int, int] | None = None,
    ) -> "View":
        """The attention viewer on `text`, with badges where this checkpoint's heads were profiled.

        layers, heads: which to show (None: all). against: another run, step or projection on the same tokens, beside
        this one and as a difference. ablate: the same against this model without what head (layer, head) writes.
        UserError where a number is none of the model's, or the other run has another shape or tokenizer.
        """
        from andrea_jax.viewer import view_run  # takes matplotlib along, which nothing else here needs

        if against is not None and not isinstance(against, LoadedRun):
            raise UserError(f"view: against must be an opened run, as load_run gives it, not {against!r}")
        return view_run(self, text, layers=layers, heads=heads, against=against, ablate=ablate)

    def profile(self, progress: heads.Progress | None = None) -> Profile:
        """The head profile of this checkpoint: read from the run directory, or computed and saved there, also where
        training left one on fewer sequences."""
        if not self.saved:
            return self._score(progress)
        if self.step in profiled_steps(self.run):
            found = Profile.load(self.run.heads, self.step)
            if (
                found.n_tokens is None
                or found.n_tokens >= self.experiment.probe.n_sequences * self.experiment.data.seq_len
            ):
                return found
        self._score(progress).save(self.run.heads, self.step)
        return Profile.load(self.run.heads, self.step)

    def profiles(self, progress: heads.Progress | None = None) -> dict[int, Profile]:
        """step -> head profile: of every checkpoint that the run keeps, each computed once and saved, and those that
        training made (train.profile_every).

        progress: called with (checkpoints done, in all). Warns where two of the checkpoints that it scores are the same
        bytes: then the model did not change between them, or a checkpoint was copied.
        """
        self._refuse_converted()
        kept, scored = steps(self.run), {}
        for done, step in enumerate(kept, start=1):
            if step not in profiled_steps(self.run):
                there = self.at(step)
                same = scored.setdefault(_digest(there.params), step)
                if same != step:
                    warnings.warn(f"{self.run.path}: checkpoints {same} and {step} are byte-identical", stacklevel=2)
                there.profile()
            if progress:
                progress(done, len(kept))
        return {step: Profile.load(self.run.heads, step) for step in profiled_steps(self.run)}

    def _score(self, progress: heads.Progress | None) -> Profile:
        e = self.experiment
        settings = {"seq_len": e.data.seq_len, "progress": progress, **self._compute}
        return heads.profile(e.model, self.params, self.dataset, e.probe, **settings)

    def _refuse_converted(self) -> None:
        if not self.saved:
            raise UserError(f"{self.run.path}: a converted run has no other checkpoints; convert run.at(step) instead")

    def __repr__(self) -> str:
        return "\n".join(_about(self))


def load_run(path: Path | str, step: int | Literal["last", "best"] = "last", backend: str | None = None) -> LoadedRun:
    """Opens a run directory. UserError where it is none, or has no such checkpoint.

    `backend` replaces the run's own attention backend, so that a run from a GPU opens anywhere.
    """
    choices = get_args(Backend)
    if backend is not None and backend not in choices:
        names = ", ".join(choices)
        raise UserError(f'backend = "{backend}": must be one of {names}{did_you_mean(backend, choices)}')
    run = Run.open(path)
    params, found = restore(run, step)
    if backend is not None:
        compute = dataclasses.replace(run.experiment.compute, backend=backend)
        run = Run(run.path, dataclasses.replace(run.experiment, compute=compute))
    return LoadedRun(run, params, found)


def train_run(experiment: Experiment, name: str, root: Path | str = "runs", *, progress: bool = False) -> LoadedRun:
    """The finished run of an experiment: opened where <root>/<name>-<run_id> is one, else trained, or trained on."""
    run = runs.open_or_create(Path(root), experiment, name)
    if steps(run)[-1:] != [experiment.train.steps]:
        dataset = data.prepare(experiment, progress=_LOG.info, tokenizer=run.path / "tokenizer.json")
        train(run, dataset, progress=progress, profile=profiler(run, dataset))
    return load_run(run.path)


def profiled_steps(run: Run) -> list[int]:
    """The steps whose head profile lies in the run directory, ascending; their checkpoints may be gone."""
    names = (path.stem.removeprefix("profile-") for path in run.heads.glob("profile-*.parquet"))
    return sorted(int(name) for name in names if name.isdigit())


def _digest(params: Params) -> str:
    """Of every parameter's bytes."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        found.update(np.asarray(leaf).tobytes())
    return found.hexdigest()


def _about(loaded: LoadedRun) -> list[str]:
    """The lines of a run's repr: model, data, training, last metrics, what is saved."""
    e, m = loaded.experiment, loaded.experiment.model
    n_params = sum(leaf.size for leaf in jax.tree.leaves(loaded.params))
    repeats = f", {e.data.repeat_share:.0%} of the windows repeat" if e.data.repeat_share else ""
    batch = f"{e.train.batch_size} × {e.data.seq_len} tokens a step"
    last = {key: x for line in loaded.run.metrics() if line["step"] <= loaded.step for key, x in line.items()}
    units = {
        "loss": "training loss {:.3f} nats/token",
        "eval_loss": "held-out {:.3f}",
        "eval_in_context": "in-context {:+.3f}",
    }
    measured = [text.format(last[key]) for key, text in units.items() if key in last]
    profiled = ", ".join(map(str, profiled_steps(loaded.run))) or "none"
    return [
        f"LoadedRun {loaded.run.name}, step {loaded.step} of {e.train.steps}",
        f"  model        {m.shape}, d_model {m.d_model}, head_dim {m.head_dim}, "
        f"{m.projection}, {m.positions} positions: {n_params:,} parameters",
        f"  data         {e.data.corpus}, {e.data.tokenizer}, vocabulary {m.vocab_size}{repeats}",
        f"  training     {e.optim.name}, learning rate {e.optim.learning_rate:g}, {batch}, seed {e.train.seed}",
        f"  last metrics {', '.join(measured) or 'none yet'}",
        f"  checkpoints  {', '.join(map(str, steps(loaded.run)))} (head profiles: {profiled})",
    ]
