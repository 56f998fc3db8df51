"""Two ways to store and multiply the same numbers: one function (C1), exact conversion, lossless concat (C6)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea_jax import config, model
from andrea_jax.config import Model
from andrea_jax.model import Params
from andrea_jax.projections import PROJECTIONS, fuse_heads, initial_weights, split_heads
from andrea_jax.training import loss, optimizer

FORMS = {"einsum": "per_head", "loop": "per_head", "one": "fused", "three": "fused"}
# Forms add the same products in other orders. A sum of 40 float32 products differs by a few units of 2^-24 = 6e-8 of
# the largest numbers in it; gradients sum over batch and positions as well. Relative to each array's largest entry:
ROUNDING = 2e-6


def tiny(form: str, **changes: object) -> Model:
    base = {"vocab_size": 17, "seq_len": 7, "d_model": 40, "n_layer": 1, "n_head": 5, "projection": FORMS[form]}
    return Model(**(base | {"projection_form": form} | changes))  # pyright: ignore[reportArgumentType]


def by_head(m: Model, weights: dict) -> dict:
    return split_heads(weights, m.n_head, m.n_kv_head) if m.projection == "fused" else weights


def as_form(m: Model, weights: dict) -> dict:
    return fuse_heads(weights, m.form) if m.projection == "fused" else weights


def assert_equal_to_rounding(found: object, expected: object) -> None:
    def check(a: jax.Array, b: jax.Array) -> None:
        assert a.shape == b.shape
        assert np.abs(np.asarray(a) - np.asarray(b)).max() <= ROUNDING * np.abs(b).max()

    jax.tree.map(check, found, expected)


def random_weights(m: Model) -> dict:
    """By head, biases not 0."""
    rng = np.random.default_rng(11)
    drawn = initial_weights(m, jax.random.key(0))
    return {name: jnp.asarray(rng.normal(size=x.shape) / 5, jnp.float32) for name, x in drawn.items()}


@functools.cache
def outputs_and_gradients(m: Model) -> tuple:
    """(q, k, v, y) of random x and z, and the gradients of a random combination with respect to weights, x and z."""
    rng = np.random.default_rng(5)
    shapes = (3, 7, 40), (3, 7, 5, 8), (3, 7, 5, 8), (3, 7, m.kv_heads, 8), (3, 7, m.kv_heads, 8), (3, 7, 40)
    x, z, *cotangents = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)

    def run(weights: dict, x: jax.Array, z: jax.Array) -> tuple:
        projection = PROJECTIONS[m.projection](m, jax.random.key(0))
        for name, value in weights.items():
            getattr(projection, name)[...] = value
        return *projection.project(x), projection.combine(z)

    @jax.jit
    def both(weights: dict, x: jax.Array, z: jax.Array) -> tuple:
        outputs, pull_back = jax.vjp(run, weights, x, z)
        return outputs, *pull_back(tuple(cotangents))

    outputs, of_weights, *others = both(as_form(m, random_weights(m)), x, z)
    return outputs, by_head(m, of_weights), others


@pytest.mark.parametrize("form", ["einsum", "one", "three"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"n_kv_head": 1, "biases": True}, {"w_o": "identity"}, {"w_o": "block_diagonal", "biases": True}],
    ids=lambda changes: "-".join(map(str, changes.values())) or "plain",
)
def test_every_form_gives_the_outputs_and_gradients_of_one_matmul_a_head(form: str, changes: dict):
    m = tiny(form, **changes)
    assert_equal_to_rounding(outputs_and_gradients(m), outputs_and_gradients(tiny("loop", **changes)))


def test_a_heads_query_is_x_times_its_own_matrix_in_numpy():
    m = tiny("one", n_kv_head=1, biases=True)
    weights = random_weights(m)
    x = np.random.default_rng(1).normal(size=(2, 3, 40)).astype(np.float32)
    projection = PROJECTIONS["fused"](m, jax.random.key(0))
    for name, value in fuse_heads(weights).items():
        getattr(projection, name)[...] = value
    q, k, _ = projection.project(jnp.asarray(x))
    for head in range(5):
        expected = x.astype(np.float64) @ np.asarray(weights["W_Q"][head], np.float64) + np.asarray(
            weights["b_Q"][head]
        )
        np.testing.assert_allclose(q[:, :, head], expected, atol=1e-5)
    expected = x.astype(np.float64) @ np.asarray(weights["W_K"][0], np.float64) + np.asarray(weights["b_K"][0])
    np.testing.assert_allclose(k[:, :, 0], expected, atol=1e-5)


def test_the_layers_output_is_the_sum_of_the_heads_outputs():
    """Σ_h z_h·W_O^h: concatenating and multiplying by W_O mixes the heads by adding them up (C7)."""
    m = tiny("one")
    weights = random_weights(m)
    z = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 5, 8)), jnp.float32)
    projection = PROJECTIONS["fused"](m, jax.random.key(0))
    projection.W_O[...] = fuse_heads(weights)["W_O"]
    heads = [np.asarray(z[:, :, h], np.float64) @ np.asarray(weights["W_O"][h], np.float64) for h in range(5)]
    np.testing.assert_allclose(projection.combine(z), sum(heads), atol=1e-5)


@pytest.mark.parametrize("w_o", ["identity", "block_diagonal"])
@pytest.mark.parametrize("form", FORMS)
def test_without_a_free_w_o_no_head_reaches_the_others_dimensions(form: str, w_o: str):
    m = tiny(form, w_o=w_o)
    projection = PROJECTIONS[m.projection](m, jax.random.key(0))
    z = jnp.zeros((1, 2, 5, 8)).at[:, :, 3].set(1.0)
    y = np.asarray(projection.combine(z)).reshape(1, 2, 5, 8)
    assert (np.delete(y, 3, axis=2) == 0).all()
    assert (y[:, :, 3] != 0).all()


@pytest.mark.parametrize("w_o", ["free", "identity", "block_diagonal"])
@pytest.mark.parametrize("form", FORMS)
def test_one_head_is_a_model_too(form: str, w_o: str):
    m = tiny(form, n_head=1, w_o=w_o)
    z = jnp.ones((2, 3, 1, 40))
    assert PROJECTIONS[m.projection](m, jax.random.key(0)).combine(z).shape == (2, 3, 40)


def test_concat_inverts_the_split_bit_for_bit():
    """What fused projections do is a reshape; nothing is computed, so nothing is lost (C6)."""
    flat = jnp.asarray(np.random.default_rng(0).normal(size=(3, 7, 40)), jnp.float32)
    heads = flat.reshape(3, 7, 5, 8)
    for head in range(5):
        np.testing.assert_array_equal(heads[:, :, head], flat[..., head * 8 : (head + 1) * 8])
    np.testing.assert_array_equal(jnp.concatenate([heads[:, :, head] for head in range(5)], axis=-1), flat)
    np.testing.assert_array_equal(heads.reshape(3, 7, 40), flat)


@settings(max_examples=25, deadline=None)
@given(
    groups=st.sampled_from([1, 2, 3]),
    n_kv=st.sampled_from([1, 2, 3, 5]),
    head_dim=st.sampled_from([1, 3, 8, 13]),
    options=st.fixed_dictionaries(
        {"biases": st.booleans(), "w_o": st.sampled_from(["free", "identity", "block_diagonal"])}
    ),
    form=st.sampled_from(["one", "three"]),
)
def test_fusing_and_splitting_are_exact_inverses(groups: int, n_kv: int, head_dim: int, options: dict, form: str):
    n_head = groups * n_kv
    m = Model(vocab_size=3, seq_len=2, n_layer=1, d_model=n_head * head_dim, n_head=n_head, n_kv_head=n_kv, **options)
    rng = np.random.default_rng(0)
    drawn = jax.eval_shape(functools.partial(initial_weights, m), jax.random.key(0))
    weights = {name: rng.normal(size=x.shape).astype(np.float32) for name, x in drawn.items()}
    fused = fuse_heads(weights, form)
    split = split_heads(fused, n_head, n_kv)
    again = fuse_heads(split, form)
    for one, other in ((split, weights), (again, fused)):
        assert set(one) == set(other)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_fused_columns_are_ordered_q_k_v_with_heads_contiguous_in_each():
    m = tiny("one", n_kv_head=1)
    weights = random_weights(m)
    columns = [weights["W_Q"][h] for h in range(5)] + [weights["W_K"][0], weights["W_V"][0]]
    np.testing.assert_array_equal(fuse_heads(weights)["W_QKV"], np.concatenate(columns, axis=1))
    np.testing.assert_array_equal(fuse_heads(weights)["W_O"], np.concatenate(weights["W_O"], axis=0))


@pytest.mark.parametrize("form", ["loop", "one", "three"])
def test_every_form_draws_the_same_initial_numbers(form: str):
    expected, found = (model.initialise(tiny(f, n_layer=2, biases=True), 3) for f in ("einsum", form))
    for i in ("0", "1"):
        weights = found["layers"][i]["attention"].pop("projection")
        reference = expected["layers"][i]["attention"].pop("projection")
        jax.tree.map(np.testing.assert_array_equal, by_head(tiny(form), weights), reference)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@functools.cache
def _gradient(form: str):
    """The compiled gradient of a small model's loss on a batch: (params, tokens) -> grads."""
    m = _trained(form)

    def loss_of(params: Params, tokens: jax.Array) -> jax.Array:
        return loss(model.bind(m, params, backend="reference")(tokens[:, :-1]), tokens[:, 1:])

    return jax.jit(jax.grad(loss_of))


def _trained(form: str) -> Model:
    return tiny(form, d_model=16, n_head=2, d_mlp=0, tied_embeddings=True)


def _train(form: str, name: str, steps: int = 20) -> Params:
    """Parameters by head after `steps` steps on random batches."""
    m, rng = _trained(form), np.random.default_rng(2)
    optim = config.Optim(name=name, learning_rate=1e-2, schedule="constant")  # pyright: ignore[reportArgumentType]
    optimize = optimizer.make(optim, steps)
    params = model.initialise(m, 0)
    state = optimize.init(params)

    @jax.jit
    def update(grads: Params, state: optax.OptState, params: Params) -> tuple[Params, optax.OptState]:
        updates, state = optimize.update(grads, state, params)
        return optax.apply_updates(params, updates), state  # pyright: ignore[reportReturnType]

    for _ in range(steps):
        grads = _gradient(form)(params, jnp.asarray(rng.integers(0, 17, size=(5, 8)), jnp.int32))
        params, state = update(grads, state, params)
    attention = params["layers"]["0"]["attention"]
    attention["projection"] = by_head(m, attention["projection"])
    return params


def _distance(name: str) -> float:
    """The largest difference between the parameters of a per-head and a fused model after 20 steps."""
    differences = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), _train("einsum", name), _train("one", name))
    return max(jax.tree.leaves(differences))


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_both_projections_train_the_same_where_the_optimizer_works_element_by_element(name: str):
    assert _distance(name) < 1e-5  # 20 steps of 1e-2; rounding differences of the gradients are all that is left


@pytest.mark.parametrize("name", ["muon", "adafactor", "lamb"])
def test_they_part_ways_where_the_optimizer_looks_at_whole_matrices(name: str):
    assert _distance(name) > 1e-3
