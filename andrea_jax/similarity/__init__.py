"""How alike heads are: distance of patterns, similarity of outputs, what the other heads of a layer already say."""

from andrea_jax.similarity.engine import Measured, measure
from andrea_jax.similarity.summary import Similarity, summarise

__all__ = ["Measured", "Similarity", "measure", "summarise"]
