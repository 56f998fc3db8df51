"""Where a model is asked: sequences, and the positions at which its prediction of the next token counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import Precision

from andrea_jax import data
from andrea_jax.config import Probe
from andrea_jax.data import BracketWindows, Dataset
from andrea_jax.data.annotated_windows import AnnotatedWindows
from andrea_jax.heads import streams
from andrea_jax.training.evaluation import in_context_bands
from andrea_jax.training.step import token_losses

IN_CONTEXT = ("late", "early")  # the two that make the in-context score, the mean loss of one minus the other's

NAMES = ("name", "name_again")


@dataclass(frozen=True)
class Task:
    """tokens int32 [sequence, seq + 1], BOS first: inputs [:, :-1], targets [:, 1:] · asked: name of a behaviour ->
    bool [sequence, seq], true at t where the prediction of tokens[t + 1] counts."""

    tokens: np.ndarray
    asked: Mapping[str, np.ndarray]

    @property
    def inputs(self) -> np.ndarray:
        return self.tokens[:, :-1]

    def on(self, sequences: slice | np.ndarray) -> "Task":
        """The task on some of the sequences."""
        return Task(self.tokens[sequences], {name: asked[sequences] for name, asked in self.asked.items()})

    def answers(self, rows: np.ndarray) -> "Answers":
        """Reads the logits of these sequences."""
        asked = np.stack([self.asked[name][rows] for name in self.asked], axis=1)
        return Answers(self.tokens[rows, 1:].astype(np.int32), asked)


class Answers(NamedTuple):
    """targets int32 [batch, seq], asked bool [batch, behaviour, seq]."""

    targets: Array | np.ndarray
    asked: Array | np.ndarray

    def __call__(self, logits: Array) -> Array:
        """Sums over the asked positions, float32 [batch, behaviour, 2]: −log p(target), nats, and 1 where the likeliest
        token is the target."""
        losses = token_losses(logits, jnp.asarray(self.targets))
        right = (logits.argmax(axis=-1) == self.targets).astype(jnp.float32)
        each, asked = jnp.stack([losses, right], axis=-1), jnp.asarray(self.asked, jnp.float32)
        return jnp.einsum("btx,bat->bax", each, asked, precision=Precision.HIGHEST)


def tasks(dataset: Dataset, probe: Probe, seq_len: int, seed: int = 0) -> list[Task]:
    """Held-out text, repeats and brackets; probe.n_sequences sequences each, repeats at probe.periods.

    Bracket windows may be fewer; without any the task is left out. UserError where the data hold too little text.
    """
    asked = (seq_len, probe.n_sequences, seed)
    found = [text(dataset, *asked), repeats(dataset, probe.periods, *asked), brackets(dataset, *asked)]
    return [task for task in found if len(task.tokens)]


def text(dataset: Dataset, seq_len: int, n: int, seed: int) -> Task:
    """Held-out windows, half from the starts of documents, half from their middles: "loss" everywhere, and the "late"
    and "early" positions of the in-context score (`training.evaluation.in_context_bands`)."""
    tokens = data.heldout_windows(dataset, seq_len, n, seed)
    position = np.broadcast_to(np.arange(seq_len), (n, seq_len))
    bands = zip(IN_CONTEXT, in_context_bands(seq_len), strict=True)
    asked = {name: (first <= position) & (position < last) for name, (first, last) in bands}
    return Task(tokens, {"loss": np.ones((n, seq_len), bool)} | asked)


def repeats(dataset: Dataset, periods: tuple[int, ...], seq_len: int, n: int, seed: int) -> Task:
    """BOS and a block of random tokens again and again (`heads.streams.repeats`). "induction" asks within the second
    copy for its tokens but the first, which nothing before it foretells."""
    stream = streams.repeats(dataset, periods, seq_len + 1, n, seed)
    query, period = np.arange(stream.tokens.shape[1] - 1)[None], stream.period[:, None]
    return Task(stream.tokens, {"induction": (query > period) & (query < 2 * period)})


def brackets(dataset: Dataset, seq_len: int, n: int, seed: int) -> Task:
    """`closers` of held-out Python."""
    return closers(data.bracket_windows(dataset, seq_len + 1, n, seed))


def names(windows: AnnotatedWindows) -> Task:
    """Annotated text: "name" asks for every token of a name, "name_again" for those of a name that the window has had
    before, which can be copied."""
    asked = {name: np.zeros((len(windows.tokens), windows.tokens.shape[1] - 1), bool) for name in NAMES}
    seen: set[tuple[int, str]] = set()
    for (sequence, first, last), surface in zip(windows.names.tolist(), windows.surface.tolist(), strict=True):
        for name in NAMES if (sequence, surface) in seen else NAMES[:1]:
            asked[name][sequence, first - 1 : last] = True
        seen.add((sequence, surface))
    return Task(windows.tokens, asked)


def closers(windows: BracketWindows) -> Task:
    """ "bracket" asks at the token before a closer which closer comes; "bracket_hard" where its match is not the
    nearest opener, "bracket_hardest" where it is not even the nearest of its type."""
    kinds = {"bracket": np.ones(windows.n, bool), "bracket_hard": windows.hard, "bracket_hardest": windows.hardest}
    asked = {}
    for name, chosen in kinds.items():
        asked[name] = np.zeros((len(windows.tokens), windows.tokens.shape[1] - 1), bool)
        asked[name][windows.sequence[chosen], windows.closer[chosen] - 1] = True
    return Task(windows.tokens, asked)
