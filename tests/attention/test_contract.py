"""The contract of `contract.py`, for every backend."""

import os
from dataclasses import replace

import jax
import numpy as np
import oracle
import pytest
from contract import AttentionContract
from jax._src.pallas.mosaic_gpu.interpret import interpret_pallas_call  # where found races are kept
from jax.experimental.pallas import mosaic_gpu as plgpu

from andrea_jax.attention import chunked, mosaic


class TestChunked(AttentionContract):
    backend = "chunked"
    # XLA for a GPU adds up in another order once the entropy is asked for as well (H200, jax 0.11.2: 3e-7)
    same_bits_with_entropy = jax.default_backend() != "gpu"


@pytest.mark.slow  # to compile; test_chunked.py has the short version
class TestChunkedInManyChunks(AttentionContract):
    """Chunks so short that the default lengths need up to nine of them, with padding."""

    backend = "chunked"
    variant = "many chunks"
    same_bits_with_entropy = TestChunked.same_bits_with_entropy

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


# what crosses tiles, masks, groups of heads and padding: with this few, the interpreter is done in a minute
INTERPRETED = {
    "test_values_and_gradients_equal_float64[192]",
    "test_any_multiple_of_eight_is_a_head_dim[72]",
    "test_keys_beyond_kv_length_do_not_exist[False]",
    "test_rows_before_the_first_key_are_empty",
    "test_parts_of_one_array_give_what_they_give_apart[72-16-True]",
}


@pytest.mark.slow
class TestMosaic(AttentionContract):
    """On a Hopper GPU the compiled kernels; elsewhere JAX's interpreter of them, which looks for races as well."""

    backend = "mosaic"
    dtype = "bfloat16"
    other_dtypes = ("float16",)

    @pytest.fixture
    def surroundings(self, request):
        if jax.default_backend() == "gpu":
            yield
            return
        if request.node.name not in INTERPRETED and "ANDREA_WHOLE_CONTRACT" not in os.environ:
            pytest.skip("minutes in the interpreter; ANDREA_WHOLE_CONTRACT=1 runs it")
        with mosaic.interpreted(plgpu.InterpretGPUParams(detect_races=True)):
            yield
        races = interpret_pallas_call.get_races()
        assert races is None or not races.races_found


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
