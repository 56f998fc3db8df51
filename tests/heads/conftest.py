"""A data set by hand: two modules of the standard library, a token a byte, few enough ids for a small model."""

import heapq
import inspect
import textwrap

import numpy as np
import pytest

from andrea_jax.data import Dataset, Documents, Tokenizer

TRAIN, HELDOUT = (inspect.getsource(module).encode() for module in (heapq, textwrap))
ALPHABET = sorted({*TRAIN, *HELDOUT})
VOCAB_SIZE = 1 + len(ALPHABET)


@pytest.fixture(scope="session")
def vocab_size() -> int:
    return VOCAB_SIZE


@pytest.fixture(scope="session")
def dataset_named():
    """name of the held-out document -> Dataset."""
    tokenizer = Tokenizer("characters", (b"", *(bytes([byte]) for byte in ALPHABET)))

    def pack(text: bytes, name: str) -> Documents:
        ids = np.array([0, *(1 + ALPHABET.index(byte) for byte in text)], np.uint16)
        return Documents(ids, np.zeros(1, np.int64), (name,), tokenizer)

    return lambda name: Dataset(pack(TRAIN, "heapq.py"), pack(HELDOUT, name), tokenizer, "by hand", {})
