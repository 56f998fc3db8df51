"""One step: the loss by hand, the metrics against independent sums, donation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from andrea_jax import config, model
from andrea_jax.projections import fuse_heads
from andrea_jax.training import head_grad_norm, loss, make_step, optimizer, token_losses
from andrea_jax.training.step import steps_done


def test_the_loss_is_the_mean_cross_entropy_in_nats():
    logits = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32) * 3
    targets = np.array([[0, 4, 2], [1, 1, 3]])
    wide = logits.astype(np.float64)
    chosen = np.take_along_axis(wide, targets[..., None], axis=-1)[..., 0]
    expected = np.log(np.exp(wide).sum(-1)) - chosen
    np.testing.assert_allclose(token_losses(jnp.array(logits), jnp.array(targets)), expected, rtol=1e-5)
    assert float(loss(jnp.array(logits), jnp.array(targets))) == pytest.approx(expected.mean(), rel=1e-6)


def test_uniform_logits_lose_log_vocab_also_in_bfloat16():
    value = loss(jnp.full((1, 7, 257), 3.0, jnp.bfloat16), jnp.zeros((1, 7), jnp.int32))
    assert value.dtype == jnp.float32
    assert float(value) == pytest.approx(np.log(257), rel=1e-6)


def _tokens(experiment: config.Experiment) -> np.ndarray:
    shape = (experiment.train.batch_size, experiment.data.seq_len + 1)
    return np.random.default_rng(1).integers(0, 257, size=shape).astype(np.uint16)


def test_a_step_returns_its_loss_the_gradients_norm_and_the_rate(experiment: config.Experiment):
    tokens = _tokens(experiment)
    params = model.initialise(experiment.model, 0)

    def loss_of(params: dict) -> jax.Array:
        logits = model.bind(experiment.model, params, backend="reference")(jnp.asarray(tokens[:, :-1], jnp.int32))
        return loss(logits, jnp.asarray(tokens[:, 1:], jnp.int32))

    value, grads = jax.jit(jax.value_and_grad(loss_of))(params)
    squares = sum(float(np.square(np.asarray(g, np.float64)).sum()) for g in jax.tree.leaves(grads))
    opt_state = optimizer.make(experiment.optim, 23).init(params)
    params, opt_state, metrics = make_step(experiment)(params, opt_state, tokens)
    assert float(metrics["loss"]) == pytest.approx(float(value), rel=1e-6)
    assert float(metrics["grad_norm"]) == pytest.approx(np.sqrt(squares), rel=1e-5)
    assert float(metrics["learning_rate"]) == pytest.approx(0.01 / 3)
    assert metrics["head_grad_norm"].shape == (1, 2)
    assert int(steps_done(opt_state)) == 1


def test_a_batch_in_parts_gives_the_gradients_of_the_whole(experiment: config.Experiment):
    whole, parts = _first_steps(experiment, 1), _first_steps(experiment, experiment.train.batch_size)
    for name in ("loss", "grad_norm", "head_grad_norm"):
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-5)


def _first_steps(experiment: config.Experiment, accumulate: int) -> dict[str, jax.Array]:
    """Metrics of a step of plain descent with the batch in so many parts."""
    train = dataclasses.replace(experiment.train, accumulate=accumulate)
    experiment = dataclasses.replace(experiment, train=train)
    params = model.initialise(experiment.model, 0)
    opt_state = optimizer.make(experiment.optim, 23).init(params)
    return make_step(experiment)(params, opt_state, _tokens(experiment))[2]


def test_params_and_optimizer_state_are_donated(experiment: config.Experiment):
    params = model.initialise(experiment.model, 0)
    opt_state = optimizer.make(experiment.optim, 23).init(params)
    make_step(experiment)(params, opt_state, _tokens(experiment))
    assert all(x.is_deleted() for x in jax.tree.leaves((params, opt_state)))


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion", "muon", "adafactor", "lamb"])
def test_every_optimizer_lowers_the_loss_of_one_batch_and_counts_its_steps(experiment: config.Experiment, name: str):
    optim = config.Optim(name=name, learning_rate=0.02, schedule="constant", clip_norm=0.0)  # pyright: ignore[reportArgumentType]
    small = dataclasses.replace(experiment.model, d_mlp=0, positions="none", tied_embeddings=True)
    experiment = dataclasses.replace(experiment, optim=optim, model=small)
    params = model.initialise(experiment.model, 0)
    opt_state = optimizer.make(optim, 23).init(params)
    step, tokens, losses = make_step(experiment), _tokens(experiment), []
    for _ in range(6):
        params, opt_state, metrics = step(params, opt_state, tokens)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < losses[0] - 0.005
    assert int(steps_done(opt_state)) == 6


def _random_like(m: config.Model) -> dict:
    rng = np.random.default_rng(2)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), model.abstract(m))


@pytest.mark.parametrize("w_o", ["free", "identity", "block_diagonal"])
@pytest.mark.parametrize("n_kv_head", [3, 1])
def test_head_grad_norm_sums_the_squares_of_the_four_matrices_of_each_head(w_o: str, n_kv_head: int):
    shape = {
        "vocab_size": 11,
        "seq_len": 7,
        "d_model": 24,
        "n_layer": 2,
        "n_head": 3,
        "n_kv_head": n_kv_head,
        "w_o": w_o,
    }
    m = config.Model(**shape, projection="per_head", biases=True)  # pyright: ignore[reportArgumentType]
    grads = _random_like(m)
    expected = np.zeros((2, 3))
    for layer in range(2):
        weights = grads["layers"][str(layer)]["attention"]["projection"]
        for head in range(3):
            kv_head = head // (3 // n_kv_head)
            parts = [weights["W_Q"][head], weights["W_K"][kv_head], weights["W_V"][kv_head]]
            parts += [weights["W_O"][head]] if w_o != "identity" else []
            expected[layer, head] = np.sqrt(sum(np.square(np.asarray(x, np.float64)).sum() for x in parts))
    np.testing.assert_allclose(head_grad_norm(m, grads), expected, rtol=1e-6)


@pytest.mark.parametrize("form", ["one", "three"])
@pytest.mark.parametrize("w_o", ["free", "block_diagonal"])
def test_head_grad_norm_of_fused_gradients_is_that_of_the_same_gradients_by_head(form: str, w_o: str):
    shape = {"vocab_size": 11, "seq_len": 7, "d_model": 24, "n_layer": 1, "n_head": 3, "n_kv_head": 1, "w_o": w_o}
    by_head = config.Model(**shape, projection="per_head")  # pyright: ignore[reportArgumentType]
    fused = config.Model(**shape, projection="fused", projection_form=form)  # pyright: ignore[reportArgumentType]
    grads = _random_like(by_head)
    weights = grads["layers"]["0"]["attention"]["projection"]
    same = {"layers": {"0": {"attention": {"projection": fuse_heads(weights, form)}}}}
    np.testing.assert_allclose(head_grad_norm(fused, same), head_grad_norm(by_head, grads), rtol=1e-6)
