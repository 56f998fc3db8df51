"""Loss on held-out text, per token, per byte, and as a function of position."""

import functools
from collections.abc import Callable

import jax
import numpy as np
from jax import Array

from andrea_jax import devices, model
from andrea_jax.config import Compute, Model
from andrea_jax.data import Dataset, Tokenizer, heldout_windows
from andrea_jax.model import Params
from andrea_jax.training.placement import ONE_DEVICE, Placement
from andrea_jax.training.step import token_losses

EVAL_TOKENS = 65_536  # of held-out text an evaluation
Band = tuple[int, int]  # positions first <= i < last; position 0 predicts the first token after BOS


def in_context_bands(seq_len: int) -> tuple[Band, Band]:
    """(late, early): the positions that the in-context score compares.

    480–520 and 40–60 where the context has them (after Olsson et al. 2022, which compares tokens 500 and 50); in
    shorter contexts the last quarter and the second eighth. Bands, since single positions are noise.
    """
    if seq_len >= 520:
        return (480, 520), (40, 60)
    eighth = seq_len // 8
    return (seq_len - max(seq_len // 4, 1), seq_len), (eighth, max(seq_len // 4, eighth + 1))


def heldout_set(dataset: Dataset, seq_len: int) -> np.ndarray:
    """The windows that a run is evaluated on, int32 [n, seq_len + 1], the same for every run on the same data:
    `EVAL_TOKENS` tokens, fewer where the held-out text is short. UserError where it holds no window at all."""
    lengths = dataset.heldout.lengths()
    places = lengths[lengths >= seq_len] - seq_len  # a document's windows besides the one at its start
    n = min(EVAL_TOKENS // seq_len, 2 * places.sum(), places.sum() + len(places))
    return heldout_windows(dataset, seq_len, max(int(n), 1), seed=0)


def window_losses(
    config: Model,
    params: Params,
    windows: np.ndarray,
    *,
    compute: Compute,
    batch_size: int,
    placement: Placement = ONE_DEVICE,
) -> np.ndarray:
    """The loss of every token, nats: windows int [n, seq + 1] -> float32 [n, seq]. batch_size windows at a time, more
    where `placement`, that of the parameters, cuts them into parts; compute.mesh is not looked at."""
    n, parts = len(windows), placement.rows
    size = -(-batch_size // parts) * parts
    padded = np.resize(windows, (-(-n // size) * size, windows.shape[1]))  # the last batch repeats windows
    batches = np.split(padded.astype(np.int32), len(padded) // size)
    placed = (placement.batch(batch.shape, batch.__getitem__) for batch in batches)
    losses = _losses(config, compute, placement)
    return np.concatenate([np.asarray(losses(params, batch)) for batch in placed])[:n]


@functools.lru_cache
def _losses(config: Model, compute: Compute, placement: Placement) -> Callable[[Params, Array], Array]:
    @functools.partial(jax.jit, compiler_options=devices.compiler_options())
    def losses(params: Params, tokens: Array) -> Array:
        used, params = placement.gathered(config, params, compute.dtype)
        andrea = model.bind(used, params, dtype=compute.dtype, backend=compute.backend)
        with devices.over(placement.mesh):
            logits = andrea(tokens[:, :-1], tap=placement.tap)
        return placement.whole(token_losses(logits, tokens[:, 1:]))

    return losses


def evaluate(
    config: Model,
    params: Params,
    windows: np.ndarray,
    tokenizer: Tokenizer,
    *,
    compute: Compute,
    batch_size: int,
    placement: Placement = ONE_DEVICE,
) -> dict[str, float | int | list[int]]:
    """Held-out loss of windows int [n, seq + 1] (BOS, then text of one document):

    loss: mean over all tokens, nats a token · loss_per_byte: their sum over the bytes they stand for, nats a byte,
    comparable across tokenizers · n_tokens · in_context: mean loss at the late positions − at the early ones, nats
    (negative: context helps) · in_context_late, in_context_early: these positions, [first, last).
    """
    losses = window_losses(config, params, windows, compute=compute, batch_size=batch_size, placement=placement).astype(
        np.float64
    )
    n_bytes = np.array([len(piece) for piece in tokenizer.token_bytes])[windows[:, 1:]].sum()
    late, early = in_context_bands(losses.shape[1])
    return {
        "loss": float(losses.mean()),
        "loss_per_byte": float(losses.sum() / n_bytes),
        "n_tokens": losses.size,
        "in_context": float(losses[:, slice(*late)].mean() - losses[:, slice(*early)].mean()),
        "in_context_late": list(late),
        "in_context_early": list(early),
    }
