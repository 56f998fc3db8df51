"""What is timed computes the same thing in every form, and its operations are those counted by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from andrea_jax.benchmarks import head_dim, layout, projections, shapes
from andrea_jax.benchmarks.head_dim import Size, TrainingStep, heads, step_flops
from andrea_jax.benchmarks.projections import FORMS, Width
from andrea_jax.benchmarks.shapes import Shape

SHAPE = Shape(2, 13, 3, 8)


def test_attention_costs_two_products_over_half_of_the_square_and_seven_with_the_backward():
    # 5 heads · 4 queries · 4 keys · 8 numbers · 2 operations, twice; half of it
    assert shapes.flops(Shape(1, 4, 5, 8), "forward") == 5 * 4 * 4 * 8 * 2 * 2 // 2
    assert shapes.flops(Shape(1, 4, 5, 8), "forward + entropy") == 1280
    assert shapes.flops(Shape(1, 4, 5, 8), "forward + backward") == 1280 * 7 // 2
    # the peers' table: 158 µs at the first shape are 325 TFLOP/s
    assert shapes.flops(Shape(32, 1024, 12, 64), "forward") / 158e-6 / 1e12 == pytest.approx(326, abs=1)


def test_projections_cost_two_operations_a_weight_and_token_and_three_times_with_the_backward():
    rows = [job.row for job in projections._jobs(Width(24, 3), 11, None, "float32")]
    assert {row["flops"] for row in rows if row["passes"] == "forward"} == {2 * 11 * 3 * 24 * 24}
    assert {row["flops"] for row in rows if row["passes"] == "forward + backward"} == {3 * 2 * 11 * 3 * 24 * 24}


def test_a_training_step_costs_six_operations_a_weight_and_token_and_attention_by_hand():
    e = head_dim._experiment(Shape(2, 5, 3, 8), Size(batch=2, seq=5, d_model=24, n_layer=2, vocab_size=257), "float32")
    weights = 2 * (4 * 24 * 24 + 2 * 24 * 96) + 24 * 257  # no lookup tables
    attention = 2 * 3 * (2 * 2 * 3 * 5 * 5 * 8)  # layers · (forward + twice that) · half of two products
    assert step_flops(e) == 6 * weights * 2 * 5 + attention


@pytest.mark.parametrize(
    ("width", "n_head"), [(32, 36), (48, 24), (64, 18), (72, 16), (80, 14), (96, 12), (128, 9), (5000, 1)]
)
def test_heads_share_d_model_1152_evenly_but_for_width_80(width, n_head):
    assert heads(1152, width) == n_head


def test_every_form_of_the_projections_computes_the_same_q_k_and_v():
    arguments = {form: projections.arguments(form, Width(24, 3), 11, "float32") for form in FORMS}
    x, *w = (np.asarray(a, np.float64) for a in arguments["per-head, loop"])
    expected = np.stack([np.einsum("btd,hdk->bthk", x, one) for one in w], axis=2).reshape(1, 11, 72)
    for form, call in FORMS.items():
        made = [y.reshape(1, 11, -1) for y in call(*arguments[form])]
        np.testing.assert_allclose(jnp.concatenate(made, axis=2), expected, rtol=0, atol=1e-5)


def test_contiguous_heads_are_rows_of_one_head_and_turn_back():
    x = jnp.arange(2 * 5 * 3 * 7).reshape(2, 5, 3, 7)
    made = layout.contiguous(x)
    assert made.shape == (6, 5, 1, 7)
    np.testing.assert_array_equal(made[4, :, 0], x[1, :, 1])
    np.testing.assert_array_equal(layout.strided(made, 3), x)


@pytest.fixture(scope="module")
def plain():
    """q, k, v, the cotangent of z; z and gradients as the reference has them."""
    drawn = shapes.inputs(SHAPE, "float32")
    return drawn, jax.jit(shapes.with_backward(layout.z_of("reference"), 3))(*drawn)


@pytest.mark.parametrize("arrangement", layout.ARRANGEMENTS[1:], ids=lambda it: it.name)
def test_every_arrangement_computes_the_same_attention_and_gradients(arrangement, plain):
    def arranged(*q_k_v):
        z = arrangement.arrange(SHAPE, "reference")(*arrangement.prepare(*q_k_v))
        return layout.strided(z, SHAPE.n_head) if arrangement.name == "contiguous" else z

    drawn, expected = plain
    found = jax.jit(shapes.with_backward(arranged, 3))(*drawn)
    for one, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, right, rtol=0, atol=2e-5)


def test_the_backward_returns_results_and_gradients_for_one_result_and_for_several():
    both = shapes.with_backward(lambda x, y: x * y, 2)(jnp.float32(3), jnp.float32(5), jnp.float32(7))
    assert jax.tree.map(float, both) == (15, (35, 21))
    several = shapes.with_backward(lambda x: [x * 2, x * 3], 1)(jnp.float32(5), jnp.float32(7), jnp.float32(11))
    assert jax.tree.map(float, several) == ([10, 15], (2 * 7 + 3 * 11,))


def test_inputs_are_random_and_differ(plain):
    assert all(x.shape == tuple(SHAPE) for x in plain[0])
    assert len({np.asarray(x).flat[0] for x in plain[0]}) == 4
    assert all(np.std(x) == pytest.approx(1, abs=0.1) for x in plain[0])


@pytest.mark.slow
def test_training_steps_go_on_from_one_to_the_next():
    size = Size(batch=2, seq=5, d_model=16, n_layer=1, vocab_size=257)
    experiment = head_dim._experiment(Shape(2, 5, 2, 8), size, "float32")
    experiment = dataclasses.replace(experiment, compute=dataclasses.replace(experiment.compute, backend="reference"))
    step = TrainingStep(experiment)
    assert step.run(1) > 0
    before = jax.tree.leaves(step._state[0])[0].copy()
    assert step.run(2) > 0
    assert [int(count) for count in jax.tree.leaves(step._state[1]) if count.dtype == jnp.int32] == [3, 3]
    assert not np.array_equal(before, jax.tree.leaves(step._state[0])[0])
