"""The sequences that heads are probed on, and the targets on each: text, random tokens, repeats, brackets."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from andrea_jax import data
from andrea_jax.data import Dataset
from andrea_jax.errors import UserError
from andrea_jax.heads import targets
from andrea_jax.heads.targets import Targets

LONGEST_OFFSET = 32
COPIES = 4  # of the block that induction is asked on, where so many fit


@dataclass(frozen=True)
class Stream:
    """tokens int32 [sequence, position]; every probe of `targets` shares one pass over them."""

    tokens: np.ndarray
    targets: Mapping[str, Targets]


@dataclass(frozen=True)
class Repeats(Stream):
    """Repeated blocks; `period` int [sequence] is the length of each sequence's block."""

    period: np.ndarray


def text(dataset: Dataset, seq_len: int, n: int, seed: int) -> Stream:
    """Held-out windows of single documents, half from their starts, half from their middles."""
    tokens = data.heldout_windows(dataset, seq_len - 1, n, seed)
    probes = {
        "previous_token": targets.previous_token(tokens),
        "current_token": targets.current_token(tokens),
        "first_token": targets.first_token(tokens),
        "duplicate_token": targets.duplicate_token(tokens),
        "delimiter": targets.latest(tokens, dataset.tokenizer.punctuation()),
        "newline": targets.latest(tokens, dataset.tokenizer.newline()),
    }
    return Stream(tokens, probes | {offset_name(d): targets.fixed_offset(tokens, d) for d in offsets(seq_len)})


def offsets(seq_len: int) -> range:
    """The distances of the offset profile: 0 to 32, or to the longest that there is."""
    return range(min(LONGEST_OFFSET, seq_len - 1) + 1)


def offset_name(offset: int) -> str:
    return f"offset {offset}"


def random_tokens(dataset: Dataset, seq_len: int, n: int, seed: int) -> Stream:
    """BOS and independent random ids of the corpus: a previous-token head needs no text."""
    tokens = data.random_tokens(dataset.frequent_ids, seq_len, n, seed)
    return Stream(tokens, {"previous_token": targets.previous_token(tokens)})


def repeats(dataset: Dataset, periods: tuple[int, ...], seq_len: int, n: int, seed: int) -> Repeats:
    """BOS and a random block of distinct tokens, again and again; an even number of sequences (n in all) a period.

    `induction` asks in the second copy; attention is causal, so copies after it change nothing. `induction_all` asks
    in all copies up to the fourth, or to the last whole one that fits. Each has a wrong-offset control for every
    other period of `periods`. Neighbouring sequences share their period, so that both halves hold all of them alike.
    Raises UserError where two copies do not fit into seq_len.
    """
    longest = (seq_len - 1) // 2
    if len(set(periods)) < 2 or max(periods) > longest:
        expected = f"two or more different periods up to (seq_len - 1) // 2 = {longest}"
        raise UserError(f"probe.periods must be {expected}, not {list(periods)}")
    length = min(seq_len, 1 + COPIES * max(periods))
    pairs = -(-n // (2 * len(periods)))  # of sequences, a period
    ids, blocks = dataset.frequent_ids, []
    for i, period in enumerate(periods):
        copies = -(-(length - 1) // period)  # the last one is cut
        block = data.repeated_blocks(ids, period, copies, 2 * pairs, seed + i)[:, :length]
        blocks.append(block.reshape(pairs, 2, length))
    tokens = np.stack(blocks, axis=1).reshape(-1, length)
    period = np.tile(np.repeat(periods, 2), pairs)
    return Repeats(tokens, _repeat_targets(tokens, period), period)


def _repeat_targets(tokens: np.ndarray, period: np.ndarray) -> dict[str, Targets]:
    whole = np.minimum(COPIES, (tokens.shape[1] - 1) // period)  # copies that are scored
    every = targets.induction_all(tokens)
    probes = {
        "induction": targets.induction(tokens),
        "induction_all": every.where(every.query <= (whole * period)[every.sequence]),
    }
    for name, right in list(probes.items()):
        for other in np.unique(period).tolist():
            wrong = targets.wrong_offset(right, other - 1)
            probes[control_name(name, other)] = wrong.where(period[wrong.sequence] != other)
    return probes


def control_name(probe: str, period: int) -> str:
    """The wrong-offset control of `probe`: the mass at the offset that would be right if the period were this one."""
    return f"{probe} at the offset of period {period}"
