"""The token cache: split by document, BOS at every start, opened again without work, and loud when damaged."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from andrea_jax.data import packing, prepare
from andrea_jax.data.corpora import Document, Source, is_heldout
from andrea_jax.errors import UserError


@pytest.fixture
def corpus(tmp_path) -> Path:
    folder = tmp_path / "texts"
    (folder / "sub").mkdir(parents=True)
    for i in range(97):
        (folder / "sub" / f"file_{i:02}.py").write_text(f"value_{i} = call({i}, [{i}])\n" * 3)
    (folder / "notes.md").write_text("naïve notes\n" * 5)
    (folder / "empty.txt").write_text("\n")
    (folder / "picture.png").write_bytes(b"\xff\x00")
    return folder


@pytest.fixture
def experiment(corpus, experiment_of):
    return experiment_of(corpus=f"{corpus}/")


@pytest.fixture
def cached(tmp_path, experiment) -> Path:
    """The cache's root, filled."""
    prepare(experiment, tmp_path / "cache", quiet)
    return tmp_path / "cache"


def quiet(message: str) -> None:
    pass


def only_dataset(cache: Path) -> Path:
    (folder,) = (cache / "tokens").iterdir()
    return folder


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_every_document_is_in_one_stream_with_bos_before_it(tmp_path, corpus, experiment_of, tokenizer):
    vocab_size = {"bytes": 257, "bpe": 271}[tokenizer]
    experiment = experiment_of(corpus=str(corpus), tokenizer=tokenizer, vocab_size=vocab_size)
    dataset = prepare(experiment, tmp_path / "cache", quiet)
    texts = {
        f"folder/{p.relative_to(corpus)}": p.read_text() for p in corpus.rglob("*.*") if p.suffix in (".py", ".md")
    }
    found = {}
    for part in (dataset.train, dataset.heldout):
        assert (part.tokens[part.starts] == 0).all()
        assert (part.tokens == 0).sum() == len(part.starts) == len(part.names)
        assert part.n_tokens == part.lengths().sum() + len(part.starts)
        found |= {name: part.document_text(i) for i, name in enumerate(part.names)}
    assert found == texts
    assert len(dataset.train.names) + len(dataset.heldout.names) == 98
    assert dataset.tokenizer.vocab_size == vocab_size


def test_the_split_never_shares_a_text(tmp_path, corpus, experiment):
    for i in range(97):
        (corpus / f"copy_{i}.txt").write_text((corpus / "sub" / f"file_{i:02}.py").read_text())
    dataset = prepare(experiment, tmp_path / "cache", quiet)
    sides = [{part.document_text(i) for i in range(len(part.names))} for part in (dataset.train, dataset.heldout)]
    assert not sides[0] & sides[1]
    assert len(sides[1]) >= 1 and len(dataset.heldout.names) == 2 * len(sides[1])  # each with its copy


def test_a_tenth_is_held_out_by_the_hash_of_the_text_whatever_the_name():
    heldout = [is_heldout(Document("x", f"text {i}")) for i in range(2000)]
    assert 160 < sum(heldout) < 240  # 200 expected, standard deviation 13.4
    assert heldout[:200] == [is_heldout(Document(f"y/{i}", f"text {i}")) for i in range(200)]


def test_what_a_rule_holds_out_takes_its_copies_along():
    documents = [Document("a", "same", heldout=True), Document("b", "same"), Document("c", "other"), Document("d", " ")]
    train, heldout = packing.split(documents)
    assert ([d.name for d in train], [d.name for d in heldout]) == (["c"], ["a", "b"])


def test_one_document_is_held_out_where_the_hashes_hold_out_none():
    train, heldout = packing.split([Document("a", "text 1"), Document("b", "text 2"), Document("c", "text 4")])
    assert len(heldout) == 1 and len(train) == 2
    with pytest.raises(UserError, match="at least two different ones"):
        packing.split([Document("a", "text 1"), Document("b", "text 1")])


def test_opening_again_builds_nothing_and_gives_the_same(cached, experiment):
    before = {path: path.stat().st_mtime_ns for path in cached.rglob("*")}
    said: list[str] = []
    first, second = (prepare(experiment, cached, said.append) for _ in range(2))
    assert {path: path.stat().st_mtime_ns for path in cached.rglob("*")} == before
    assert not [message for message in said if "tokeniz" in message]
    assert first.hash == second.hash
    np.testing.assert_array_equal(first.train.tokens, second.train.tokens)
    assert isinstance(first.train.tokens, np.memmap) and not first.train.tokens.flags.writeable


def test_the_hash_and_the_place_follow_the_text_and_the_tokenizer_only(tmp_path, corpus, cached, experiment):
    first = prepare(experiment, cached, quiet)
    moved = corpus.rename(tmp_path / "elsewhere")
    longer = replace(experiment, data=replace(experiment.data, corpus=f"{moved}/", seq_len=29))
    assert prepare(longer, cached, quiet).hash == first.hash
    assert len(list((cached / "tokens").iterdir())) == 1
    (moved / "notes.md").write_text("other notes")
    assert prepare(longer, cached, quiet).hash != first.hash


def test_the_summary_tells_what_went_in(cached, experiment):
    summary = json.loads((only_dataset(cached) / "summary.json").read_text())
    assert summary == prepare(experiment, cached, quiet).summary
    assert summary["sources"]["folder"]["documents"] == 98
    assert summary["train"]["documents"] + summary["heldout"]["documents"] == 98
    assert summary["sources"]["folder"]["bytes"] == summary["train"]["bytes"] + summary["heldout"]["bytes"]
    assert summary["skipped"] == {} and summary["tokenizer"] == "bytes"


@pytest.mark.parametrize("name", ["tokens.u16", "starts.npy", "names.json", "tokenizer.json"])
def test_a_damaged_file_is_named_with_the_way_to_rebuild(cached, experiment, name):
    path = only_dataset(cached) / name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=rf"{name} is damaged \(it does not have its sha256\): delete the folder"):
        prepare(experiment, cached, quiet)
    path.write_bytes(content[:-3])
    with pytest.raises(UserError, match=rf"{name} is damaged \(it has {len(content) - 3} bytes, not {len(content)}\)"):
        prepare(experiment, cached, quiet)
    path.unlink()
    with pytest.raises(UserError, match=rf"{name} is missing"):
        prepare(experiment, cached, quiet)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"sha256": {}}'])
def test_a_damaged_summary_is_named(cached, experiment, content):
    (only_dataset(cached) / "summary.json").write_text(content)
    with pytest.raises(UserError, match=r"summary\.json is damaged"):
        prepare(experiment, cached, quiet)


def test_an_interrupted_build_leaves_no_data_set(tmp_path, experiment, monkeypatch):
    def interrupt(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(packing, "_sha256", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare(experiment, tmp_path / "cache", quiet)
    assert list((tmp_path / "cache" / "tokens").iterdir()) == []


def test_two_builders_at_once_share_one_data_set(tmp_path, experiment, monkeypatch):
    rename = os.rename
    renamed: list[list[str]] = []

    def rename_after_another(source, target):
        monkeypatch.setattr(packing.os, "rename", rename)
        renamed.append(sorted(path.name for path in Path(source).iterdir()))
        prepare(experiment, tmp_path / "cache", quiet)
        rename(source, target)

    monkeypatch.setattr(packing.os, "rename", rename_after_another)
    dataset = prepare(experiment, tmp_path / "cache", quiet)
    assert only_dataset(tmp_path / "cache").name and len(dataset.train.names) > 50
    # whole before it is renamed
    assert renamed == [["names.json", "starts.npy", "summary.json", "tokenizer.json", "tokens.u16"]]


def test_a_corpus_shorter_than_a_window_is_an_error(tmp_path, experiment_of):
    (tmp_path / "a.txt").write_text("short")
    (tmp_path / "b.txt").write_text("texts")
    with pytest.raises(UserError, match=r"data\.seq_len = 23: the training text has only 6 tokens"):
        prepare(experiment_of(corpus=f"{tmp_path}/"), tmp_path / "cache", quiet)


def fetched(name: str) -> Source:
    def read(archive):
        return iter([Document(f"{name}/{i}", f"{name} {i} " * 20) for i in range(31)])

    return Source(name, "1", "any", "npm", f"{name}@1", "0" * 64, read)


def test_a_source_without_its_client_is_skipped_with_a_warning_and_recorded(
    tmp_path, corpus, experiment, monkeypatch, caplog
):
    sources = (*packing.corpus_sources(str(corpus)), fetched("sotu"))
    monkeypatch.setattr(packing, "corpus_sources", lambda name: sources)
    monkeypatch.setenv("PATH", "")
    dataset = prepare(experiment, tmp_path / "cache", lambda message: None)
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]  # a log shown earlier has more levels
    assert warned == ["skipping source sotu (sotu@1): npm is not on PATH"]
    assert dataset.summary["skipped"] == {"sotu": "npm is not on PATH"}
    assert list(json.loads(json.dumps(dataset.summary["sources"]))) == ["folder"]


def test_no_source_at_all_is_an_error(tmp_path, experiment, monkeypatch):
    monkeypatch.setattr(packing, "corpus_sources", lambda name: (fetched("sotu"),))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match=r"no source is available: .*npm is not on PATH"):
        prepare(experiment, tmp_path / "cache", quiet)


def test_a_complete_cache_needs_no_client(tmp_path, experiment, monkeypatch):
    monkeypatch.setattr(packing, "corpus_sources", lambda name: (fetched("sotu"),))
    monkeypatch.setattr(packing, "missing_client", lambda source: None)
    monkeypatch.setattr(packing, "fetch", lambda source, cache: tmp_path)
    first = prepare(experiment, tmp_path / "cache", quiet)
    monkeypatch.setattr(packing, "missing_client", lambda source: "gone")
    monkeypatch.delattr(packing, "fetch")
    assert prepare(experiment, tmp_path / "cache", quiet).hash == first.hash


def test_the_default_cache_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ANDREA_CACHE", str(tmp_path))
    assert packing.default_cache() == tmp_path
    monkeypatch.delenv("ANDREA_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert packing.default_cache() == tmp_path / ".cache" / "andrea_jax"
