"""The bracket probes: their targets, and heads against simple rules on easy and hard pairs.

The question is asked at the token before the closer, where the model has to predict it, and apart from that at the
closer itself; `open_bracket` asks everywhere inside brackets. The nearest opener is the match of most closers, so a
score means little without the pairs on which the rules fail.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from andrea_jax import data
from andrea_jax.data import BracketWindows, Dataset
from andrea_jax.heads import statistics
from andrea_jax.heads.scores import Measured, Sums
from andrea_jax.heads.statistics import CHOOSE, REPORT
from andrea_jax.heads.streams import Stream
from andrea_jax.heads.targets import Targets

ASKED = {"bracket": 1, "bracket_at_closer": 0}  # how many tokens before the closer
WANTED_HARDEST = 500  # pairs that report; fewer make a score on the hardest pairs uncertain
MOST_WINDOWS = 32  # times n_sequences, to find them


@dataclass(frozen=True)
class BracketStream(Stream):
    """`windows.reason` says why there are no tokens, where there are none."""

    windows: BracketWindows


def stream(dataset: Dataset, seq_len: int, n: int, seed: int, most: int = MOST_WINDOWS) -> BracketStream:
    """Held-out Python windows: n, and more, up to `most` times n, until the half that reports holds 500 of the hardest
    pairs."""
    found = data.bracket_windows(dataset, seq_len, most * n, seed)
    hardest = np.bincount(found.sequence[found.hardest], minlength=len(found.tokens))
    hardest[CHOOSE] = 0
    n_used = max(n, int(np.searchsorted(hardest.cumsum(), WANTED_HARDEST)) + 1)
    if n_used < len(found.tokens):
        found = data.bracket_windows(dataset, seq_len, n_used, seed)
    targets = {probe: matches(found, probe) for probe in ASKED} | {"open_bracket": open_bracket(found)}
    return BracketStream(found.tokens, targets, found)


def kinds(windows: BracketWindows) -> dict[str, np.ndarray]:
    """bool [pair] of each kind of pairs: all, hard, hardest, and by depth (1 = outermost) and distance (tokens)."""
    depth, distance = windows.depth, windows.distance
    return {
        "all": np.ones(windows.n, bool),
        "hard": windows.hard,
        "hardest": windows.hardest,
        "depth 1": depth == 1,
        "depth 2": depth == 2,
        "depth 3 and more": depth >= 3,
        "distance below 8": distance < 8,
        "distance 8 to 31": (distance >= 8) & (distance < 32),
        "distance 32 and more": distance >= 32,
    }


def matches(windows: BracketWindows, probe: str) -> Targets:
    """{the matching opener}, for every pair."""
    return Targets(windows.sequence, windows.closer - ASKED[probe], windows.opener)


def open_bracket(windows: BracketWindows) -> Targets:
    """{the innermost unclosed opener}, for every position between an opener and its closer, where it is in the window.

    A position in two overlapping windows is asked in both.
    """
    sequence, query = np.nonzero(windows.innermost >= 0)
    key = windows.innermost[sequence, query]
    return Targets(sequence.astype(np.int32), query.astype(np.int32), key)


def openers(windows: BracketWindows) -> Targets:
    """All openers before each closer, closed since or not: what a head chooses among. First as asked for "bracket"."""
    pair, place = np.nonzero(windows.openers >= 0)
    key = np.tile(windows.openers[pair, place], len(ASKED))
    query = np.concatenate([windows.closer[pair] - before for before in ASKED.values()])
    return Targets(np.tile(windows.sequence[pair], len(ASKED)), query, key)


def rules(windows: BracketWindows, probe: str) -> dict[str, np.ndarray]:
    """The mass that each rule puts on the match: float64 [pair]. Rules with several candidates spread evenly."""
    query = windows.closer - ASKED[probe]
    return {
        "nearest opener": (~windows.hard).astype(float),
        "nearest of its type": (~windows.hardest).astype(float),
        "uniform of its type": 1 / (windows.same_type >= 0).sum(axis=1),
        "uniform unclosed": 1 / (windows.unclosed >= 0).sum(axis=1),
        "previous token": (windows.opener == query - 1).astype(float),
        "causal uniform": 1 / (query + 1),
    }


def table(windows: BracketWindows, measured: Measured) -> pd.DataFrame:
    """The best head and every rule on every kind of pairs, on the sequences that did not choose the head.

    Columns probe (where it is asked), pairs, name, is_head, score, low, high, n (pairs). A head has two rows: "head
    5.7", its mass on the match, and "head 5.7, of openers", the share of its mass on all openers before the closer
    (heads park mass on BOS), pair by pair. score is null where n is 0. The head is the best on all pairs of the other
    sequences. `measured.listed` are the masses on `openers(windows)`.
    """
    rows = []
    for i, probe in enumerate(ASKED if windows.n else ()):
        layer, head = _best(measured.probes[probe])
        mass, share = _on_match(windows, np.split(measured.listed[:, layer, head], len(ASKED))[i])
        scored = {f"head {layer}.{head}": mass, f"head {layer}.{head}, of openers": share}
        for pairs, chosen in kinds(windows).items():
            n = np.bincount(windows.sequence[chosen], minlength=len(windows.tokens))[REPORT]
            for name, right in (scored | rules(windows, probe)).items():
                total = np.bincount(windows.sequence[chosen], right[chosen], len(windows.tokens))[REPORT]
                row = {"probe": probe, "pairs": pairs, "name": name, "is_head": name in scored, "n": int(n.sum())}
                rows.append(row | _figures(total, n))
    return pd.DataFrame(rows, columns=["probe", "pairs", "name", "is_head", "score", "low", "high", "n"])


def _on_match(windows: BracketWindows, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A head's mass on the match, and its share of that on all openers: [pair]; from its mass on each opener."""
    is_opener = windows.openers >= 0
    on_openers = np.zeros(windows.openers.shape)
    on_openers[is_opener] = mass
    on_match = on_openers[windows.openers == windows.opener[:, None]]
    total = on_openers.sum(axis=1)
    return on_match, np.divide(on_match, total, out=np.zeros_like(total), where=total > 0)


def _best(sums: Sums) -> tuple[int, int]:
    return statistics.best_head(sums.on(CHOOSE).mass.sum(axis=0, dtype=np.float64))


def _figures(part: np.ndarray, whole: np.ndarray) -> dict[str, float | None]:
    found = statistics.ratio(part, whole)
    return {name: None if found is None else float(getattr(found, name)) for name in ("score", "low", "high")}
