"""What can be done to a head: zero, mean, resample, redirect to BOS, pattern-preserving.

    zero                z_h = 0: the head adds nothing, not even its mean. In layer 0 most of its effect may be that a
                        constant is gone (up to 3.9 nats where the mean costs 0.008): never read it without "mean"
    mean                z_h = the mean of z_h at the same position over the *other* sequences, intact: what depends on
                        the sequence is gone. Over the same sequence it would hand the future to every position
    resample            z_h = z_h of another sequence at the same position, intact (Chan et al. 2022, Causal scrubbing)
    redirect_to_bos     the whole pattern lies on position 0: z_h = v[0] of its key-value head
    pattern_preserving  z_h = 0, and every head of every layer keeps its intact pattern: what later heads lose because
                        they look elsewhere is left out, only what flows through values counts

No kind makes a pattern: a kept one is the one of kept queries and keys.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from andrea_jax.config import Model
from andrea_jax.errors import UserError, did_you_mean
from andrea_jax.interventions.edits import Layers, Swap, batches, recorded, shape_of_calls
from andrea_jax.model import Params

KINDS = ("zero", "mean", "resample", "redirect_to_bos", "pattern_preserving")


def swaps(
    kind: str, config: Model, params: Params, tokens: np.ndarray, *, dtype: str, backend: str, seed: int = 0
) -> Callable[[np.ndarray], Swap]:
    """numbers of sequences -> what their heads get; for tokens int [sequence, seq].

    seed: of resample, which deals every sequence another one's z. UserError for an unknown kind, and for one sequence
    alone where others are needed.
    """
    check_kind(kind)
    if kind in ("mean", "resample") and len(tokens) < 2:
        raise UserError(f'kind = "{kind}": needs two sequences or more, since it replaces a head by what others give')
    tokens = tokens.astype(np.int32)

    def intact(rows: np.ndarray) -> dict[str, Layers]:
        return recorded(config, dtype, backend, ("q", "k", "z"), params, tokens[rows])

    donor = donors(len(tokens), seed)
    size, _ = shape_of_calls(config, tokens.shape, 8)
    total = _total(intact, len(tokens), size) if kind == "mean" else None

    def swap(rows: np.ndarray) -> Swap:
        here = intact(rows)
        z = jax.tree.map(jnp.zeros_like, here["z"])
        if total is not None:
            z = _mean_of_others(total, here["z"], len(tokens))
        if kind == "resample":
            z = intact(donor[rows])["z"]
        to_bos, frozen = (jnp.asarray(kind == this) for this in ("redirect_to_bos", "pattern_preserving"))
        return Swap(z, to_bos, here["q"], here["k"], frozen)

    return swap


def check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise UserError(f'kind = "{kind}": must be one of {", ".join(KINDS)}{did_you_mean(kind, KINDS)}')


def donors(n: int, seed: int) -> np.ndarray:
    """Which other sequence gives its z to each of n: one cycle through all of them, int64 [n]."""
    order = np.random.default_rng(seed).permutation(n)
    donor = np.empty(n, np.int64)
    donor[order] = np.roll(order, 1)
    return donor


def _total(intact: Callable[[np.ndarray], dict[str, Layers]], n: int, size: int) -> Layers:
    """Σ of z over n sequences, of every layer, float32 [seq, n_head, head_dim]."""
    sums: Layers | None = None
    for i, rows in enumerate(batches(n, size)):
        own = n - i * size  # rows after these repeat a sequence
        part = tuple(z[:own].astype(jnp.float32).sum(axis=0) for z in intact(rows)["z"])
        sums = part if sums is None else jax.tree.map(jnp.add, sums, part)
    assert sums is not None
    return sums


def _mean_of_others(total: Layers, z: Layers, n: int) -> Layers:
    """(Σ over all sequences − its own z) / (n − 1), of every sequence of a batch."""
    others = (all_of_them[None] - own.astype(jnp.float32) for all_of_them, own in zip(total, z, strict=True))
    return tuple((x / (n - 1)).astype(own.dtype) for x, own in zip(others, z, strict=True))
