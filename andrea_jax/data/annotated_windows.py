"""Annotated text in the tokens of a model: windows of single documents, and where in them each word and name is."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from andrea_jax.config import BOS
from andrea_jax.data.annotated import Annotation, Sentence
from andrea_jax.data.tokenizer import Tokenizer
from andrea_jax.errors import UserError

PAD = 1  # any id but BOS; it comes after the text, where attention that is causal never sees it


@dataclass(frozen=True)
class Words:
    """Arrays [word] over all windows: sequence · first, last: positions of its tokens · form · tag · relation ·
    head: index of the syntactic head in these arrays, −1 where there is none in the window · name: index into
    `AnnotatedWindows.names`, −1 in no name."""

    sequence: np.ndarray
    first: np.ndarray
    last: np.ndarray
    form: np.ndarray
    tag: np.ndarray
    relation: np.ndarray
    head: np.ndarray
    name: np.ndarray


@dataclass(frozen=True)
class AnnotatedWindows:
    """tokens int32 [window, seq_len]: BOS, then whole sentences of one document, the last of them perhaps cut ·
    length int [window]: tokens before the padding, with BOS · words: those that are there as a whole ·
    names int [name, 3]: sequence, first and last position · surface [name]: its text · named_by: see `Annotation`."""

    tokens: np.ndarray
    length: np.ndarray
    words: Words
    names: np.ndarray
    surface: np.ndarray
    named_by: str


def windows(found: Annotation, tokenizer: Tokenizer, seq_len: int, n: int) -> AnnotatedWindows:
    """At most n windows of at most seq_len tokens, spread evenly over the file.

    A window begins with a sentence and takes as many tokens as fit; the next begins with the first sentence that did
    not fit as a whole. A word's tokens are all that overlap its characters. UserError
    where the tokenizer does not keep the text.
    """
    encoded = [_encode(document, tokenizer) for document in found.documents]
    starts = [(i, first) for i, sentences in enumerate(encoded) for first in _starts(sentences, seq_len - 1)]
    picked = np.unique(np.linspace(0, len(starts) - 1, min(n, len(starts))).round().astype(int))
    tokens, length = np.full((len(picked), seq_len), PAD, np.int32), np.zeros(len(picked), int)
    rows: list[tuple] = []
    names: list[tuple[int, int, int, str]] = []
    for row, (document, first) in enumerate(starts[i] for i in picked):
        tokens[row, 0], end = BOS, 1
        for i in range(first, len(encoded[document])):
            ids = encoded[document][i][: seq_len - end]
            tokens[row, end : end + len(ids)] = ids
            sentence, before = found.documents[document][i], _before(found.documents[document], i)
            _place(sentence, len(before.encode()), (row, end, end + len(ids)), tokenizer, ids, rows, names)
            end += len(ids)
            if end == seq_len:
                break
        length[row] = end
    if not rows:
        raise UserError(f"no word of the annotated text fits into a window of {seq_len} tokens")
    words = Words(*(np.array(column) for column in zip(*rows, strict=True)))
    places = np.array([name[:3] for name in names], int).reshape(-1, 3)
    return AnnotatedWindows(tokens, length, words, places, np.array([name[3] for name in names]), found.named_by)


def _encode(document: list[Sentence], tokenizer: Tokenizer) -> list[np.ndarray]:
    """The ids of each sentence, with what is between it and the one before."""
    texts = [_before(document, i) + sentence.text for i, sentence in enumerate(document)]
    encoded = tokenizer.encode_documents(texts)
    for text, ids in zip(texts, encoded, strict=True):
        if b"".join(tokenizer.token_bytes[i] for i in ids) != text.encode():
            raise UserError(f"data.tokenizer = {tokenizer.name!r}: its tokens do not spell the text {text[:40]!r}")
    return encoded


def _before(document: list[Sentence], i: int) -> str:
    """What is between a sentence and the one before."""
    return document[i - 1].after if i else ""


def _starts(sentences: list[np.ndarray], room: int) -> Iterator[int]:
    """The first sentence of each window."""
    first = 0
    while first < len(sentences):
        yield first
        ends = np.cumsum([len(ids) for ids in sentences[first : first + room + 1]])
        first += max(1, int(np.searchsorted(ends, room, side="right")))


def _place(
    sentence: Sentence,
    before: int,
    place: tuple[int, int, int],
    tokenizer: Tokenizer,
    ids: np.ndarray,
    rows: list[tuple],
    names: list[tuple[int, int, int, str]],
) -> None:
    """Adds the words and names of a sentence that lies at positions start to end of a window, as far as it is there;
    before: bytes in front of it."""
    sequence, start, end = place
    ends = np.cumsum([len(tokenizer.token_bytes[i]) for i in ids])  # bytes
    byte = np.array([before + len(sentence.text[:i].encode()) for i in range(len(sentence.text) + 1)])
    spans = byte[np.array(sentence.spans)]
    first = start + np.searchsorted(ends, spans[:, 0], side="right")
    last = start + np.searchsorted(ends, spans[:, 1], side="left")
    there = last < end
    index = np.where(there, len(rows) + np.cumsum(there) - 1, -1)
    of_word = np.full(len(spans), -1)
    for a, b in sentence.names:
        if there[b]:
            of_word[a : b + 1] = len(names)
            surface = sentence.text[sentence.spans[a][0] : sentence.spans[b][1]]
            names.append((sequence, int(first[a]), int(last[b]), surface))
    for i in np.flatnonzero(there):
        (a, b), head = sentence.spans[i], sentence.heads[i]
        form = sentence.text[a:b]
        to = index[head] if head >= 0 else -1
        rows.append((sequence, first[i], last[i], form, sentence.tags[i], sentence.relations[i], to, of_word[i]))
