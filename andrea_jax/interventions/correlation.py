"""Rank correlation of two measures of heads, within layers and over all, with intervals over sequences."""

from collections.abc import Sequence

import numpy as np

from andrea_jax.heads.statistics import resamples

Sums = tuple[np.ndarray, np.ndarray]  # part [sequence, head], whole [sequence]: a measure is Σ part / Σ whole
Interval = tuple[float, float, float]  # value, low, high


def spearman(a: Sums, b: Sums, layers: Sequence[slice]) -> list[tuple[str, Interval, int]]:
    """(scope, (rho, low, high), heads) for "all", "within layers" (the mean over layers) and "layer 0", "layer 1", ...

    layers: the heads of each. Both measures are taken on the same resampled sequences; the bounds are the central 95%
    of the bootstrap. nan where a scope has fewer than two heads, or all its values are equal.
    """
    whole_sample = np.ones((1, len(a[0])))
    weights = np.concatenate([whole_sample, resamples(len(a[0]))])
    x, y = ((weights @ part) / (weights @ whole)[:, None] for part, whole in (a, b))  # [1 + resample, head]
    by_layer = [rank_correlation(x[:, layer], y[:, layer]) for layer in layers]
    some = [rho for rho in by_layer if not np.isnan(rho[0])]
    within = np.mean(some, axis=0) if some else np.full(len(x), np.nan)
    n = x.shape[1]
    found = [("all", _interval(rank_correlation(x, y)), n), ("within layers", _interval(within), n)]
    sizes = [x[0, layer].size for layer in layers]
    return found + [(f"layer {i}", _interval(rho), sizes[i]) for i, rho in enumerate(by_layer)]


def rank_correlation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's rho of every row of [row, head]: Pearson's correlation of ranks, equal values sharing their mean rank.
    nan where a row's values are all equal."""
    from scipy.stats import rankdata  # most of a second to import, and only asked for here

    if x.shape[1] < 2:
        return np.full(len(x), np.nan)
    a, b = (rankdata(values, axis=1) - (values.shape[1] + 1) / 2 for values in (x, y))
    below = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return np.divide((a * b).sum(axis=1), below, out=np.full(len(x), np.nan), where=below > 0)


def _interval(rho: np.ndarray) -> Interval:
    """Of [1 + resample]: the first is the value."""
    if np.isnan(rho[0]):
        return np.nan, np.nan, np.nan
    low, high = np.nanpercentile(rho[1:], [2.5, 97.5])
    return float(rho[0]), float(low), float(high)
