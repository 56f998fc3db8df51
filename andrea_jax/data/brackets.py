"""Gold bracket pairs in held-out Python text, placed on the tokens of windows.

Which opener a closer matches comes from Python's own `tokenize`, so brackets in strings and comments do not count
(nor those inside f-strings, whatever the Python version). The nearest opener is the match of most closers, so every
closer carries what simple rules would say, and `hard` and `hardest` pick those on which the rules fail.
"""

import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from token import tok_name
from typing import NamedTuple

import numpy as np

from andrea_jax.config import BOS
from andrea_jax.data.packing import Dataset, Documents

_OPENERS, _CLOSERS = "([{", ")]}"


class _Closer(NamedTuple):
    """A closer at position `at` of its window, `depth` deep, and the tokens before it that hold openers; the last
    unclosed one is its match."""

    at: int
    depth: int
    openers: np.ndarray
    same_type: np.ndarray
    unclosed: np.ndarray


class _Window(NamedTuple):
    """ids without BOS, the innermost unclosed opener of each of its positions, and the closers to score."""

    ids: np.ndarray
    innermost: np.ndarray
    closers: list[_Closer]


@dataclass(frozen=True)
class BracketWindows:
    """Windows of Python text, and each closer in them whose opener lies in the same window.

    tokens: int32 [sequence, seq_len], BOS first · innermost: int32 [sequence, seq_len], for each position the last
    opener before it whose closer comes after it, whichever window scores that pair; -1 where there is none, or where it
    lies before the window. A bracket stands inside the pair around its own. The others are parallel, one row a closer;
    positions count from the window's BOS; openers outside the window are unknown to it, as they are to the model. Empty
    pairs such as "()" are no targets of a closer, but their openers count among the candidates.

    sequence, closer, opener: int32 [pair]; opener is the match · depth: brackets open before the closer, its own
    opener included, 1 = outermost · distance: closer - opener · nearest: the last opener of any type before the
    closer, closed since or not · nearest_same_type: the last one of the closer's type ·
    openers, same_type, unclosed: int32 [pair, candidate], padded with -1: all openers before the closer, those of its
    type, and those not closed yet · reason: why there is no window, or "".
    """

    tokens: np.ndarray
    innermost: np.ndarray
    sequence: np.ndarray
    closer: np.ndarray
    opener: np.ndarray
    depth: np.ndarray
    distance: np.ndarray
    nearest: np.ndarray
    nearest_same_type: np.ndarray
    openers: np.ndarray
    same_type: np.ndarray
    unclosed: np.ndarray
    reason: str

    @property
    def n(self) -> int:
        """How many closers there are to score."""
        return len(self.closer)

    @property
    def hard(self) -> np.ndarray:
        """bool [pair]: the match is not the nearest opener."""
        return self.opener != self.nearest

    @property
    def hardest(self) -> np.ndarray:
        """bool [pair]: the match is not even the nearest opener of its type."""
        return self.opener != self.nearest_same_type


@dataclass(frozen=True)
class Pairs:
    """A document's bracket pairs in the order of their openers, all int64 or bool [pair]."""

    opener: np.ndarray  # position: in characters from `gold_pairs`, in tokens from `token_pairs`
    closer: np.ndarray
    kind: np.ndarray  # 0 "()", 1 "[]", 2 "{}"
    empty: np.ndarray  # nothing but white space inside; from `token_pairs` also: shares a token with another bracket


def gold_pairs(text: str) -> Pairs:
    """The bracket pairs of Python source, by `tokenize`; positions are byte offsets into text.encode().

    Raises SyntaxError or tokenize.TokenError where the text is not Python.
    """
    lines = text.split("\n")
    line_starts = np.cumsum([0, *(len(line.encode()) + 1 for line in lines)])
    stack: list[tuple[int, int]] = []
    pairs: list[tuple[int, int, int, bool]] = []
    in_string = 0  # inside an f-string (or t-string), whose braces Python >= 3.12 gives as operators
    encoded = text.encode()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tok_name[token.type]
        in_string += name.endswith("STRING_START") - name.endswith("STRING_END")
        if token.type != tokenize.OP or in_string or token.string not in _OPENERS + _CLOSERS:
            continue
        row, column = token.start
        position = int(line_starts[row - 1]) + len(lines[row - 1][:column].encode())
        if token.string in _OPENERS:
            stack.append((position, _OPENERS.index(token.string)))
        else:
            opener, kind = stack.pop() if stack else (-1, -1)
            if kind != _CLOSERS.index(token.string):  # `tokenize` alone lets it pass
                raise SyntaxError(f"line {row}: {token.string} closes nothing")
            pairs.append((opener, position, kind, not encoded[opener + 1 : position].strip()))
    return Pairs(*(np.array(column) for column in zip(*sorted(pairs), strict=True))) if pairs else _no_pairs()


def _no_pairs() -> Pairs:
    nothing = np.zeros(0, np.int64)
    return Pairs(nothing, nothing, nothing, nothing.astype(bool))


def token_pairs(documents: Documents, i: int) -> Pairs:
    """The bracket pairs of document i; positions count its tokens, BOS not counted.

    A bracket is where the token is that holds it (an imported vocabulary has tokens like ` (` and `):`). Where a token
    holds several, as `([` does, none of their pairs is a target. Raises what `gold_pairs` raises.
    """
    pairs = gold_pairs(documents.document_text(i))
    ids = documents.document(i)
    pieces = documents.tokenizer.token_bytes
    ends = np.cumsum(np.array([len(piece) for piece in pieces])[ids])
    opener, closer = (np.searchsorted(ends, position, side="right") for position in (pairs.opener, pairs.closer))
    shared = [
        _n_brackets(pieces[j]) > 1 or _n_brackets(pieces[k]) > 1 for j, k in zip(ids[opener], ids[closer], strict=True)
    ]
    return Pairs(opener, closer, pairs.kind, pairs.empty | np.array(shared, bool))


def _n_brackets(piece: bytes) -> int:
    return sum(map(piece.count, (_OPENERS + _CLOSERS).encode()))


def bracket_windows(dataset: Dataset, seq_len: int, n: int, seed: int) -> BracketWindows:
    """At most n windows of held-out Python text that hold a bracket pair: BOS and seq_len - 1 tokens of one document.

    From the documents whose name ends in .py, that `tokenize` accepts and that fill a window. Windows may overlap, but
    no pair is scored twice. n are drawn at random, fewer where there are fewer; without any, the result is empty and
    says the reason.
    """
    documents = dataset.heldout
    python = [i for i, name in enumerate(documents.names) if name.endswith(".py")]
    rng = np.random.Generator(np.random.Philox(key=seed))
    found: list[_Window] = []
    for i in python:
        try:
            pairs = token_pairs(documents, i)
        except (SyntaxError, tokenize.TokenError):  # samples that are broken on purpose, or another Python's
            continue
        found += _windows_of(documents.document(i), pairs, seq_len - 1, rng)
    chosen = [found[i] for i in rng.permutation(len(found))[:n]]
    reason = "" if chosen else _why_none(len(python), len(documents.names), seq_len)
    return _collect(chosen, seq_len, reason)


def _why_none(n_python: int, n_documents: int, seq_len: int) -> str:
    if not n_python:
        return f"none of the {n_documents} held-out documents is Python (a name ending in .py)"
    return f"no window of {seq_len} tokens in the {n_python} held-out Python documents holds a bracket pair"


def _windows_of(ids: np.ndarray, pairs: Pairs, width: int, rng: np.random.Generator) -> Iterator[_Window]:
    """Windows of a document: each pair that fits into a window is scored in exactly one.

    A window is laid, at a random place, around the first pair that has none yet, and takes the others that it holds.
    (A fixed grid of windows would cut a quarter of the pairs at 64 bytes, and nearly half of the hardest.)
    """
    left = ~pairs.empty & (pairs.closer - pairs.opener < width)
    innermost = _innermost(pairs, len(ids))
    while left.any() and len(ids) >= width:
        first = int(np.argmax(left))
        slack = width - 1 - int(pairs.closer[first] - pairs.opener[first])
        start = int(np.clip(pairs.opener[first] - rng.integers(slack + 1), 0, len(ids) - width))
        inside = (pairs.opener >= start) & (pairs.opener < start + width)
        targets = np.flatnonzero((left & (pairs.closer < start + width))[inside])
        left &= ~(inside & (pairs.closer < start + width))
        opener, closer = pairs.opener[inside] - start + 1, pairs.closer[inside] - start + 1  # + 1: BOS is position 0
        closers = [_closer(opener, closer, pairs.kind[inside], int(target)) for target in targets]
        around = innermost[start : start + width]
        yield _Window(ids[start : start + width], np.where(around >= start, around - start + 1, -1), closers)


def _innermost(pairs: Pairs, n: int) -> np.ndarray:
    """The innermost unclosed opener, int64 [n], -1: none. A bracket stands inside the pair around its own."""
    innermost = np.full(n, -1)
    for opener, closer in zip(pairs.opener, pairs.closer, strict=True):  # outer pairs first, so that inner ones win
        innermost[opener + 1 : closer] = opener
    return innermost


def _closer(opener: np.ndarray, closer: np.ndarray, kind: np.ndarray, target: int) -> _Closer:
    at = int(closer[target])
    before = opener < at
    unclosed = before & (closer >= at)
    candidates = (before, before & (kind == kind[target]), unclosed)
    return _Closer(at, int(unclosed.sum()), *(np.unique(opener[chosen]) for chosen in candidates))


def _collect(windows: list[_Window], seq_len: int, reason: str) -> BracketWindows:
    tokens = np.full((len(windows), seq_len), BOS, np.int32)
    innermost = np.full((len(windows), seq_len), -1, np.int32)
    for i, window in enumerate(windows):
        tokens[i, 1:], innermost[i, 1:] = window.ids, window.innermost
    closers = [closer for window in windows for closer in window.closers]
    at = np.array([closer.at for closer in closers], np.int32)
    opener = np.array([closer.unclosed[-1] for closer in closers], np.int32)
    return BracketWindows(
        tokens=tokens,
        innermost=innermost,
        sequence=np.array([i for i, window in enumerate(windows) for _ in window.closers], np.int32),
        closer=at,
        opener=opener,
        depth=np.array([closer.depth for closer in closers], np.int32),
        distance=at - opener,
        nearest=np.array([closer.openers[-1] for closer in closers], np.int32),
        nearest_same_type=np.array([closer.same_type[-1] for closer in closers], np.int32),
        openers=_padded([closer.openers for closer in closers]),
        same_type=_padded([closer.same_type for closer in closers]),
        unclosed=_padded([closer.unclosed for closer in closers]),
        reason=reason,
    )


def _padded(rows: list[np.ndarray]) -> np.ndarray:
    padded = np.full((len(rows), max((len(row) for row in rows), default=0)), -1, np.int32)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return padded
