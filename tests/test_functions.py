"""What the model computes between its parameters: the formulas in float64, and what XLA is spared."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from andrea_jax.functions import beside_norm, matmul, norm, relu_matmul


def test_the_derivative_by_a_weight_sums_over_one_axis_because_xla_on_a_cpu_is_slow_with_two():
    def of(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.square(matmul(x, w)).sum()

    found = jax.make_jaxpr(jax.grad(of, argnums=1))(jnp.ones((3, 5, 7)), jnp.ones((7, 2, 11)))
    products = [it for it in found.eqns if it.primitive.name == "dot_general"]
    assert len(products) == 2
    for product in products:
        (summed, _), _ = product.params["dimension_numbers"]
        assert len(summed) == 1


@pytest.mark.parametrize("shape", [(7, 11), (11, 7)])
def test_gradients_of_a_product_are_the_plain_ones_where_a_tall_weight_is_turned(shape: tuple[int, int]):
    sizes = (3, 5, shape[0]), shape, (3, 5, shape[1])
    x, w, g = (jax.random.normal(jax.random.key(i), size) for i, size in enumerate(sizes))
    y, backward = jax.vjp(matmul, x, w)
    dx, dw = backward(g)
    x64, w64, g64 = (np.asarray(array, np.float64) for array in (x, w, g))
    np.testing.assert_allclose(y, x64 @ w64, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dx, g64 @ w64.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dw, np.einsum("btm,btk->mk", x64, g64), rtol=1e-5, atol=1e-5)


def rows() -> tuple[np.ndarray, np.ndarray]:
    """A residual stream and a cotangent, float64 [2, 3, 7]."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((2, 3, 7)), rng.standard_normal((2, 3, 7))


def test_the_derivative_of_the_rms_norm_is_that_of_its_formula():
    x, g = rows()
    y, backward = jax.vjp(lambda x: norm(x, "rms"), jnp.asarray(x, "float32"))
    r = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, x * r, rtol=1e-5, atol=1e-6)
    expected = r * g - x * r**3 * (x * g).mean(-1, keepdims=True)
    np.testing.assert_allclose(backward(jnp.asarray(g, "float32"))[0], expected, rtol=1e-4, atol=1e-6)


def test_the_layer_norm_is_centred_and_so_is_its_derivative():
    x, g = (jnp.asarray(it, "float32") for it in rows())
    y, backward = jax.vjp(lambda x: norm(x, "layer"), x)
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(backward(g)[0].sum(-1), 0, atol=1e-5)
    expected = jax.vjp(lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5), x)[1](g)
    np.testing.assert_allclose(backward(g)[0], expected[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_a_bfloat16_stream_is_normed_in_float32_and_keeps_its_dtype(kind: str):
    x = jnp.asarray(1000 + rows()[0], "bfloat16")
    y = norm(x, kind)
    expected = norm(x.astype(jnp.float32), kind)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(y.astype(jnp.float32), expected, rtol=1e-2, atol=1e-2)


def test_a_norm_keeps_its_result_and_a_number_a_row_for_the_backward_pass_and_not_its_input():
    x = jnp.ones((2, 3, 7), jnp.bfloat16)
    kept = jax.tree.leaves(jax.vjp(beside_norm, x)[1])
    found = sorted((str(leaf.dtype), leaf.shape) for leaf in kept if leaf.ndim)
    assert found == [("bfloat16", (2, 3, 7)), ("float32", (2, 3))]
    twice = jax.vjp(lambda x: beside_norm(4 * x)[1], x)[1]  # x itself, 4, is nowhere
    assert all((leaf.astype(jnp.float32) < 2).all() for leaf in jax.tree.leaves(twice) if leaf.ndim)


def test_the_gradient_past_a_norm_is_added_to_the_one_through_it():
    x, g = rows()
    past = np.random.default_rng(1).standard_normal(x.shape)
    (same, y), backward = jax.vjp(beside_norm, jnp.asarray(x, "float32"))
    np.testing.assert_array_equal(same, jnp.asarray(x, "float32"))
    np.testing.assert_array_equal(y, norm(same, "rms"))
    r = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    expected = past + r * g - x * r**3 * (x * g).mean(-1, keepdims=True)
    found = backward((jnp.asarray(past, "float32"), jnp.asarray(g, "float32")))[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_relu_passes_a_gradient_where_its_result_is_not_zero_and_its_input_is_not_kept():
    x, w = jnp.array([[[-2.0, -0.0, 0.0, 3.0]]]), jnp.array([[5.0], [7.0], [11.0], [13.0]])
    np.testing.assert_array_equal(relu_matmul(x, w), [[[39.0]]])
    dx, dw = jax.grad(lambda x, w: relu_matmul(x, w).sum(), argnums=(0, 1))(x, w)
    np.testing.assert_array_equal(dx, [[[0, 0, 0, 13]]])
    np.testing.assert_array_equal(dw, [[0], [0], [0], [3]])
    program = str(jax.make_jaxpr(lambda x: jax.vjp(relu_matmul, x, w)[1](x[..., :1]))(x))
    assert " ne " in program and " gt " not in program  # "result > 0" becomes x > 0 in XLA, and x would be stored
