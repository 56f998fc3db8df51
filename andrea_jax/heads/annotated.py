"""Names, tags and syntax: heads against what people annotated, each probe beside what explains it without syntax.

Beside every score: the baseline (causal-uniform attention); the best fixed offset, a rule that puts all of its mass one
distance back, which a syntactic head has to beat by 10 points (Voita et al. 2019, "Analyzing Multi-Head
Self-Attention"); what the head's own offset profile would give; and for names the same probe on capitalised words that
are none.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd

from andrea_jax import config
from andrea_jax.data.annotated_windows import AnnotatedWindows
from andrea_jax.heads import statistics, tables, targets
from andrea_jax.heads.scores import Measured, Progress, measure
from andrea_jax.heads.statistics import CHOOSE, REPORT
from andrea_jax.heads.streams import LONGEST_OFFSET, offset_name, offsets
from andrea_jax.heads.tables import Result
from andrea_jax.heads.targets import Targets
from andrea_jax.model import Params

MOST_FREQUENT = 6  # tags, and relations in each direction, that have a probe
QUERIES = 64  # a window, for tags: a tag has many keys
MARGIN = 0.1  # Voita et al.: a syntactic head beats the best fixed offset by this much
CONTROL = "control of "  # + probe: the same on capitalised words that are no names


@dataclass(frozen=True)
class Annotated:
    """table: a row a probe, layer and head, columns of `Profile.table` · best: a row a probe, the head with the
    largest score − baseline on the even windows, figures from the odd ones. Both with four more, of the odd windows:
    offset, offset_score: the best fixed offset, chosen on the even ones, and the share of queries it gets right ·
    own_offsets: the score that the head's offset profile would give by itself (exact to 32 back, even beyond) ·
    control_baseline: causal-uniform attention on the control · beats_offset: score − offset_score >= 0.1, and the
    score's interval is above the baseline. Null where they do not exist. named_by: see `data.annotated.Annotation`."""

    table: pd.DataFrame
    best: pd.DataFrame
    named_by: str


def profile(
    model: config.Model,
    params: Params,
    windows: AnnotatedWindows,
    *,
    dtype: str = "float32",
    backend: str = "auto",
    progress: Progress | None = None,
) -> Annotated:
    """All probes of `probes(windows)` in one pass over them."""
    asked = probes(windows)
    distances = offsets(windows.tokens.shape[1])
    by_offset = {offset_name(d): _real(targets.fixed_offset(windows.tokens, d), windows) for d in distances}
    settings = {"dtype": dtype, "backend": backend, "progress": progress}
    measured = measure(model, params, windows.tokens, asked | by_offset, **settings)
    parts = [summary(name, asked[name], measured) for name in asked if not name.startswith(CONTROL)]
    table, best = (pd.concat(frames, ignore_index=True) for frames in zip(*parts, strict=True))
    there = table["head"].to_numpy() < np.array(model.layer_heads)[table["layer"]]
    return Annotated(table.loc[there].reset_index(drop=True), best, windows.named_by)


def probes(windows: AnnotatedWindows) -> dict[str, Targets]:
    """Every probe's targets; that of names also on capitalised words that are none, as "control of <probe>"."""
    is_name = windows.words.name >= 0
    capital = np.array([form[:1].isupper() for form in windows.words.form]) & ~is_name
    words = np.stack([windows.words.sequence, windows.words.first, windows.words.last], axis=1)
    names = list(zip(*windows.names.T.tolist(), windows.surface.tolist(), strict=True))
    others = list(zip(*words[capital].T.tolist(), windows.words.form[capital].tolist(), strict=True))
    found = {}
    for where in ("before", "inside"):
        for which in ("recent", "earlier"):
            probe = f"{which}_name_{where}"
            found[probe] = earlier(names, names, where, recent=which == "recent")
            found[CONTROL + probe] = earlier(names, others, where, recent=which == "recent")
    found |= {"same_name": same_surface(names), CONTROL + "same_name": same_surface(others)}
    found |= {f"tag {tag}": tagged(windows, tag) for tag in _frequent(windows.words.tag)}
    for direction, up in (("head", True), ("dependent", False)):
        every, relation = dependency(windows, up)
        found[f"to_{direction}"] = every
        found |= {f"to_{direction} {name}": every.where(relation == name) for name in _frequent(relation)}
    return found


Span = tuple[int, int, int, str]  # sequence, first and last position, surface


def earlier(asked: list[Span], sought: list[Span], where: str, recent: bool) -> Targets:
    """The tokens of all of `sought` that end before the query, or of the most recent one.

    The query is the token before each of `asked`, where it has to be predicted (where = "before"), or its first token
    ("inside").
    """
    triples = set()
    by_sequence = _by_sequence(sought)
    for sequence, first, *_ in asked:
        query = first - (where == "before")
        past = [span for span in by_sequence.get(sequence, []) if span[2] < query]
        for _, start, end, _ in past[-1:] if recent else past:
            triples |= {(sequence, query, key) for key in range(start, end + 1)}
    return _targets(triples)


def same_surface(spans: list[Span]) -> Targets:
    """From each token of a span: the tokens of every earlier one with the same text."""
    triples = set()
    for of_sequence in _by_sequence(spans).values():
        for i, (sequence, first, last, surface) in enumerate(of_sequence):
            for _, start, end, other in of_sequence[:i]:
                if other == surface and end < first:
                    queries, keys = range(first, last + 1), range(start, end + 1)
                    triples |= {(sequence, query, key) for query in queries for key in keys}
    return _targets(triples)


def tagged(windows: AnnotatedWindows, tag: str) -> Targets:
    """All earlier tokens of words with the tag, for at most 64 queries a window, evenly spread."""
    has_tag = np.zeros(windows.tokens.shape, bool)
    chosen = windows.words.tag == tag
    places = (windows.words.sequence, windows.words.first, windows.words.last)
    for sequence, first, last in zip(*(x[chosen].tolist() for x in places), strict=True):
        has_tag[sequence, first : last + 1] = True
    triples = []
    for sequence, length in enumerate(windows.length.tolist()):
        query = np.unique(np.linspace(1, length - 1, min(QUERIES, length - 1)).round().astype(int))
        i, key = np.nonzero(has_tag[sequence] & (np.arange(has_tag.shape[1]) < query[:, None]))
        triples.append(np.stack([np.full(len(i), sequence), query[i], key], axis=1))
    return Targets(*np.concatenate(triples).T.astype(np.int32))


def dependency(windows: AnnotatedWindows, up: bool) -> tuple[Targets, np.ndarray]:
    """From the last token of a word to that of its syntactic head (up), or of its dependents, where that is earlier.

    Also the relation of each triple. Without punctuation, whose head is a convention.
    """
    words = windows.words
    child = np.flatnonzero((words.head >= 0) & (words.relation != "punct"))
    ends = words.last[child], words.last[words.head[child]]
    query, key = ends if up else ends[::-1]
    relation, sequence = words.relation[child], words.sequence[child]
    triples, first = np.unique(np.stack([sequence, query, key]), axis=1, return_index=True)
    past = triples[2] < triples[1]
    return Targets(*triples[:, past].astype(np.int32)), relation[first][past]


def _frequent(values: np.ndarray) -> list[str]:
    return [str(value) for value, _ in Counter(values.tolist()).most_common(MOST_FREQUENT)]


def _by_sequence(spans: list[Span]) -> dict[int, list[Span]]:
    found: dict[int, list[Span]] = {}
    for span in sorted(spans):
        found.setdefault(span[0], []).append(span)
    return found


def _targets(triples: set[tuple[int, int, int]]) -> Targets:
    triples = {triple for triple in triples if triple[2] <= triple[1]}
    return Targets(*np.array(sorted(triples), np.int32).reshape(-1, 3).T)


def _real(found: Targets, windows: AnnotatedWindows) -> Targets:
    """Without the queries of padding."""
    return found.where(found.query < windows.length[found.sequence])


def summary(probe: str, asked: Targets, measured: Measured) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of `Annotated.table` and of `.best` for one probe; `measured` also has the fixed offsets."""
    sums = measured.probes[probe]
    control = measured.probes.get(CONTROL + probe)
    result = Result(sums, () if control is None else (control,))
    table, best = tables.rows(probe, result), tables.best(probe, result)
    hits, far = rule_hits(asked, len(sums.n))
    n = sums.n[REPORT].sum()
    more = {"offset": pd.NA, "offset_score": np.nan, "control_baseline": np.nan}
    own = np.full(sums.mass.shape[1:], np.nan, np.float32)
    if n and sums.n[CHOOSE].any():
        distance = int(hits[CHOOSE].sum(axis=0).argmax())
        more |= {"offset": distance, "offset_score": hits[REPORT, distance].sum() / n}
        own = _own_offsets(hits[REPORT].sum(axis=0) / n, far[REPORT].sum() / n, measured)
    if control is not None and control.n[REPORT].any():
        more["control_baseline"] = statistics.baseline(control.on(REPORT))
    return _with(table, more, own), _with(best, more, own)


def rule_hits(asked: Targets, n: int) -> tuple[np.ndarray, np.ndarray]:
    """hits [sequence, distance 0 to 32]: how many queries of a sequence have a target that far back · far [sequence]:
    the mass on targets farther away of a head that attends evenly to all that is farther than 32."""
    distance = asked.query - asked.key
    near = distance <= LONGEST_OFFSET
    hits = np.zeros((n, LONGEST_OFFSET + 1))
    np.add.at(hits, (asked.sequence[near], distance[near]), 1)
    return hits, np.bincount(asked.sequence[~near], 1 / (asked.query[~near] - LONGEST_OFFSET - 1), n)


def _own_offsets(hits: np.ndarray, far: float, measured: Measured) -> np.ndarray:
    """The score that each head's offset profile gives without looking at the words: float32 [n_layer, n_head]."""
    found = [sums for name, sums in measured.probes.items() if name.startswith("offset ") and sums.n.any()]
    by_distance = np.stack([sums.mass.sum(axis=0) / sums.n.sum() for sums in found])
    beyond = np.clip(statistics.off_bos(found[0]) - by_distance.sum(axis=0), 0, None)
    return (np.tensordot(hits[: len(found)], by_distance, axes=1) + far * beyond).astype(np.float32)


def _with(rows: pd.DataFrame, more: dict, own: np.ndarray) -> pd.DataFrame:
    given = rows["layer"].notna()
    layer, head = (rows.loc[given, name].to_numpy(int) for name in ("layer", "head"))
    values = np.full(len(rows), np.nan, np.float32)
    values[given.to_numpy()] = own[layer, head]
    columns = {name: value for name, value in more.items() if name != "offset"}
    beats = (rows["score"] - more["offset_score"] >= MARGIN) & (rows["low"] > rows["baseline"])
    offset = pd.array([more["offset"]] * len(rows), dtype="Int64")
    return rows.assign(**columns, offset=offset, own_offsets=values, beats_offset=beats)
