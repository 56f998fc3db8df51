"""From sums over pairs of heads to tables: who is like whom, who could be told from the others, groups and a map."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from andrea_jax.errors import UserError
from andrea_jax.heads.statistics import CHOOSE, REPORT, ratio
from andrea_jax.similarity.engine import Measured, Moments

RIDGE = 0.01  # of the mean variance of the predictors; a tenth or ten times as much moved R² by at most 0.02
# mean JS distance at which groups are no longer joined. In a model of 72 heads it makes three groups: the induction
# heads, the previous-token heads, and heads that rest on BOS; from 0.5 on, the first and the last are one
CUT = 0.35


@dataclass(frozen=True)
class Similarity:
    """heads: a row a head, pairs: a row a pair of heads. JS distances are means over queries, 0 to 1; float32.

    heads: layer, head · like_layer, like_head: the head with the nearest pattern, chosen on the even sequences; js,
    low, high: their distance with its 95% bootstrap interval, and even: the distance to a head that attends evenly, on
    the odd ones · same_layer, same_head: the head with the most similar output, chosen on the even sequences; cka: of
    both outputs on the odd ones · r2: of predicting the head's output from the other heads of its layer, fitted on the
    even sequences, of the odd ones; null for an only head, and below 0 where the tokens are too few for the fit ·
    spread: rms of the output around its mean · group: heads whose patterns are alike (average linkage, cut at CUT),
    null for a head alone · order: place in the tree of groups · x, y: the map.
    pairs: layer_1, head_1, layer_2, head_2, js (all sequences), cka (of outputs, odd sequences).
    """

    heads: pd.DataFrame
    pairs: pd.DataFrame


def summarise(measured: Measured) -> Similarity:
    """Similarity of patterns and of outputs of all heads; UserError where there is only one head.

    CKA: linear, Kornblith et al. 2019, "Similarity of neural network representations revisited", from unbiased HSIC
    over groups of tokens (Nguyen, Raghu and Kornblith 2021). R²: 1 − Σ‖y − ŷ‖² / Σ‖y − ȳ‖² of outputs z·W_O, least
    squares with a ridge of RIDGE times the predictors' mean variance.
    """
    n = len(measured.names)
    if n < 2:
        raise UserError("similarity compares heads, and the model has only one")
    distance, cka = measured.js.mean(axis=0)[:n, :n], [_cka(half) for half in measured.hsic]
    like, same = _nearest(measured.js[CHOOSE, :n, :n].mean(axis=0)), _nearest(-cka[0])
    names, every = np.array(measured.names), np.arange(n)
    reported = measured.js[REPORT]
    near = ratio(reported[:, every, like], np.ones(len(reported)))
    assert near is not None
    tree = hierarchy.linkage(squareform(distance.astype(np.float64), checks=False), "average")
    x, y = classical_mds(distance).T
    columns = {
        "layer": names[:, 0], "head": names[:, 1], "like_layer": names[like, 0], "like_head": names[like, 1],
        "js": near.score, "low": near.low, "high": near.high, "even": reported[:, every, n].mean(axis=0),
        "same_layer": names[same, 0], "same_head": names[same, 1], "cka": cka[1][every, same], **_predicted(measured),
        "group": _groups(tree), "order": np.argsort(hierarchy.leaves_list(tree)), "x": x, "y": y,
    }  # fmt: skip
    return Similarity(_float32(pd.DataFrame(columns)), _pairs(names, distance, cka[1]))


def _groups(tree: np.ndarray) -> pd.api.extensions.ExtensionArray:
    """Of each head its group, counted from 1 in the order of the tree; null for a head alone."""
    joined, leaves = hierarchy.fcluster(tree, CUT, "distance"), hierarchy.leaves_list(tree)
    several = [group for group in dict.fromkeys(joined[leaves].tolist()) if (joined == group).sum() > 1]
    return pd.array([several.index(group) + 1 if group in several else None for group in joined.tolist()], "Int64")


def _float32(table: pd.DataFrame) -> pd.DataFrame:
    return table.astype(dict.fromkeys(table.select_dtypes(np.float64), np.float32))


def _pairs(names: np.ndarray, distance: np.ndarray, cka: np.ndarray) -> pd.DataFrame:
    i, j = np.triu_indices(len(names), 1)
    columns = {"layer_1": names[i, 0], "head_1": names[i, 1], "layer_2": names[j, 0], "head_2": names[j, 1]}
    return _float32(pd.DataFrame({**columns, "js": distance[i, j], "cka": cka[i, j]}))


def _cka(hsic: np.ndarray) -> np.ndarray:
    """HSIC(a, b) / √(HSIC(a, a)·HSIC(b, b)) [head, head]; 0 with a head whose output does not vary."""
    own = np.sqrt(np.maximum(np.diag(hsic), 0))
    size = own[:, None] * own[None]
    return np.divide(hsic, size, out=np.zeros_like(hsic), where=size > 0)


def _nearest(distance: np.ndarray) -> np.ndarray:
    """Of each head the nearest other one, int [head]."""
    return np.where(np.eye(len(distance), dtype=bool), np.inf, distance).argmin(axis=1)


def _predicted(measured: Measured) -> dict[str, np.ndarray]:
    """r2 and spread of every head."""
    r2, spread = [], []
    for (fit, report), metric in zip(measured.moments, measured.metric, strict=True):
        owner = np.repeat(np.arange(len(metric)), metric.shape[1])
        for head, own in enumerate(metric):
            mine = np.flatnonzero(owner == head)
            around_mean = (report.scatter[np.ix_(mine, mine)] * own).sum()  # Σ ‖y − ȳ‖², since y = z·W_O
            spread.append(np.sqrt(max(around_mean, 0) / report.n))
            left = (_residual(fit, report, mine, np.flatnonzero(owner != head)) * own).sum()
            defined = len(metric) > 1 and around_mean > 0
            r2.append(1 - left / around_mean if defined else np.nan)
    return {"r2": np.array(r2), "spread": np.array(spread)}


def _residual(fit: Moments, report: Moments, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Σ (y − ŷ)(y − ŷ)ᵀ over the tokens of `report`, ŷ the prediction from x that `fit` gives; features y and x."""
    predictors = fit.scatter[np.ix_(x, x)]
    ridge = RIDGE * np.trace(predictors) / max(len(x), 1)
    slope = np.linalg.lstsq(predictors + ridge * np.eye(len(x)), fit.scatter[np.ix_(x, y)], rcond=None)[0]
    apart = report.mean - fit.mean
    second = report.scatter + report.n * np.outer(apart, apart)  # around the mean of `fit`, where ŷ = ȳ
    take = np.concatenate([np.eye(len(y)), -slope])  # y − ŷ of (y, x)
    both = np.concatenate([y, x])
    return take.T @ second[np.ix_(both, both)] @ take


def classical_mds(distance: np.ndarray) -> np.ndarray:
    """Points in the plane whose distances are near to `distance` [head, head]: float64 [head, 2] (Torgerson 1952).

    Scaled eigenvectors of −½·J·D²·J, J = I − 1/n, with the largest eigenvalues; the largest coordinate of each is
    positive, so that the same distances give the same map.
    """
    squared = np.asarray(distance, np.float64) ** 2
    centred = squared - squared.mean(axis=0) - squared.mean(axis=1)[:, None] + squared.mean()
    values, vectors = np.linalg.eigh(-centred / 2)
    points = vectors[:, :-3:-1] * np.sqrt(np.maximum(values[:-3:-1], 0))
    return points * np.sign(points[np.abs(points).argmax(axis=0), [0, 1]])
