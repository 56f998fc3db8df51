"""The viewer of a trained run: which two models to show, what to call them, which badges there are."""

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import pandas as pd

from andrea_jax.config import Experiment
from andrea_jax.data import Tokenizer
from andrea_jax.errors import UserError
from andrea_jax.heads import Profile
from andrea_jax.model import Params
from andrea_jax.runs import Run
from andrea_jax.viewer.build import Source, ablated, view_models
from andrea_jax.viewer.page import View


class Loaded(Protocol):
    """What is used of a `LoadedRun`."""

    @property
    def run(self) -> Run: ...
    @property
    def params(self) -> Params: ...
    @property
    def step(self) -> int: ...
    @property
    def experiment(self) -> Experiment: ...
    @cached_property
    def tokenizer(self) -> Tokenizer: ...
    def tokens(self, text: str) -> np.ndarray: ...


def view_run(
    loaded: Loaded,
    text: str,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    against: Loaded | None = None,
    ablate: tuple[int, int] | None = None,
) -> View:
    """See `LoadedRun.view`."""
    if against is not None and ablate is not None:
        raise UserError("view: give against or ablate, not both; a view has two sides")
    if ablate is not None and not (isinstance(ablate, tuple | list) and len(ablate) == 2):
        raise UserError(f"ablate = {ablate!r}: must be a pair (layer, head)")
    tokens, other = loaded.tokens(text), None
    if against is not None:
        if not np.array_equal(tokens, against.tokens(text)):
            raise UserError(f"against: {against.run.path} cuts the text into other tokens than {loaded.run.path}")
        name, other_name = _names(loaded, against)
        other = _source(against, other_name)
    else:
        name = "intact"
    source = _source(loaded, name)
    if ablate is not None:
        other = ablated(source, *ablate)
    return view_models(
        source,
        tokens,
        loaded.tokenizer,
        layers=layers,
        heads=heads,
        against=other,
        scores=_scores(loaded),
        title=f"{loaded.run.name}, step {loaded.step}",
    )


def _source(loaded: Loaded, name: str) -> Source:
    e = loaded.experiment
    return Source(name, e.model, loaded.params, e.compute.dtype, e.compute.backend)


def _scores(loaded: Loaded) -> pd.DataFrame | None:
    """The table of the checkpoint's head profile, where it was saved; a view does not score heads by itself."""
    saved = (loaded.run.heads / f"profile-{loaded.step}.parquet").is_file()
    return Profile.load(loaded.run.heads, loaded.step).table if saved else None


def _names(a: Loaded, b: Loaded) -> tuple[str, str]:
    """What tells two runs apart: their names, steps and projections, as far as they differ."""
    marks = [(run.run.name, f"step {run.step}", run.experiment.model.projection.replace("_", "-")) for run in (a, b)]
    differ = [i for i in range(3) if marks[0][i] != marks[1][i]] or [0]
    first, second = (", ".join(mark[i] for i in differ) for mark in marks)
    return first, second
