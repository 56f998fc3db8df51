"""From sums a sequence to scores: ratios, bootstrap intervals, and choosing on one half to report on the other."""

import functools
import math
from typing import NamedTuple

import numpy as np

from andrea_jax.heads.scores import Sums

RESAMPLES = 1000
CHOOSE = slice(0, None, 2)  # the sequences with an even index choose the best head ...
REPORT = slice(1, None, 2)  # ... and the others report its score


class Estimate(NamedTuple):
    """A score and the bounds of the central 95% of its bootstrap, float32, one for each head."""

    score: np.ndarray
    low: np.ndarray
    high: np.ndarray


def estimate(sums: Sums) -> Estimate | None:
    """Σ mass / Σ queries [n_layer, n_head] with its interval, or None (undefined) where no query has a target."""
    return ratio(sums.mass, sums.n)


def ratio(part: np.ndarray, whole: np.ndarray) -> Estimate | None:
    """Σ part / Σ whole over sequences, with the percentile bootstrap over sequences (Efron 1979).

    part [sequence, ...]; whole of the same shape, or [sequence] (shared by all heads). None (undefined) where a
    denominator is 0. Resamples with a denominator of 0 are left out; all heads share the same resamples.
    """
    above, below = (x.reshape(len(x), math.prod(x.shape[1:])).astype(np.float64) for x in (part, whole))
    if not (below.sum(axis=0) > 0).all():
        return None
    draws = resamples(len(part))
    resampled, resampled_below = draws @ above, draws @ below
    usable = (resampled_below > 0).all(axis=1)
    low, high = np.percentile(resampled[usable] / resampled_below[usable], [2.5, 97.5], axis=0)
    score = above.sum(axis=0) / below.sum(axis=0)
    return Estimate(*(x.astype(np.float32).reshape(part.shape[1:]) for x in (score, low, high)))


@functools.lru_cache(maxsize=8)
def resamples(n: int) -> np.ndarray:
    """How often each of n sequences is drawn into each resample: float64 [resample, sequence]."""
    return np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(np.float64)


def baseline(sums: Sums) -> float:
    """The score of causal-uniform attention on the same queries: mean of |targets| / (q + 1)."""
    return float(sums.uniform.sum() / sums.n.sum())


def off_bos(sums: Sums) -> np.ndarray:
    """Mean mass that is not on position 0, over the counted queries: float32 [n_layer, n_head]."""
    return (sums.off_bos.sum(axis=0, dtype=np.float64) / sums.n.sum()).astype(np.float32)


def best_head(excess: np.ndarray) -> tuple[int, int]:
    """(layer, head) of the largest value of [n_layer, n_head], the first of equals; nan: there is no such head."""
    layer, head = np.unravel_index(int(np.nanargmax(excess)), excess.shape)
    return int(layer), int(head)
