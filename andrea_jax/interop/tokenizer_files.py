"""Byte-level BPE in Hugging Face's files, read and written: tokenizer.json, or vocab.json with merges.txt.

Here BOS is id 0 in every vocabulary; in GPT-2's it is <|endoftext|>, id 50256. So reading lets the two ids change
places, in the vocabulary as in the rows of the embeddings (`exchanged`), and writing lets them change back: the model
computes what it did, and nothing else has to know of another BOS.
"""

import json
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers

from andrea_jax.config import BOS
from andrea_jax.data import Tokenizer
from andrea_jax.data.tokenizer import BOS_TEXT, BYTE_CHARACTERS, imported
from andrea_jax.errors import UserError
from andrea_jax.interop.files import read_object
from andrea_jax.runs import write_atomically

TOKENIZER, VOCAB, MERGES = "tokenizer.json", "vocab.json", "merges.txt"
_UNUSED = "⟨unused-"  # the name of an id without a token; outside the byte-level alphabet, so no text becomes it
_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
# with what normalizers change: case, runs of spaces, composed and decomposed accents, ligatures, what is at the end
_SAMPLE = 'Def f(x):\n\treturn  [x, "naïve cafe\u0301 \ufb01 日本 🙂"]  # <|x|>\r\n '


def exchanged(n: int, bos: int) -> np.ndarray:
    """Where each of n ids lies when ids 0 and `bos` change places: int64 [n]. Its own inverse."""
    places = np.arange(n)
    places[[BOS, bos]] = bos, BOS
    return places


def tokenizer_files(folder: Path) -> list[Path]:
    """The files that `read_tokenizer` reads. UserError where they are not there."""
    if (folder / TOKENIZER).is_file():
        return [folder / TOKENIZER]
    parts = [folder / VOCAB, folder / MERGES]
    if all(part.is_file() for part in parts):
        return parts
    raise UserError(f"{folder}: has no tokenizer; expected {TOKENIZER}, or {VOCAB} and {MERGES}")


def read_tokenizer(folder: Path, vocab_size: int, bos: int) -> Tokenizer:
    """The tokenizer of a Hugging Face folder, for a model of vocab_size ids of which `bos` is BOS.

    Special tokens are read as ids and not recognised in text, where "<|endoftext|>" is thirteen characters like any
    others. Ids without a token are called "⟨unused-n⟩". Raises UserError where the files are missing or damaged, where
    they hold no byte-level BPE that gives back every text as it was, or ids that the model does not have.
    """
    path = tokenizer_files(folder)[0]
    described = _described(path)
    try:
        model = described["model"]
        known = model["vocab"] | {token["content"]: token["id"] for token in described["added_tokens"]}
        of_id = {i: token for token, i in known.items()}
        highest = max(of_id)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: is no BPE tokenizer of Hugging Face's tokenizers library ({error!r})") from None
    if highest >= vocab_size:
        raise UserError(f"{path}: has id {highest} for {of_id[highest]!r}, and the model has vocab_size = {vocab_size}")
    if bos not in of_id:
        raise UserError(f"{path}: has no token with id {bos}, which config.json calls bos_token_id")
    places = exchanged(vocab_size, bos).tolist()
    vocab = {of_id.get(i, f"{_UNUSED}{i}⟩"): place for i, place in enumerate(places)}
    parts = {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None, "decoder": _DECODER}
    try:
        bpe = tokenizers.Tokenizer.from_str(json.dumps({**described, **parts, "model": {**model, "vocab": vocab}}))
        tokenizer = imported(bpe, bos)
        same = tokenizer.decode(tokenizer.encode(_SAMPLE)) == _SAMPLE
    except Exception as error:  # the library raises no narrower class
        raise UserError(f"{path}: is no BPE tokenizer of Hugging Face's tokenizers library ({error})") from None
    if not same:
        raise UserError(f"{path}: must be byte-level and keep every character: decode(encode(text)) changes a text")
    return tokenizer


def _described(path: Path) -> dict:
    """What tokenizer.json says, or would say if it were there."""
    if path.name == TOKENIZER:
        return read_object(path)
    try:
        bpe = tokenizers.Tokenizer(models.BPE.from_file(str(path), str(path.with_name(MERGES))))
    except Exception as error:  # the library raises no narrower class
        raise UserError(f"{path}: is, with {MERGES}, no BPE vocabulary ({error})") from None
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return json.loads(bpe.to_str())


def write_tokenizer(tokenizer: Tokenizer, folder: Path, seq_len: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json, which `transformers.AutoTokenizer` reads, into `folder`.

    Of an imported tokenizer, with its own ids again. seq_len: positions of the model.
    """
    bpe = tokenizer.bpe or _as_bpe(tokenizer)
    described, places = json.loads(bpe.to_str()), exchanged(tokenizer.vocab_size, tokenizer.bos).tolist()
    text, vocab = bpe.id_to_token(BOS), described["model"]["vocab"]
    outside = {token: places[i] for token, i in vocab.items() if not token.startswith(_UNUSED)}
    described["model"]["vocab"] = dict(sorted(outside.items(), key=lambda item: item[1]))
    special = {"special": True, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
    described["added_tokens"] = [{"id": tokenizer.bos, "content": text, **special}]
    described["decoder"] = _DECODER
    write_atomically(folder / TOKENIZER, json.dumps(described, ensure_ascii=False))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": text, "eos_token": text}
    settings |= {"model_max_length": seq_len, "clean_up_tokenization_spaces": False}
    write_atomically(folder / "tokenizer_config.json", json.dumps(settings, indent=2, ensure_ascii=False))


def _as_bpe(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """The byte tokenizer as a BPE without merges."""
    vocab = {BOS_TEXT: BOS} | {character: byte + 1 for byte, character in enumerate(BYTE_CHARACTERS)}
    bpe = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return bpe
