"""Text that people have annotated: a CoNLL-U file, as sentences of words with tags, heads and names.

    annotated.read(path).documents             sentences; `annotated_windows` has them in tokens

CoNLL-U: ten columns a word, an empty line after each sentence (Nivre et al. 2020, "Universal Dependencies v2"). Text is
rebuilt from the forms, SpaceAfter=No, and SpacesAfter, which is UDPipe's for what else is between words. Words of a
multiword token whose forms do not spell it ("du" = de + le) all stand for the whole of it; empty nodes (8.1) are no
text and are left out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from andrea_jax.errors import UserError, did_you_mean

COLUMNS = 10
SPACES = {"\\s": " ", "\\t": "\t", "\\r": "\r", "\\n": "\n", "\\p": "|", "\\\\": "\\"}  # of SpacesAfter
NAME_KEYS = ("NE", "NER", "Entity")  # of MISC, the first that the file has
RUNS = "runs of PROPN"
MENTION = re.compile(r"\(([^()]+)(\)?)|([^()]+)\)")  # opened, and perhaps closed at once; or closed


@dataclass(frozen=True)
class Sentence:
    """text · spans: (start, end) of each word in it, characters · tags: UPOS · heads: index of each word's syntactic
    head, −1 for the root or where none is given · relations: DEPREL without subtype · names: (first, last) of each ·
    after: what is between it and the next sentence.
    """

    text: str
    spans: list[tuple[int, int]]
    tags: list[str]
    heads: list[int]
    relations: list[str]
    names: list[tuple[int, int]]
    after: str


@dataclass(frozen=True)
class Annotation:
    """documents: sentences of each · named_by: what says which words are names: "NE", "NER" or "Entity" of MISC, or,
    where the file has none of them, "runs of PROPN", which are untyped."""

    documents: list[list[Sentence]]
    named_by: str


@dataclass(frozen=True)
class _Raw:
    """A sentence's rows: of words, and (first, last, form, misc) of multiword tokens."""

    begins_document: bool
    words: list[list[str]]
    wholes: list[tuple[int, int, str, str]]


def read(path: Path | str) -> Annotation:
    """Documents begin at `# newdoc`; a file without is one document. UserError for what is no CoNLL-U, with its line.

    Names: "NE" or "NER" with B-, I- and O or plain types; "Entity" in brackets, as in CorefUD, where a mention counts
    that holds a PROPN and no smaller one that does; else maximal runs of PROPN.
    """
    raw = list(_sentences(Path(path)))
    if not raw:
        raise UserError(f"{path}: no sentence; a CoNLL-U file was expected")
    keys = {key for sentence in raw for row in sentence.words for key in _misc(row[9])}
    named_by = next((key for key in NAME_KEYS if key in keys), RUNS)
    documents: list[list[Sentence]] = []
    for sentence in raw:
        if sentence.begins_document or not documents:
            documents.append([])
        documents[-1].append(_sentence(sentence, named_by))
    return Annotation(documents, named_by)


def _sentences(path: Path) -> Iterator[_Raw]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        neighbours = [file.name for file in path.parent.glob("*")]
        raise UserError(f"{path}: {error.strerror}{did_you_mean(path.name, neighbours)}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 ({error})") from None
    begins, sentence = False, _Raw(False, [], [])
    for number, line in enumerate([*lines, ""], start=1):
        if line.startswith("#"):
            begins |= line.startswith("# newdoc")
        elif line.strip():
            _add_row(sentence, line.rstrip("\r").split("\t"), f"{path}, line {number}")
        elif sentence.words:
            _check_heads(sentence, f"{path}, line {number}")
            yield _Raw(begins, sentence.words, sentence.wholes)
            begins, sentence = False, _Raw(False, [], [])


def _add_row(sentence: _Raw, row: list[str], where: str) -> None:
    if len(row) != COLUMNS:
        raise UserError(f"{where}: {len(row)} columns; CoNLL-U has {COLUMNS}, with tabs between them")
    if re.fullmatch(r"\d+\.\d+", row[0]):
        return
    n = len(sentence.words)
    if whole := re.fullmatch(r"(\d+)-(\d+)", row[0]):
        first, last = int(whole[1]) - 1, int(whole[2]) - 1
        if not n == first < last:
            raise UserError(f'{where}: the multiword token "{row[0]}" should begin with word {n + 1}')
        sentence.wholes.append((first, last, row[1], row[9]))
    elif row[0] != str(n + 1):
        raise UserError(f'{where}: ID is "{row[0]}" where word {n + 1} was expected')
    elif not re.fullmatch(r"_|\d+", row[6]):
        raise UserError(f'{where}: HEAD is "{row[6]}", not the number of a word, 0 or _')
    else:
        sentence.words.append(row)


def _check_heads(sentence: _Raw, where: str) -> None:
    """Once a sentence is whole; `where` is the line after it."""
    n = len(sentence.words)
    for row in sentence.words:
        if row[6] != "_" and int(row[6]) > n:
            raise UserError(f"{where}: the sentence before it has {n} words, and word {row[0]} has HEAD {row[6]}")
    if any(last >= n for _, last, *_ in sentence.wholes):
        raise UserError(f"{where}: the sentence before it ends within a multiword token")


def _misc(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split("|"))
    return {key: value for key, equals, value in pairs if equals}


def _sentence(raw: _Raw, named_by: str) -> Sentence:
    text, spans, gap = "", [], ""
    starts = {first: (last, form, misc) for first, last, form, misc in raw.wholes}
    while len(spans) < len(raw.words):
        i = len(spans)
        last, form, misc = starts[i] if i in starts else (i, raw.words[i][1], raw.words[i][9])
        spans += _within([row[1] for row in raw.words[i : last + 1]], form, len(text))
        gap = _gap(_misc(misc))
        text += form + gap
    tags = [row[3] for row in raw.words]
    heads = [-1 if row[6] in "_0" else int(row[6]) - 1 for row in raw.words]
    relations = [row[7].partition(":")[0] for row in raw.words]
    names, after = _names(raw, tags, named_by), gap if gap.strip(" ") else " "
    return Sentence(text.removesuffix(gap), spans, tags, heads, relations, names, after)


def _gap(misc: dict[str, str]) -> str:
    if "SpacesAfter" in misc:
        return re.sub(r"\\.", lambda found: SPACES.get(found[0], found[0]), misc["SpacesAfter"])
    return "" if misc.get("SpaceAfter") == "No" else " "


def _within(forms: list[str], whole: str, start: int) -> list[tuple[int, int]]:
    """Where the words of a token are that begins at `start`: one after the other if they spell it, else all of it."""
    if "".join(forms) != whole:
        return [(start, start + len(whole))] * len(forms)
    ends = [start + sum(map(len, forms[: i + 1])) for i in range(len(forms))]
    return list(zip([start, *ends[:-1]], ends, strict=True))


def _names(raw: _Raw, tags: list[str], named_by: str) -> list[tuple[int, int]]:
    values = [_misc(row[9]).get(named_by, "O") for row in raw.words]
    if named_by == RUNS:
        return _runs(["I-" if tag == "PROPN" else "O" for tag in tags])
    if named_by != "Entity" or not any("(" in value or ")" in value for value in values):
        return _runs(values)
    named = [span for span in _mentions(values) if "PROPN" in tags[span[0] : span[1] + 1]]
    return [a for a in named if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in named)]


def _runs(values: list[str]) -> list[tuple[int, int]]:
    """Maximal runs of one type; B- (and S-, U-) always begins one."""
    kinds, run = [], 0
    for i, value in enumerate(values):
        prefix, dash, kind = value.rpartition("-")
        kind = kind if dash and prefix in "BIESLU" else value
        run += prefix in ("B", "S", "U") or not kinds or kinds[-1][1] != kind
        kinds.append((run, kind, i, value in ("O", "_")))
    groups = [list(group) for _, group in groupby(kinds, key=lambda x: (x[0], x[3]))]
    return [(group[0][2], group[-1][2]) for group in groups if not group[0][3]]


def _mentions(values: list[str]) -> list[tuple[int, int]]:
    """Each span once, in the order of their ends."""
    found, opened = [], {}
    for i, value in enumerate(values):
        for begun, at_once, ended in MENTION.findall(value):
            name = re.split(r"[-\[]", begun or ended)[0]
            if begun:
                opened.setdefault(name, []).append(i)
            if (at_once or ended) and opened.get(name):
                found.append((opened[name].pop(), i))
    return list(dict.fromkeys(found))
