"""One head's pattern on a text a person reads."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from andrea_jax.errors import UserError

MOST_TOKENS = 64  # in a pattern whose tokens are to be read


@dataclass(frozen=True)
class Pattern:
    """One head's pattern on a text: pattern, targets [query, key] (targets bool), tokens as printable strings."""

    layer: int
    head: int
    probe: str
    score: float  # of the head on its probe over the corpus, not on this text
    baseline: float
    tokens: Sequence[str]
    pattern: np.ndarray
    targets: np.ndarray

    def check(self) -> None:
        """Raises `UserError` where the sizes disagree or there are too many tokens to read."""
        square = (len(self.tokens), len(self.tokens))
        if np.shape(self.pattern) != square or np.shape(self.targets) != square:
            sizes = f"pattern is {np.shape(self.pattern)} and targets {np.shape(self.targets)}"
            raise UserError(f"{square[0]} tokens need a pattern and targets of shape {square}, and {sizes}")
        if square[0] > MOST_TOKENS:
            raise UserError(f"a pattern with readable tokens has at most {MOST_TOKENS} of them, not {square[0]}")
