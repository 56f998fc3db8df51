"""Tiny data sets made by hand, packed here by plain loops, independently of the package."""

from collections.abc import Callable

import numpy as np
import pytest

from andrea_jax.config import Data, Experiment, Model, Probe, Train
from andrea_jax.data import Dataset, Documents, Tokenizer
from andrea_jax.data.tokenizer import byte_tokenizer


def _pack(texts: dict[str, str], tokenizer: Tokenizer) -> Documents:
    stream: list[int] = []
    starts: list[int] = []
    for text in texts.values():
        starts.append(len(stream))
        stream += [0, *tokenizer.encode(text)]
    return Documents(np.array(stream, np.uint16), np.array(starts, np.int64), tuple(texts), tokenizer)


@pytest.fixture
def dataset_of() -> Callable[..., Dataset]:
    """(train, heldout, tokenizer=bytes) -> Dataset; train and heldout map names to texts."""

    def make(train: dict[str, str], heldout: dict[str, str], tokenizer: Tokenizer | None = None) -> Dataset:
        tokenizer = tokenizer or byte_tokenizer()
        return Dataset(_pack(train, tokenizer), _pack(heldout, tokenizer), tokenizer, "by hand", {})

    return make


@pytest.fixture
def experiment_of() -> Callable[..., Experiment]:
    """Fields of Data, and batch_size, seed, vocab_size, probe_periods -> Experiment."""

    def make(
        *, batch_size: int = 7, seed: int = 3, vocab_size: int = 257, probe_periods: tuple[int, ...] = (3, 5), **data
    ) -> Experiment:
        data = {"tokenizer": "bytes", "seq_len": 23, "repeat_periods": (2, 7)} | data
        return Experiment(
            model=Model(vocab_size=vocab_size, seq_len=64, d_model=32, n_layer=1, n_head=2),
            data=Data(**data),
            train=Train(batch_size=batch_size, seed=seed),
            probe=Probe(periods=probe_periods),
        )

    return make
