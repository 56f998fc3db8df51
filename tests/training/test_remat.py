"""Computing blocks again in the backward pass: the same numbers, from fewer kept ones."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from andrea_jax import model
from andrea_jax.attention import keeping
from andrea_jax.config import Experiment, Model
from andrea_jax.model import REMAT, Params, Tap, no_tap
from andrea_jax.training import loss, make_step, optimizer

SHAPE = Model(vocab_size=257, seq_len=23, d_model=40, n_layer=2, n_head=5, n_kv_head=1, positions="rotary")
BATCH, SEQ = 3, 19
SHALLOW = dataclasses.replace(SHAPE, n_layer=1)  # compiles faster


def loss_by(remat: str, config: Model = SHAPE, tap: Tap = no_tap) -> Callable[[Params], Array]:
    tokens = jax.random.randint(jax.random.key(1), (BATCH, SEQ + 1), 1, 257)

    def of(params: Params) -> Array:
        logits = model.bind(config, params, backend="chunked")(tokens[:, :-1], tap=tap, remat=remat)
        return loss(logits, tokens[:, 1:])

    return of


def kept_bytes(remat: str) -> int:
    """Of everything that the backward pass is handed: `jax.vjp` returns it as a tree."""
    backward = jax.eval_shape(lambda params: jax.vjp(loss_by(remat), params)[1], model.abstract(SHAPE))
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(backward))


def products(remat: str) -> int:
    return str(jax.make_jaxpr(jax.grad(loss_by(remat)))(model.abstract(SHAPE))).count("dot_general[")


def computed(remat: str, tap: Tap = no_tap) -> tuple[Array, Params]:
    """(loss, gradients)"""
    return jax.jit(jax.value_and_grad(loss_by(remat, SHALLOW, tap)))(model.initialise(SHALLOW, 0))


@pytest.fixture(scope="module")
def plain() -> tuple[Array, Params]:
    return computed("none")


def assert_close(found: tuple[Array, Params], expected: tuple[Array, Params]) -> None:
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), found[1], expected[1])


@pytest.mark.parametrize("remat", ["attention_kept", "block"])
def test_loss_and_gradients_are_those_without(remat: str, plain: tuple[Array, Params]):
    assert_close(computed(remat), plain)


def test_between_the_policies_lie_exactly_z_and_the_log_sum_exp_of_every_layer():
    z, lse = BATCH * SEQ * 40 * 4, BATCH * 5 * SEQ * 4
    assert kept_bytes("attention_kept") - kept_bytes("block") == 2 * (z + lse)
    weights = sum(4 * x.size for x in jax.tree.leaves(model.abstract(SHAPE)))  # are in both
    assert 5 * (kept_bytes("block") - weights) < kept_bytes("none") - weights


def test_only_block_computes_attention_again():
    # again in each of 2 layers: W_QKV, W_O and W_in, and the scores, which attention over short sequences keeps as
    # exponentials, but not here; and for "block" z
    assert products("attention_kept") - products("none") == 2 * 4
    assert products("block") - products("attention_kept") == 2 * 1


@pytest.mark.slow
def test_a_tap_that_replaces_values_is_heard_in_both_passes(plain: tuple[Array, Params]):
    def without_the_first_head(layer: int, point: str, value: Array) -> Array:
        return value.at[:, :, 0].set(0.0) if (layer, point) == (0, "z") else value

    without = computed("none", without_the_first_head)
    assert abs(float(plain[0]) - float(without[0])) > 1e-5
    assert_close(computed("block", without_the_first_head), without)


@pytest.mark.parametrize("remat", REMAT)
def test_the_step_follows_the_config(remat: str, experiment: Experiment):
    e = dataclasses.replace(experiment, compute=dataclasses.replace(experiment.compute, remat=remat))
    params = model.abstract(e.model)
    state = jax.eval_shape(optimizer.make(e.optim, e.train.steps).init, params)
    tokens = jax.ShapeDtypeStruct((e.train.batch_size, e.data.seq_len + 1), jnp.int32)
    traced = str(make_step(e).trace(params, state, tokens).jaxpr)
    assert ("prevent_cse" in traced) == (remat != "none")
    assert ("policy=None" in traced) == (remat == "block")


def test_what_is_marked_otherwise_is_computed_again():
    def kept(mark: Callable) -> int:
        def function(x: Array) -> Array:
            return jnp.cos(mark(jnp.sin(x))).sum()

        backward = jax.eval_shape(lambda x: jax.vjp(jax.checkpoint(function, policy=keeping.policy), x)[1], jnp.ones(7))
        return len(jax.tree.leaves(backward))

    assert kept(keeping.kept) == kept(lambda x: checkpoint_name(x, "another")) + 1
