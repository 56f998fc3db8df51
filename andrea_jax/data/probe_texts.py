"""Synthetic sequences for probes: repeated blocks and random tokens, from ids that the model has really seen."""

import numpy as np

from andrea_jax.config import BOS
from andrea_jax.errors import UserError


def repeated_blocks(ids: np.ndarray, period: int, copies: int, n: int, seed: int) -> np.ndarray:
    """BOS and a block of `period` distinct random ids, `copies` times: int32 [n, 1 + period * copies].

    Distinct ids leave exactly one earlier occurrence a copy, so the target of induction is never ambiguous.
    Raises UserError where there are fewer than `period` ids.
    """
    if period > len(ids):
        raise UserError(f"a block of {period} distinct tokens was asked for, but only {len(ids)} ids are in use")
    rng = np.random.Generator(np.random.Philox(key=seed))
    blocks = rng.permuted(np.broadcast_to(ids, (n, len(ids))), axis=1)[:, :period]
    return _with_bos(np.tile(blocks, (1, copies)))


def random_tokens(ids: np.ndarray, seq_len: int, n: int, seed: int) -> np.ndarray:
    """BOS and seq_len - 1 ids drawn independently and uniformly from `ids`: int32 [n, seq_len]."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    return _with_bos(rng.choice(ids, size=(n, seq_len - 1)))


def _with_bos(tokens: np.ndarray) -> np.ndarray:
    return np.pad(tokens.astype(np.int32), ((0, 0), (1, 0)), constant_values=BOS)
