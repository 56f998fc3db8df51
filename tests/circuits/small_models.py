"""Small models of every kind, with weights far from their initial ones, and texts for them."""

import jax
import jax.numpy as jnp
import numpy as np

from andrea_jax import model as andrea
from andrea_jax.config import Model

BASE = Model(vocab_size=19, seq_len=17, d_model=24, n_layer=2, n_head=3, d_mlp=13, projection="per_head")
TOKENS = np.array([0, 3, 11, 7, 3, 18, 2, 11, 5, 3, 1], np.int32)


def draw_params(config: Model, seed: int = 5) -> dict:
    """Normal weights, sd 0.3, biases too; by numpy, since `model.initialise` compiles every shape."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.3, x.shape), x.dtype), andrea.abstract(config))
