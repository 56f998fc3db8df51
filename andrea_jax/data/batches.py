"""Windows of tokens. A batch is a pure function of (seed, step): resuming and sharding need no iterator state."""

import numpy as np

from andrea_jax.config import BOS, Experiment
from andrea_jax.data.packing import Dataset
from andrea_jax.errors import UserError


def batch(dataset: Dataset, experiment: Experiment, step: int, *, rows: slice = slice(None)) -> np.ndarray:
    """The training windows of a step: int32 [row, seq_len + 1]; inputs are [:, :-1], targets [:, 1:].

    Each window is BOS and seq_len tokens of the training stream from a random offset; it may run on into the next
    document, whose BOS stays. The first round(repeat_share * batch_size) windows of the whole batch are repeats
    instead: BOS and one segment of P tokens again and again, P uniform over the whole numbers of data.repeat_periods
    without those of probe.periods; what the segments are made of, data.repeat_kind says (see `_drawn_segments`).
    data.shuffled puts the text of each window, or of the segment that it repeats, into a random order.
    Every host draws the same plan for the whole batch and makes only its own `rows`.
    Raises UserError where ids are to be drawn and no token is frequent enough.
    """
    data, length = experiment.data, experiment.data.seq_len
    n, n_repeat = experiment.train.batch_size, round(data.repeat_share * experiment.train.batch_size)
    rng = np.random.Generator(np.random.Philox(key=np.array([experiment.train.seed, step], np.uint64)))
    starts = rng.integers(0, dataset.train.n_tokens - length + 1, size=n)
    periods = np.full(n, length)  # a window that does not repeat has its own length as its period
    if n_repeat:
        periods[:n_repeat] = rng.choice(training_periods(experiment), size=n_repeat)
    within = np.arange(length) % periods[rows, None]
    segments = None
    if n_repeat and data.repeat_kind != "text":
        segments = _drawn_segments(rng, dataset, data.repeat_kind, (n_repeat, data.repeat_periods[1]))
    place = np.take_along_axis(_orders(rng, periods, length)[rows], within, axis=1) if data.shuffled else within
    window = np.empty((len(within), length + 1), np.int32)
    window[:, 0] = BOS
    window[:, 1:] = dataset.train.tokens[starts[rows, None] + place]
    if segments is not None:
        row_of = np.arange(n)[rows]  # which rows of the whole batch these are
        repeats = np.flatnonzero(row_of < n_repeat)
        drawn = segments[row_of[repeats, None], within[repeats]]
        window[repeats, 1:] = np.where(drawn >= 0, drawn, window[repeats, 1:])
    return window


def _orders(rng: np.random.Generator, periods: np.ndarray, length: int) -> np.ndarray:
    """A random order of each window's first `period` places, the others behind them: int64 [window, length]."""
    keys = rng.random((len(periods), length))
    keys[np.arange(length) >= periods[:, None]] = 2
    return keys.argsort(axis=1)


def _drawn_segments(rng: np.random.Generator, dataset: Dataset, kind: str, shape: tuple[int, int]) -> np.ndarray:
    """The ids of repeated segments that are not text: int32 [segment, token], -1 where the segment stays text.

    kind "random": every id drawn uniformly from `dataset.frequent_ids`. kind "mixed": in turn, beginning in
    every batch with text: text, ids drawn one by one as often as they occur in the text, "random".
    """
    if not len(dataset.frequent_ids):
        raise UserError(f'data.repeat_kind = "{kind}": no token occurs 20 times in the training text; use "text"')
    uniform = rng.choice(dataset.frequent_ids, size=shape)
    if kind == "random":
        return uniform
    as_frequent = dataset.train.tokens[rng.integers(0, dataset.train.n_tokens, size=shape)].astype(np.int32)
    third = np.arange(shape[0])[:, None] % 3
    return np.select([third == 1, third == 2], [as_frequent, uniform], default=-1)


def training_periods(experiment: Experiment) -> np.ndarray:
    """The periods that training windows may repeat with: data.repeat_periods without probe.periods, int64 [period]."""
    shortest, longest = experiment.data.repeat_periods
    return np.setdiff1d(np.arange(shortest, longest + 1), experiment.probe.periods)


def heldout_windows(dataset: Dataset, seq_len: int, n: int, seed: int) -> np.ndarray:
    """n windows inside single held-out documents: int32 [n, seq_len + 1], BOS and a contiguous piece.

    Half are the starts of documents and half lie at places drawn uniformly from the middles; where there are too few
    of one kind, the other fills up. No place is drawn twice; the order is random.
    Raises UserError where the held-out documents hold fewer than n such windows.
    """
    rng = np.random.Generator(np.random.Philox(key=seed))
    lengths = dataset.heldout.lengths()
    long_enough = np.flatnonzero(lengths >= seq_len)
    first = dataset.heldout.starts[long_enough] + 1
    n_middles = lengths[long_enough] - seq_len  # of each document: the offsets 1..n_middles; offset 0 is its start
    ends = np.cumsum(n_middles)
    total = int(n_middles.sum())
    if len(first) + total < n:
        text = (
            f"the {len(lengths)} held-out documents, the longest of {lengths.max()} tokens, hold {len(first) + total}"
        )
        raise UserError(f"{n} held-out windows of {seq_len} tokens were asked for, but {text}")
    from_starts = rng.permutation(first)[: max(n // 2, n - total)]
    drawn = rng.choice(total, size=n - len(from_starts), replace=False) if total else np.zeros(0, np.int64)
    which = np.searchsorted(ends, drawn, side="right")
    from_middles = first[which] + 1 + drawn - (ends - n_middles)[which]
    begins = np.concatenate([from_starts, from_middles])
    windows = np.full((n, seq_len + 1), BOS, np.int32)
    windows[:, 1:] = dataset.heldout.tokens[begins[:, None] + np.arange(seq_len)]
    return rng.permutation(windows)
