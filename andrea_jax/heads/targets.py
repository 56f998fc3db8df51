"""Target sets: which keys a query should attend to, for every probe. Pure numpy, checkable by hand.

A probe is a set of target keys for each query; a query without targets is not counted. All functions take tokens
int [sequence, position] that start with BOS, and give `Targets`. BOS is a target of `fixed_offset` and `first_token`
only, where its position is meant and not its content.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from andrea_jax.config import BOS


@dataclass(frozen=True)
class Targets:
    """(sequence, query, key) triples: parallel int32 [pair] arrays, each triple once, key <= query."""

    sequence: np.ndarray
    query: np.ndarray
    key: np.ndarray

    def keys(self, sequence: int, query: int) -> set[int]:
        """The targets of one query."""
        return set(self.key[(self.sequence == sequence) & (self.query == query)].tolist())

    def where(self, chosen: np.ndarray) -> "Targets":
        """The triples for which `chosen`, bool [pair], is true."""
        return Targets(self.sequence[chosen], self.query[chosen], self.key[chosen])

    def counted(self, n_sequence: int, seq_len: int) -> np.ndarray:
        """Which queries have a target: bool [sequence, query]."""
        counted = np.zeros((n_sequence, seq_len), bool)
        counted[self.sequence, self.query] = True
        return counted


def check_single_documents(tokens: np.ndarray) -> None:
    """ValueError unless every sequence is BOS and one document: probes must not cross a document's boundary."""
    if (tokens[:, 0] != BOS).any():
        row = int(np.argmax(tokens[:, 0] != BOS))
        raise ValueError(f"every sequence must start with BOS (id {BOS}), and sequence {row} with id {tokens[row, 0]}")
    if (tokens[:, 1:] == BOS).any():
        row, position = np.argwhere(tokens[:, 1:] == BOS)[0]
        raise ValueError(f"sequence {row} has a second BOS at position {position + 1}: it crosses documents")


def fixed_offset(tokens: np.ndarray, offset: int) -> Targets:
    """{q − offset}. At offset 0 without row 0, which can only attend to itself."""
    n, length = tokens.shape
    query = np.arange(max(offset, 1), length)
    return _every_sequence(n, query, query - offset)


def previous_token(tokens: np.ndarray) -> Targets:
    """{q − 1}, BOS included."""
    return fixed_offset(tokens, 1)


def current_token(tokens: np.ndarray) -> Targets:
    """{q} for q >= 1."""
    return fixed_offset(tokens, 0)


def first_token(tokens: np.ndarray) -> Targets:
    """{0} for q >= 1: the usual attention sink."""
    query = np.arange(1, tokens.shape[1])
    return _every_sequence(len(tokens), query, np.zeros_like(query))


def duplicate_token(tokens: np.ndarray) -> Targets:
    """Earlier k >= 1 with x_k = x_q."""
    pairs = [np.stack([np.full(len(q), i), q, k]) for i, (q, k) in enumerate(_same_earlier(tokens))]
    return _targets(*np.concatenate(pairs, axis=1))


def latest(tokens: np.ndarray, wanted: np.ndarray) -> Targets:
    """{the most recent k < q with wanted[x_k]}; wanted: bool [vocab], false for BOS.

    One target a query; queries before the first such token have none. The probe `delimiter` wants punctuation,
    `newline` the tokens that hold a newline. Their base rate is the usual baseline, here the mean of 1/(q + 1).
    The position in the line has no probe of its own: a head that looks where the line began is found by `newline`, one
    that looks a fixed distance back by the offset profile.
    """
    position = np.where(wanted[tokens], np.arange(tokens.shape[1]), -1)
    before = np.maximum.accumulate(position, axis=1)[:, :-1]  # the latest at q − 1, of q = 1, 2, …
    sequence, previous = np.nonzero(before >= 0)
    return _targets(sequence, previous + 1, before[sequence, previous])


def induction_all(tokens: np.ndarray) -> Targets:
    """The followers of all earlier occurrences: k + 1 for k >= 1 with x_k = x_q and k + 1 < q.

    Olsson et al. 2022, "In-context learning and induction heads", with every earlier copy counted.
    """
    same = duplicate_token(tokens)
    followers = _targets(same.sequence, same.query, same.key + 1)
    return followers.where(followers.key < followers.query)  # never the query itself


def induction(tokens: np.ndarray) -> Targets:
    """The follower of x_q's only earlier occurrence: the first repeat. Queries with several occurrences do not count.

    On [BOS] and copies of a block of distinct tokens, these are exactly the queries of the second copy.
    """
    same = duplicate_token(tokens)
    earlier = np.zeros(tokens.shape, int)
    np.add.at(earlier, (same.sequence, same.query), 1)
    every = induction_all(tokens)
    return every.where(earlier[every.sequence, every.query] == 1)


def wrong_offset(right: Targets, offset: int) -> Targets:
    """The control of induction: {q − offset} for the queries of `right`, where that is no target of q, nor BOS.

    A head that follows content scores nothing here; one that looks a fixed distance back passes the induction probe
    at the period that fits it and is caught at this one.
    """
    sequence, query = np.unique(np.stack([right.sequence, right.query]), axis=1)
    wrong = _targets(sequence, query, query - offset)
    return wrong.where((wrong.key > 0) & ~np.isin(_code(wrong), _code(right)))


def _code(targets: Targets) -> np.ndarray:
    """One number a triple."""
    sequence, query, key = (x.astype(np.int64) for x in (targets.sequence, targets.query, targets.key))
    return (sequence << 40) | (query << 20) | (key & 0xFFFFF)


def _same_earlier(tokens: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(q, k) of each sequence with x_q = x_k and 1 <= k < q, sorted; in memory for the pairs, never T × T."""
    for row in tokens:
        place = 1 + np.argsort(row[1:], kind="stable")  # the places of each id together, in order
        starts = np.flatnonzero(np.diff(row[place], prepend=-1))
        first = np.repeat(starts, np.diff(starts, append=len(place)))  # index in `place` of the id's first
        earlier = np.arange(len(place)) - first  # places of the same id before each
        query = np.repeat(place, earlier)
        nth = np.arange(len(query)) - np.repeat(np.cumsum(earlier) - earlier, earlier)
        key = place[np.repeat(first, earlier) + nth]
        order = np.lexsort((key, query))
        yield query[order], key[order]


def _every_sequence(n: int, query: np.ndarray, key: np.ndarray) -> Targets:
    return _targets(np.repeat(np.arange(n), len(query)), np.tile(query, n), np.tile(key, n))


def _targets(sequence: np.ndarray, query: np.ndarray, key: np.ndarray) -> Targets:
    return Targets(sequence.astype(np.int32), query.astype(np.int32), key.astype(np.int32))
