"""Activation patching and path patching: what of a difference between two prompts goes through which head.

Two batches of prompts with the same length, clean and corrupted, and a metric of the logits. `patch` puts z of one run
into the other, head by head or position by position (Vig et al. 2020; Meng et al. 2022, "Locating and Editing Factual
Associations in GPT", section 2.1). `path_patch` lets a change of one head reach only the queries, keys or values of
others (Wang et al. 2022, "Interpretability in the Wild", section 3.1; Goldowsky-Dill et al. 2023, "Localizing Model
Behavior with Path Patching"). Heads that only look at their prompt in the same way in both have no effect here, however
important they are.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array

from andrea_jax.config import Model
from andrea_jax.errors import UserError, did_you_mean
from andrea_jax.heads import statistics
from andrea_jax.interventions.damage import every_head
from andrea_jax.interventions.edits import (
    Progress,
    Swap,
    batches,
    edited,
    intact,
    recorded,
    shape_of_calls,
    sweep,
)
from andrea_jax.model import Params
from andrea_jax.training.step import token_losses

type By = Literal["head", "position", "head_position"]
BY: tuple[By, ...] = ("head", "position", "head_position")
ALL, NONE = -1, -2  # in place of the number of a layer, head or position


class LogitDifference(NamedTuple):
    """logit of `answer` − logit of `wrong` after the token at `position`; all int [batch]."""

    answer: Array | np.ndarray
    wrong: Array | np.ndarray
    position: Array | np.ndarray

    def __call__(self, logits: Array) -> Array:
        """logits [batch, seq, vocab] -> float32 [batch]."""
        here = jnp.take_along_axis(logits, jnp.asarray(self.position)[:, None, None], axis=1)[:, 0].astype(jnp.float32)
        answer, wrong = (jnp.take_along_axis(here, jnp.asarray(x)[:, None], axis=1)[:, 0] for x in self[:2])
        return answer - wrong


class Loss(NamedTuple):
    """Mean −log p(target) over the asked positions, nats: targets int [batch, seq], asked bool [batch, seq]."""

    targets: Array | np.ndarray
    asked: Array | np.ndarray

    def __call__(self, logits: Array) -> Array:
        """logits [batch, seq, vocab] -> float32 [batch]."""
        asked = jnp.asarray(self.asked, jnp.float32)
        return (token_losses(logits, jnp.asarray(self.targets)) * asked).sum(axis=1) / asked.sum(axis=1)


type Metric = LogitDifference | Loss


def patch(
    config: Model,
    params: Params,
    clean: np.ndarray,
    corrupted: np.ndarray,
    metric: Metric,
    *,
    by: By = "head",
    restore: bool = True,
    dtype: str = "float32",
    backend: str = "auto",
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Clean z into the corrupted run (restore), or corrupted z into the clean run; one compiled program for all places.

    clean, corrupted: int [prompt, seq]. by "head": each head, at all positions; "position": all heads of a layer at
    each position; "head_position": each head at each position. A row a place, in columns layer, head, position (those
    that `by` has) · metric: its mean over prompts · effect, low, high: metric − that of the run patched into, with its
    95% bootstrap interval over prompts (null for one) · share: of the way to the other run (1: all of it; null where
    they are equal). UserError where the two batches differ in shape or the metric does not fit them.
    """
    if by not in BY:
        raise UserError(f'by = "{by}": must be one of {", ".join(BY)}{did_you_mean(by, BY)}')
    check_pair(clean, corrupted, metric)
    source, target = (tokens.astype(np.int32) for tokens in ((clean, corrupted) if restore else (corrupted, clean)))
    places, settings = _places(config, by, clean.shape[1]), (config, str(jnp.dtype(dtype)), backend)

    def prepare(rows: np.ndarray) -> Callable[[np.ndarray], Array]:
        z = recorded(*settings, ("z",), params, source[rows])["z"]
        own, no = recorded(*settings, ("q", "k"), params, target[rows]), jnp.asarray(False)
        arrays, read = (params, target[rows], Swap(z, no, own["q"], own["k"], no)), of_rows(metric, rows)
        return lambda edits: edited(*settings, *arrays, _masks(config, places[edits], clean.shape[1]), read)

    found = sweep(config, target, len(places), prepare, progress)
    columns = {name: places[1:, i] for i, name in enumerate(("layer", "head", "position"))}
    columns = {name: numbers for name, numbers in columns.items() if (numbers != ALL).all()}
    return effects(found, untouched(settings, params, source, metric), columns)


def untouched(settings: tuple[Model, str, str], params: Params, tokens: np.ndarray, metric: Metric) -> np.ndarray:
    """The metric of an unpatched run over tokens int32 [prompt, seq]: float32 [prompt]."""
    size, _ = shape_of_calls(settings[0], tokens.shape, 1)
    parts = [intact(*settings, params, tokens[rows], of_rows(metric, rows)) for rows in batches(len(tokens), size)]
    return np.concatenate(parts)[: len(tokens)]


def check_pair(clean: np.ndarray, corrupted: np.ndarray, metric: Metric) -> None:
    if clean.ndim != 2 or clean.shape != corrupted.shape:
        shapes = f"{list(clean.shape)} and {list(corrupted.shape)}"
        text = "must both be tokens [prompt, seq] of one shape, since z is exchanged position by position"
        raise UserError(f"clean and corrupted {text}, not {shapes}")
    for name, value in metric._asdict().items():
        expected = clean.shape if isinstance(metric, Loss) else clean.shape[:1]
        if np.shape(value) != expected:
            raise UserError(f"metric: {name} must have the shape {list(expected)}, not {list(np.shape(value))}")


def of_rows(metric: Metric, rows: np.ndarray) -> Metric:
    """The metric of some of the prompts."""
    return type(metric)(*(np.asarray(value)[rows] for value in metric))


def _places(config: Model, by: By, seq: int) -> np.ndarray:
    """(layer, head, position), int [1 + place, 3]; the first is nowhere."""
    positions = [ALL] if by == "head" else range(seq)
    heads = [(layer, ALL) for layer in range(config.n_layer)] if by == "position" else every_head(config)
    return np.array([(NONE,) * 3, *((layer, head, position) for layer, head in heads for position in positions)])


def _masks(config: Model, places: np.ndarray, seq: int) -> np.ndarray:
    """bool [place, n_layer, seq, n_head]."""
    axes = (config.n_layer, config.n_head, seq)
    layer, head, position = (
        np.isin(places[:, [i]], ALL) | (places[:, [i]] == np.arange(n)) for i, n in enumerate(axes)
    )
    return layer[:, :, None, None] & position[:, None, :, None] & head[:, None, None, :]


def effects(found: np.ndarray, other: np.ndarray, places: dict[str, np.ndarray]) -> pd.DataFrame:
    """The table of `patch`, from the metric: found [1 + place, prompt], first untouched; other [prompt], of the other
    run."""
    values = found.astype(np.float64)
    base, ones = values[0], np.ones(found.shape[1])
    estimate = statistics.ratio((values[1:] - base[None]).T, ones)
    assert estimate is not None
    gap = other.mean(dtype=np.float64) - base.mean()
    low, high = (x if len(base) > 1 else np.full_like(x, np.nan) for x in (estimate.low, estimate.high))
    figures = {"metric": values[1:].mean(axis=1), "effect": estimate.score, "low": low, "high": high}
    share = estimate.score / gap if gap else np.full(len(estimate.score), np.nan)
    return pd.DataFrame({**places, **figures, "share": share}).astype(dict.fromkeys(("metric", "share"), np.float32))
