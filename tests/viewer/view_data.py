"""Patterns and tokens for the tests of the viewer."""

import numpy as np
import pandas as pd

TOKENS = ["⟨bos⟩", "def", " f", "(", "x", ")", ":", "\n", "    ", "return", " x"]
HOSTILE = [
    "<",
    "</script><script>document.title='broken'</script>",
    "<!--",
    "\n",
    b"\xff",
    "&amp;",
    '"',
    "{{data}}",
    "\\",
]


def uniform(n_layer: int, n_head: int, n_tokens: int) -> np.ndarray:
    """Causal-uniform patterns [layer, head, query, key], without copies."""
    pattern = np.tril(np.ones((n_tokens, n_tokens), np.float32)) / np.arange(1, n_tokens + 1, dtype=np.float32)[:, None]
    return np.broadcast_to(pattern, (n_layer, n_head, n_tokens, n_tokens))


def one_key(n_layer: int, n_head: int, n_tokens: int) -> np.ndarray:
    """Head h of layer l puts everything on the token l + h back (the first token where there is none)."""
    patterns = np.zeros((n_layer, n_head, n_tokens, n_tokens), np.float32)
    for layer, head, query in np.ndindex(n_layer, n_head, n_tokens):
        patterns[layer, head, query, max(query - layer - head, 0)] = 1
    return patterns


def random(n_layer: int, n_head: int, n_tokens: int) -> np.ndarray:
    """Noise, whose bytes no compression would shorten."""
    noise = np.random.default_rng(0).random((n_layer, n_head, n_tokens, n_tokens), np.float32)
    noise = np.tril(noise**8 + 1e-6)
    return noise / noise.sum(axis=-1, keepdims=True)


def table(layers: tuple[int, int] = (0, 1)) -> pd.DataFrame:
    """A profile of 2 layers × 3 heads. Of the first layer head 1 looks one token back, of the second head 2 is an
    induction head; the rest lie at the null."""
    rows = []
    for probe, baseline in {"previous_token": 0.1, "induction": 0.02, "entropy": 2.0}.items():
        for i, layer in enumerate(layers):
            for head in range(3):
                score = {("previous_token", 0, 1): 0.9, ("induction", 1, 2): 0.7, ("induction", 0, 1): 0.5}.get(
                    (probe, i, head), baseline
                )
                rows.append((probe, layer, head, score, score - 0.05, baseline))
    return pd.DataFrame(rows, columns=["probe", "layer", "head", "score", "low", "baseline"])
