"""The head profile on few sequences, cheap enough to be made again and again while a model trains."""

import dataclasses
import itertools

import numpy as np

from andrea_jax import config
from andrea_jax.data import Dataset
from andrea_jax.heads import brackets
from andrea_jax.heads.profile import Asked, Profile, assembled
from andrea_jax.heads.scores import Measured, measure
from andrea_jax.heads.targets import Targets
from andrea_jax.model import Params

N_SEQUENCES = 32  # a stream


class QuickProfile:
    """`quick(params)` is `heads.profile` on `N_SEQUENCES` sequences a stream, brackets too, or on probe.n_sequences
    where those are fewer. The sequences are chosen once, and all streams share one pass and one compilation.

    Raises what `heads.profile` does.
    """

    def __init__(
        self, model: config.Model, dataset: Dataset, probe: config.Probe, *, seq_len: int, dtype: str, backend: str
    ):
        self._model, self._dtype, self._backend = model, dtype, backend
        self.n_sequences = min(N_SEQUENCES, probe.n_sequences)
        few = dataclasses.replace(probe, n_sequences=self.n_sequences)
        self._asked = Asked.of(model, dataset, few, seq_len, seed=0, most_brackets=1)
        ends = list(itertools.accumulate(len(stream.tokens) for stream in self._asked))
        self._rows = [slice(*rows) for rows in zip([0, *ends], ends, strict=False)]
        # shorter sequences go on with their last token: what comes later changes nothing before
        self._tokens = np.concatenate(
            [np.pad(s.tokens, ((0, 0), (0, seq_len - s.tokens.shape[1])), mode="edge") for s in self._asked]
        )

    def __call__(self, params: Params) -> Profile:
        return assembled(self._model, self._asked, self.measure(params))

    def measure(self, params: Params) -> tuple[Measured, ...]:
        """What was measured on each stream."""
        targets = {
            f"{i} {name}": _shifted(wanted, rows.start)
            for i, (stream, rows) in enumerate(zip(self._asked, self._rows, strict=True))
            for name, wanted in stream.targets.items()
        }
        listed = _shifted(brackets.openers(self._asked.bracket.windows), self._rows[3].start)
        how = {"dtype": self._dtype, "backend": self._backend}
        every = measure(self._model, params, self._tokens, targets, listed=listed, entropy=True, **how)  # pyright: ignore[reportArgumentType]
        return tuple(self._of_stream(i, every) for i in range(len(self._asked)))

    def _of_stream(self, i: int, every: Measured) -> Measured:
        rows = self._rows[i]
        probes = {name: every.probes[f"{i} {name}"].on(rows) for name in self._asked[i].targets}
        assert every.entropy is not None
        return Measured(probes, every.entropy[rows], every.listed)


def _shifted(wanted: Targets, by: int) -> Targets:
    """The same targets in sequences that begin `by` rows further down."""
    return dataclasses.replace(wanted, sequence=wanted.sequence + np.int32(by))
