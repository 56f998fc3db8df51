"""A data set by hand: two modules of the standard library as bytes, one for training and one held out."""

import heapq
import inspect
import textwrap

import numpy as np
import pytest

from andrea_jax.data import Dataset, Documents
from andrea_jax.data.tokenizer import byte_tokenizer


@pytest.fixture(scope="session")
def dataset_named():
    """name of the held-out document -> Dataset."""

    def make(name: str) -> Dataset:
        tokenizer = byte_tokenizer()

        def pack(text: str, name: str) -> Documents:
            return Documents(
                np.array([0, *tokenizer.encode(text)], np.uint16), np.zeros(1, np.int64), (name,), tokenizer
            )

        train, heldout = pack(inspect.getsource(heapq), "heapq.py"), pack(inspect.getsource(textwrap), name)
        return Dataset(train, heldout, tokenizer, "by hand", {})

    return make
