"""For every test: arrays of different rank must be broadcast explicitly."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="session")
def _explicit_rank_promotion():
    jax.config.update("jax_numpy_rank_promotion", "raise")
