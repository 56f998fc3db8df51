"""Any text survives encoding; no token but a lone bracket holds a bracket; training is deterministic."""

import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from andrea_jax.data.tokenizer import Tokenizer, _bpe_tokenizer, byte_tokenizer, train_bpe
from andrea_jax.errors import UserError

TEXTS = ["def f(x):\n    return [f(x()), {x: (x)}]\n\n" * 9, "the theory (they thought) is there; naïve ⟨bos⟩ <bos>\t"]
BPE = train_bpe(TEXTS, 293)
BYTES = byte_tokenizer()


@settings(max_examples=200, deadline=None)
@given(st.text())
@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
def test_any_text_comes_back(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 < i < tokenizer.vocab_size for i in ids)  # BOS is never the encoding of a text


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="()[]{}: fx\n"))
def test_every_bracket_is_a_token_of_its_own(text):
    pieces = [BPE.token_bytes[i].decode() for i in BPE.encode(text)]
    assert [piece for piece in pieces if set(piece) & set("()[]{}")] == [c for c in text if c in "()[]{}"]


def test_ids_are_bos_then_bytes_then_merges():
    for tokenizer in (BYTES, BPE):
        assert tokenizer.token_bytes[0] == b""
        assert tokenizer.token_bytes[1:257] == tuple(bytes([b]) for b in range(256))
    assert (BYTES.vocab_size, BPE.vocab_size) == (257, 293)
    assert all(len(piece) > 1 for piece in BPE.token_bytes[257:])
    assert len(set(BPE.token_bytes)) == 293
    assert BYTES.encode("aé") == [98, 196, 170]


def test_punctuation_is_what_has_no_letter_digit_or_space():
    bytes_that_are = {bytes([i - 1]).decode() for i in np.flatnonzero(BYTES.punctuation())}  # neither BOS nor "é"'s
    assert bytes_that_are == set("""!"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~""")
    pieces = (b"", b".", b"...", b"\xe2\x80\x94", b"\x80", b"):", b" .", b".\n", b".a", b"1.", b"\n", b"\n\n  ")
    tokenizer = Tokenizer("by hand", pieces)
    assert np.flatnonzero(tokenizer.punctuation()).tolist() == [1, 2, 3, 5]
    assert np.flatnonzero(tokenizer.newline()).tolist() == [7, 10, 11]


def test_a_vocabulary_of_merges_has_its_punctuation_and_newlines():
    chosen = BPE.punctuation(), BPE.newline()
    assert all(mask.dtype == bool and mask.shape == (293,) and not mask[0] for mask in chosen)
    ids = BPE.encode("f(x): y\n\n")
    assert [BPE.decode([i]) for i in ids if chosen[0][i]] == ["(", ")", ":"]
    assert "".join(BPE.decode([i]) for i in ids if chosen[1][i]).count("\n") == 2


def test_merges_shorten_text_they_were_learned_from():
    assert BPE.pieces(BPE.encode(" return return")) == ["·return", "·return"]


def test_training_twice_gives_the_same_tokenizer():
    assert train_bpe(TEXTS, 293).to_json() == BPE.to_json()


def test_a_vocabulary_that_merges_brackets_is_refused():
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=293, initial_alphabet=alphabet, special_tokens=["⟨bos⟩"], show_progress=False
    )
    learner.train_from_iterator(TEXTS, trainer)
    with pytest.raises(ValueError, match="a bracket must be a token of its own"):
        _bpe_tokenizer(learner)


def test_a_corpus_too_small_for_the_vocabulary_is_an_error():
    with pytest.raises(UserError, match=r"model\.vocab_size = 5000: must be at most \d+ for this corpus"):
        train_bpe(TEXTS, 5000)


def test_pieces_are_printable():
    ids = [0, *BYTES.encode("a b\n\té\x00")]
    assert BYTES.pieces(ids) == ["⟨bos⟩", "a", "·", "b", "⏎", "⇥", "\\xc3", "\\xa9", "\\x00"]
    text = "return x\n" + "\u2028\u202e"
    assert "".join(BPE.pieces(BPE.encode(text))).isprintable()


def test_a_tokenizer_shows_its_size_and_not_its_tokens():
    assert repr(BYTES) == "Tokenizer(bytes, 257 tokens)"


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
def test_a_saved_tokenizer_comes_back(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (loaded.name, loaded.token_bytes) == (tokenizer.name, tokenizer.token_bytes)
    assert loaded.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"name": "bpe", "bpe": {"model": 3}})])
def test_a_file_that_is_no_tokenizer_is_an_error(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"tokenizer\.json: not a tokenizer"):
        Tokenizer.load(path)


def test_saving_leaves_files_of_other_names_alone(tmp_path):
    tokenizer = byte_tokenizer()
    (tmp_path / "tokenizer.json.tmp").write_text("of another process")
    tokenizer.save(tmp_path / "new" / "tokenizer.json")
    tokenizer.save(tmp_path / "tokenizer.json")
    assert (tmp_path / "tokenizer.json.tmp").read_text() == "of another process"
