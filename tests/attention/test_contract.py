"""The contract of `contract.py`, for every backend."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
from contract import AttentionContract

from andrea_jax.attention import chunked


class TestChunked(AttentionContract):
    backend = "chunked"


@pytest.mark.slow  # to compile; test_chunked.py has the short version
class TestChunkedInManyChunks(AttentionContract):
    """Chunks so short that the default lengths need up to nine of them, with padding."""

    backend = "chunked"
    variant = "many chunks"

    @pytest.fixture(autouse=True)
    def _short_chunks(self, monkeypatch):
        monkeypatch.setattr(chunked, "CHUNK", 23)


@pytest.mark.slow  # nothing depends on its speed or its graph, and it changes least
class TestReference(AttentionContract):
    backend = "reference"


class TestCudnn(AttentionContract):
    backend = "cudnn"
    dtype = "bfloat16"
    other_dtypes = ("float16",)
    any_q_offset = False
    deterministic_gradients = False  # its backward adds up dq in whatever order the blocks finish


def test_the_oracle_itself_agrees_with_finite_differences():
    case = oracle.draw(3, 4, batch=1, n_head=2, n_kv_head=1, head_dim=2)
    options = {"q_offset": 1, "kv_length": [3]}
    out = oracle.attention(case, **options)

    def loss(**changed):
        out = oracle.attention(replace(case, **changed), **options)
        return sum((out[n] * getattr(case, "d" + n)).sum() for n in ("z", "lse", "entropy"))

    for name in ("q", "k", "v"):
        x = getattr(case, name)
        for index in np.ndindex(x.shape):
            step = np.zeros_like(x)
            step[index] = 1e-5
            slope = (loss(**{name: x + step}) - loss(**{name: x - step})) / 2e-5
            np.testing.assert_allclose(out["d" + name][index], slope, atol=1e-8)
