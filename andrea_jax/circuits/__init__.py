"""Circuits: what the weights say of heads and pairs of heads, and what a logit or a score is made of on a text."""

from andrea_jax.circuits.attribution import Attribution, attribution, lens, lens_table
from andrea_jax.circuits.factors import Factored, HeadWeights, by_head
from andrea_jax.circuits.reading import Component, Reading, read
from andrea_jax.circuits.weights import composition, copying, family_threshold
from andrea_jax.circuits.why import Why, why

__all__ = [
    "Attribution",
    "Component",
    "Factored",
    "HeadWeights",
    "Reading",
    "Why",
    "attribution",
    "by_head",
    "composition",
    "copying",
    "family_threshold",
    "lens",
    "lens_table",
    "read",
    "why",
]
