"""A tiny data set in memory and a tiny experiment on it."""

import dataclasses

import numpy as np

from andrea_jax import config
from andrea_jax.data import Dataset, Documents
from andrea_jax.data.tokenizer import byte_tokenizer


def documents(n: int, seed: int) -> Documents:
    """n documents of 40 to 90 byte tokens of a repetitive made-up text, BOS before each."""
    rng = np.random.default_rng(seed)
    words = [b"def ", b"return ", b"x = ", b"(a, b)", b"[0]", b"\n", b"    ", b"self."]
    parts, starts, length = [], [], 0
    for _ in range(n):
        text = b"".join(words[i] for i in rng.integers(len(words), size=60))[: int(rng.integers(40, 90))]
        ids = np.concatenate([[0], np.frombuffer(text, np.uint8).astype(np.int64) + 1]).astype(np.uint16)
        parts.append(ids)
        starts.append(length)
        length += len(ids)
    names = tuple(f"made/{i}" for i in range(n))
    return Documents(np.concatenate(parts), np.array(starts, np.int64), names, byte_tokenizer())


def tiny_dataset() -> Dataset:
    summary: dict[str, object] = {"corpus": "made", "hash": "made-0"}
    return Dataset(documents(53, 0), documents(19, 1), byte_tokenizer(), "made-0", summary)


def tiny_experiment_of(**train: int) -> config.Experiment:
    """23 steps of a one-layer model on windows of 13 tokens, evaluated every 7 steps."""
    return config.Experiment(
        model=config.Model(vocab_size=257, seq_len=17, d_model=16, n_layer=1, n_head=2),
        data=config.Data(tokenizer="bytes", seq_len=13, repeat_periods=(2, 5)),
        optim=config.Optim(learning_rate=1e-2, warmup_steps=3),
        train=dataclasses.replace(config.Train(steps=23, batch_size=5, eval_every=7), **train),
        compute=config.Compute(backend="reference"),
        probe=config.Probe(periods=(3, 4)),
    )
