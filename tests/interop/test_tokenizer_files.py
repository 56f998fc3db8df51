"""Tokenizers of Hugging Face: the same tokens as the library itself, and BOS is id 0."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hugging_face import BOS, VOCAB, train_tokenizer  # pyright: ignore[reportMissingImports]

from andrea_jax.data import Tokenizer
from andrea_jax.data.tokenizer import byte_tokenizer, train_bpe
from andrea_jax.errors import UserError
from andrea_jax.interop import exchanged, read_tokenizer, write_tokenizer

TEXTS = ["def f(a, [b]):\n    return the words", "naïve 日本 🙂\t\r\n\x00", "", "((()))[]{}", "a <|endoftext|> b"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    train_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def plain(texts: list[str]) -> list[list[int]]:
    """The library's own ids, where special tokens are not looked for in the text."""
    tokenizer = train_tokenizer()
    tokenizer.encode_special_tokens = True
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def test_bos_and_id_0_change_places_and_nothing_else_does():
    places = exchanged(7, 4)
    assert places.tolist() == [4, 1, 2, 3, 0, 5, 6]
    assert places[places].tolist() == list(range(7))
    assert exchanged(7, 0).tolist() == list(range(7))


def test_ids_are_the_librarys_with_bos_and_0_exchanged(folder: Path):
    tokenizer = read_tokenizer(folder, VOCAB, BOS)
    expected = [exchanged(VOCAB, BOS)[ids].tolist() for ids in plain(TEXTS)]
    assert [tokenizer.encode(text) for text in TEXTS] == expected
    assert tokenizer.token_bytes[0] == b"" and tokenizer.pieces([0]) == ["⟨bos⟩"]
    assert tokenizer.token_bytes[BOS] == b"!"  # what was 0
    assert not any(0 in tokenizer.encode(text) for text in TEXTS)  # no text becomes BOS
    assert [tokenizer.decode(tokenizer.encode(text)) for text in TEXTS] == TEXTS


def test_vocab_and_merges_are_read_like_the_tokenizer_json_made_of_them(folder: Path, tmp_path: Path):
    (tmp_path / "parts").mkdir()
    described = json.loads((folder / "tokenizer.json").read_text())["model"]
    vocab = described["vocab"] | {"<|endoftext|>": BOS}  # GPT-2's own files name it there
    (tmp_path / "parts" / "vocab.json").write_text(json.dumps(vocab))
    merges = "".join(f"{left} {right}\n" for left, right in described["merges"])
    (tmp_path / "parts" / "merges.txt").write_text("#version: 0.2\n" + merges)
    ours, theirs = (read_tokenizer(path, VOCAB, BOS) for path in (tmp_path / "parts", folder))
    assert ours.token_bytes == theirs.token_bytes
    assert [ours.encode(text) for text in TEXTS] == [theirs.encode(text) for text in TEXTS]


def test_it_is_saved_and_loaded_with_its_own_bos(folder: Path, tmp_path: Path):
    tokenizer = read_tokenizer(folder, VOCAB, BOS)
    tokenizer.save(tmp_path / "saved.json")
    loaded = Tokenizer.load(tmp_path / "saved.json")
    assert (loaded.name, loaded.bos, loaded.token_bytes) == ("imported", BOS, tokenizer.token_bytes)
    assert loaded.to_json() == tokenizer.to_json()
    assert loaded.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])


def test_ids_without_a_token_have_a_name_and_no_text_becomes_them(folder: Path):
    tokenizer = read_tokenizer(folder, VOCAB, BOS)  # 293 tokens, 307 ids
    assert tokenizer.vocab_size == VOCAB
    assert tokenizer.pieces([293, 306]) == ["⟨unused-293⟩", "⟨unused-306⟩"]
    assert max(tokenizer.encode("⟨unused-293⟩")) < 293


def read_by_the_library(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_written_back_it_has_its_first_ids_again(folder: Path, tmp_path: Path):
    (tmp_path / "again").mkdir()
    write_tokenizer(read_tokenizer(folder, VOCAB, BOS), tmp_path / "again", seq_len=37)
    again, first = read_by_the_library(tmp_path / "again"), train_tokenizer()
    assert again.get_vocab() == first.get_vocab()
    assert [again.encode(text).ids for text in TEXTS] == [first.encode(text).ids for text in TEXTS]
    assert again.encode("<|endoftext|>").ids == [BOS]
    settings = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
    assert settings["bos_token"] == "<|endoftext|>" and settings["model_max_length"] == 37


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_our_own_tokenizers_are_written_as_the_library_reads_them(kind: str, tmp_path: Path):
    tokenizer = byte_tokenizer() if kind == "bytes" else train_bpe(["the words of the words (the [words])"] * 3, 263)
    write_tokenizer(tokenizer, tmp_path, seq_len=37)
    written = read_by_the_library(tmp_path)
    for text in TEXTS:
        ids = written.encode(text).ids
        assert ids == tokenizer.encode(text)
        assert written.decode(ids) == text
    assert written.encode("⟨bos⟩").ids == [0]
    assert read_tokenizer(tmp_path, tokenizer.vocab_size, 0).token_bytes == tokenizer.token_bytes


def test_every_document_is_encoded_as_uint16(folder: Path):
    found = read_tokenizer(folder, VOCAB, BOS).encode_documents(TEXTS)
    assert {ids.dtype for ids in found} == {np.dtype(np.uint16)}


def changed(folder: Path, **changes: object) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"normalizer": {"type": "NFD"}}, "must be byte-level and keep every character"),
        ({"normalizer": {"type": "NFKC"}}, "must be byte-level and keep every character"),
        ({"normalizer": {"type": "Lowercase"}}, "must be byte-level and keep every character"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "must be byte-level and keep every character"),
        ({"model": {"type": "WordPiece"}}, "is no BPE tokenizer"),
        ({"model": 3}, "is no BPE tokenizer"),
        (
            {"added_tokens": [{"id": 307, "content": "<pad>"}]},
            "has id 307 for '<pad>', and the model has vocab_size = 307",
        ),
        ({"added_tokens": []}, "has no token with id 292, which config.json calls bos_token_id"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(folder: Path, changes: dict, expected: str):
    changed(folder, **changes)
    with pytest.raises(UserError, match=expected):
        read_tokenizer(folder, VOCAB, BOS)


def test_a_folder_without_a_tokenizer_says_which_files_are_expected(tmp_path: Path):
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(UserError, match=r"has no tokenizer; expected tokenizer\.json, or vocab\.json and merges\.txt"):
        read_tokenizer(tmp_path, VOCAB, BOS)
    (tmp_path / "merges.txt").write_text("one\n")
    with pytest.raises(UserError, match=r"vocab\.json: is, with merges\.txt, no BPE vocabulary"):
        read_tokenizer(tmp_path, VOCAB, BOS)
