"""What attention over short sequences promises: the oracle's numbers, from a pattern that is kept and not whole."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from andrea_jax.attention import attention, short

LENGTH = 101  # three parts of 34, 34 and 33 queries


def arrays(dtype: str) -> tuple[Array, ...]:
    """q, k and v, and cotangents of z, lse and entropy: 2 windows, 6 heads, 3 key-value heads, head_dim 11."""
    keys = jax.random.split(jax.random.key(0), 6)
    shapes = [(2, LENGTH, heads, 11) for heads in (6, 3, 3, 6)]
    normal = [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=False)]
    return *normal, *(jax.random.normal(key, (2, 6, LENGTH)) for key in keys[4:])


def results(attend: Callable, q: Array, k: Array, v: Array, *cotangents: Array) -> list[np.ndarray]:
    @jax.jit
    def forward_and_backward(q: Array, k: Array, v: Array) -> tuple[Array, ...]:
        out, backward = jax.vjp(attend, q, k, v)
        return *out, *backward(cotangents)

    return [np.asarray(x, np.float64) for x in forward_and_backward(q, k, v)]


def test_parts_of_the_queries_and_gradients_of_all_results_are_the_oracles():
    assert [end - first for first, end in short._parts(LENGTH)] == [34, 34, 33]
    for dtype, rtol in (("float32", 2e-6), ("bfloat16", 2e-2)):
        given = arrays(dtype)
        found = results(lambda *qkv: short.attention(*qkv, 0.3, True), *given)
        expected = results(lambda *qkv: attention(*qkv, backend="reference", scale=0.3, entropy=True), *given)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=rtol * np.abs(b).max())


def test_products_stop_at_the_keys_that_the_last_query_of_a_part_sees():
    q, k, v, dz, *_ = arrays("float32")
    text = str(jax.make_jaxpr(jax.grad(lambda q: jnp.vdot(short.attention(q, k, v, 0.3, False)[0], dz)))(q))
    products = [line for line in text.splitlines() if "dot_general[" in line]
    for end in (34, 68, 101):
        assert any(f"34,{end}]" in line or f"33,{end}]" in line for line in products)
    assert f"{LENGTH},{LENGTH}]" not in text
