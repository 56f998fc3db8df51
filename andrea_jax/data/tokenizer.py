"""Text to ids and back: plain bytes, byte-level BPE whose tokens never swallow a bracket, or what came with a model.

Ids: 0 is BOS, 1 + b is the byte b, and from 257 on come the merges. Brackets are isolated before merging (a Split on
`()[]{}`, then GPT-2's byte-level pattern): otherwise "()" or "):" is one token and a head that looks for the matching
bracket has nothing to point at. The price: the space before a bracket is a token of its own.

A vocabulary that came with another's model keeps its merges and its ids but two: BOS changes places with id 0, so that
BOS is 0 here as well. `Tokenizer.bos` remembers where it was.
"""

import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from andrea_jax.config import BOS, N_BYTES
from andrea_jax.errors import UserError
from andrea_jax.runs import write_atomically

BRACKETS = "()[]{}"
BOS_TEXT = "⟨bos⟩"  # outside the byte-level alphabet, so no text can become it


@dataclass(frozen=True)
class Tokenizer:
    """`name` is "bytes", "bpe" or "imported"; `token_bytes[id]` are the bytes of each token, b"" for BOS; `bos`, of an
    imported one, is the id of BOS outside: it and 0 have changed places."""

    name: str
    token_bytes: tuple[bytes, ...]
    bpe: tokenizers.Tokenizer | None = None
    bos: int = BOS

    def __repr__(self) -> str:
        return f"Tokenizer({self.name}, {self.vocab_size} tokens)"

    @property
    def vocab_size(self) -> int:
        return len(self.token_bytes)

    def encode(self, text: str) -> list[int]:
        """The ids of the text, without BOS."""
        return self.encode_documents([text])[0].tolist()

    def encode_documents(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text, uint16 [token], without BOS."""
        if self.bpe is None:
            return [np.frombuffer(text.encode(), np.uint8).astype(np.uint16) + np.uint16(1) for text in texts]
        encodings = self.bpe.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.uint16) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; BOS is nothing, and bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes[i] for i in ids).decode("utf-8", "replace")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """One printable string a token, for plots: space is ·, newline is ⏎, tab is ⇥, a lone byte is \\xNN."""
        return [BOS_TEXT if i == BOS else _printable(self.token_bytes[i]) for i in ids]

    def punctuation(self) -> np.ndarray:
        """bool [vocab]: tokens of punctuation alone (Unicode's categories P and S; in ASCII, string.punctuation).

        No letter, digit, space or newline; not BOS, nor a byte that is no character by itself.
        """
        return np.array([_is_punctuation(piece) for piece in self.token_bytes])

    def newline(self) -> np.ndarray:
        """bool [vocab]: tokens that hold a newline, whatever else they hold."""
        return np.array([b"\n" in piece for piece in self.token_bytes])

    def to_json(self) -> str:
        """What `from_json` reads."""
        saved = {"name": self.name, "bpe": None if self.bpe is None else json.loads(self.bpe.to_str())}
        return json.dumps(saved | ({"bos": self.bos} if self.name == "imported" else {}))

    @staticmethod
    def from_json(text: str) -> "Tokenizer":
        """The tokenizer written by `to_json`."""
        saved = json.loads(text)
        if saved["name"] == "bytes":
            return byte_tokenizer()
        try:
            bpe = tokenizers.Tokenizer.from_str(json.dumps(saved["bpe"]))
        except Exception as error:  # the library raises no narrower class
            raise ValueError(f"no BPE model: {error}") from error
        return imported(bpe, saved["bos"]) if saved["name"] == "imported" else _bpe_tokenizer(bpe)

    def save(self, path: Path) -> None:
        """Writes the tokenizer to one JSON file, atomically."""
        write_atomically(path, self.to_json())

    @staticmethod
    def load(path: Path) -> "Tokenizer":
        """The tokenizer saved at `path`; UserError where the file is missing or is no tokenizer."""
        try:
            return Tokenizer.from_json(path.read_text(encoding="utf-8"))
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: not a tokenizer saved by andrea_jax ({error})") from error


def byte_tokenizer() -> Tokenizer:
    """Vocabulary 257: BOS and the 256 bytes."""
    return Tokenizer("bytes", (b"", *(bytes([b]) for b in range(N_BYTES))))


def load_imported(path: Path | None) -> Tokenizer:
    """The tokenizer at `path` for a data set with data.tokenizer = "imported". UserError where there is none."""
    if path is None or not path.is_file():
        found = "no tokenizer came with it" if path is None else f"there is no {path}"
        raise UserError(f'data.tokenizer = "imported": {found}; a model trained here has "bpe" or "bytes"')
    return Tokenizer.load(path)


def train_bpe(texts: Sequence[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE with vocab_size - 257 merges learned from `texts`; the same texts give the same tokenizer.

    Raises UserError where the texts are too few to yield that many merges.
    """
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,  # BOS is added below
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = _isolate_brackets()
    learner.train_from_iterator(texts, trainer)
    model = json.loads(learner.to_str())["model"]
    n_merged = len(model["vocab"]) - N_BYTES
    if n_merged < vocab_size - 1 - N_BYTES:
        text = f"must be at most {n_merged + N_BYTES + 1} for this corpus, which yields {n_merged} merges"
        raise UserError(f"model.vocab_size = {vocab_size}: {text}")
    # the trainer numbers the alphabet by code point; ours is by byte
    vocab = {BOS_TEXT: BOS} | {token: i + 1 for token, i in model["vocab"].items()}
    vocab |= {token: BOS + 1 + byte for byte, token in enumerate(BYTE_CHARACTERS)}
    merges = [tuple(merge) for merge in model["merges"]]
    bpe = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    bpe.pre_tokenizer = _isolate_brackets()
    return _bpe_tokenizer(bpe)


def imported(bpe: tokenizers.Tokenizer, bos: int) -> Tokenizer:
    """Another's byte-level BPE, whose ids 0 and `bos` have already changed places; a token may hold brackets."""
    return Tokenizer("imported", _token_bytes(bpe), bpe, bos)


def _token_bytes(bpe: tokenizers.Tokenizer) -> tuple[bytes, ...]:
    """The bytes of each id, b"" for BOS. A token outside the byte-level alphabet, which no text becomes, is itself."""
    vocab, byte_of = bpe.get_vocab(), {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
    _, *tokens = sorted(vocab, key=lambda token: vocab[token])
    bytewise = [byte_of.keys() >= set(token) for token in tokens]
    pairs = zip(tokens, bytewise, strict=True)
    return (b"", *(bytes(byte_of[c] for c in token) if plain else token.encode() for token, plain in pairs))


def _bpe_tokenizer(bpe: tokenizers.Tokenizer) -> Tokenizer:
    token_bytes = _token_bytes(bpe)
    merged = [piece for piece in token_bytes if len(piece) > 1 and any(ord(bracket) in piece for bracket in BRACKETS)]
    if merged:
        raise ValueError(f"a bracket must be a token of its own, but these tokens hold one: {merged[:5]}")
    return Tokenizer("bpe", token_bytes, bpe)


def _isolate_brackets() -> pre_tokenizers.PreTokenizer:
    brackets = pre_tokenizers.Split(tokenizers.Regex(r"[()\[\]{}]"), "isolated")
    return pre_tokenizers.Sequence([brackets, pre_tokenizers.ByteLevel(add_prefix_space=False)])


def _byte_characters() -> list[str]:
    """GPT-2's printable character for each byte: itself where it prints, else the next one from U+0100 on."""
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(N_BYTES) if byte not in prints]
    return [chr(byte) if byte in prints else chr(0x100 + others.index(byte)) for byte in range(N_BYTES)]


BYTE_CHARACTERS = _byte_characters()


def _is_punctuation(piece: bytes) -> bool:
    text = piece.decode("utf-8", "ignore")
    return text.encode() == piece != b"" and all(unicodedata.category(c)[0] in "PS" for c in text)


def _printable(piece: bytes) -> str:
    text = piece.decode("utf-8", "backslashreplace").translate({0x20: "·", 0x0A: "⏎", 0x09: "⇥"})
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
