"""Real text in, windows of token ids out."""

from andrea_jax.data.batches import batch, heldout_windows, training_periods
from andrea_jax.data.brackets import BracketWindows, bracket_windows
from andrea_jax.data.packing import Dataset, Documents, prepare
from andrea_jax.data.probe_texts import random_tokens, repeated_blocks
from andrea_jax.data.tokenizer import Tokenizer

__all__ = [
    "BracketWindows",
    "Dataset",
    "Documents",
    "Tokenizer",
    "batch",
    "bracket_windows",
    "heldout_windows",
    "prepare",
    "random_tokens",
    "repeated_blocks",
    "training_periods",
]
