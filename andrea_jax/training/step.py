"""One training step: plain `jax.jit` over plain dicts of arrays, parameters and optimizer state donated."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import Array

from andrea_jax import devices, model
from andrea_jax.config import Compute, Experiment, Model, Optim
from andrea_jax.model import Params
from andrea_jax.projections import split_heads
from andrea_jax.training import cross_entropy, optimizer
from andrea_jax.training.placement import Placement

Metrics = dict[str, Array]
Step = Callable[[Params, optax.OptState, Array], tuple[Params, optax.OptState, Metrics]]
Steps = Callable[[Params, optax.OptState, Array], tuple[Params, optax.OptState, list[Metrics]]]


def token_losses(logits: Array, targets: Array) -> Array:
    """−log softmax(logits)[target], nats: logits [batch, seq, vocab], targets int [batch, seq] -> [batch, seq]."""
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def loss(logits: Array, targets: Array) -> Array:
    """Mean cross-entropy in nats a token, float32: logits [batch, seq, vocab], targets int [batch, seq]."""
    return token_losses(logits, targets).mean()


def make_step(experiment: Experiment) -> Step:
    """The compiled step of an experiment: (params, opt_state, tokens) -> (params, opt_state, metrics).

    tokens int [batch, seq + 1], inputs and targets in one. `params` and `opt_state` are donated: the arrays passed in
    cannot be used again. Metrics stay on the device, float32: `loss` (nats a token), `grad_norm` (global, before
    clipping), `learning_rate`, `head_grad_norm` [n_layer, n_head].

    Experiments that differ only in data or seed share one compiled step.
    """
    train = experiment.train
    return _make_step(experiment.model, experiment.optim, train.steps, train.accumulate, experiment.compute)


def make_steps(experiment: Experiment) -> Steps:
    """`make_step` for several runs at once: its arguments and results have a new first axis, lane, but for the metrics,
    which are a list, one of each run."""
    return _side_by_side(make_step(experiment))


@functools.lru_cache
def _side_by_side(step: Step) -> Steps:
    step = step.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]  # only a whole program has compiler options

    @functools.partial(jax.jit, donate_argnums=(0, 1), compiler_options=devices.compiler_options())
    def steps(params: Params, opt_state: optax.OptState, tokens: Array) -> tuple[Params, optax.OptState, list[Metrics]]:
        params, opt_state, metrics = jax.vmap(step)(params, opt_state, tokens)
        # taken apart here: outside, each piece of each step would be a launch of its own
        return params, opt_state, [{name: x[lane] for name, x in metrics.items()} for lane in range(len(tokens))]

    return steps


@functools.lru_cache
def _make_step(config: Model, optim: Optim, steps: int, accumulate: int, compute: Compute) -> Step:
    optimize = optimizer.make(optim, steps)
    rate = optimizer.schedule(optim, steps)
    placement = Placement.of(compute.mesh)

    def loss_of(params: Params, tokens: Array) -> Array:
        used, params = placement.gathered(config, params, compute.dtype)
        andrea = model.bind(used, params, dtype=compute.dtype, backend=compute.backend)
        x = andrea.final(tokens[:, :-1], tap=placement.tap, remat=compute.remat)
        with jax.named_scope("unembed"):
            return cross_entropy.mean_loss(x, andrea.unembedding, tokens[:, 1:])

    @functools.partial(jax.jit, donate_argnums=(0, 1), compiler_options=devices.compiler_options())
    def step(params: Params, opt_state: optax.OptState, tokens: Array) -> tuple[Params, optax.OptState, Metrics]:
        with devices.over(placement.mesh):
            value, grads = averaged(jax.value_and_grad(loss_of), params, tokens.astype(jnp.int32), accumulate)
        grads = placement.kept(grads)
        metrics = {
            "loss": value,
            "grad_norm": optax.tree.norm(grads),
            "learning_rate": rate(steps_done(opt_state)),
            "head_grad_norm": head_grad_norm(config, grads),
        }
        # else XLA computes the heads' norms while it updates the weights, which makes that three times as slow
        opt_state, metrics = jax.lax.optimization_barrier((opt_state, metrics))
        with jax.named_scope("optimizer"):
            updates, opt_state = optimize.update(grads, opt_state, params)
            stepped: Params = optax.apply_updates(params, updates)  # pyright: ignore[reportAssignmentType]
        return placement.kept(stepped), placement.kept(opt_state), jax.tree.map(placement.whole, metrics)

    return step


def averaged(
    value_and_grad: Callable[[Params, Array], tuple[Array, Params]], params: Params, tokens: Array, parts: int
) -> tuple[Array, Params]:
    """The loss and gradients of tokens [batch, seq + 1], computed `parts` of the batch one after the other, each of
    every parts-th window, so that every device of a mesh has its share of each part."""
    if parts == 1:
        return value_and_grad(params, tokens)

    def add(total: tuple[Array, Params], part: Array) -> tuple[tuple[Array, Params], None]:
        return jax.tree.map(jnp.add, total, value_and_grad(params, part)), None

    zero = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
    total, _ = jax.lax.scan(add, zero, tokens.reshape(-1, parts, tokens.shape[1]).swapaxes(0, 1))
    return jax.tree.map(lambda x: x / parts, total)


def steps_done(opt_state: optax.OptState) -> Array:
    """How many steps the optimizer has taken, int32; its parts all count the same."""
    return optax.tree_utils.tree_get_all_with_path(opt_state, "count")[0][1]


def head_grad_norm(config: Model, grads: Params) -> Array:
    """√(‖∂L/∂W_Q^h‖² + ‖∂L/∂W_K^h‖² + ‖∂L/∂W_V^h‖² + ‖∂L/∂W_O^h‖²) of each head h, float32 [n_layer, n_head].

    L is the batch's mean loss. With fewer key-value heads than heads, W_K and W_V are those that head h reads, counted
    in full for every head of the group. Biases are left out; W_O is, where it is the identity. 0 past a pruned
    layer's last head.
    """
    layers = [_layer_norms(config, grads["layers"][str(i)], n) for i, n in enumerate(config.layer_heads)]
    return jnp.stack([jnp.pad(norms, (0, config.n_head - len(norms))) for norms in layers])


def _layer_norms(config: Model, layer: Params, n_head: int) -> Array:
    weights = layer["attention"]["projection"]
    # Summed over d_model before the heads are split: fused matrices are read once, in the order they lie in memory.
    squares = {
        name: jnp.square(weights[name]).sum(-1 if name == "W_O" else -2, keepdims=True)
        for name in weights
        if name[0] == "W"
    }
    if config.projection == "fused":
        squares = split_heads(squares, n_head, n_head // config.group)
    total = jnp.zeros(n_head)
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        if name in squares:
            of_head = squares[name].sum(axis=(1, 2))  # [n_head or n_kv_head]
            total += jnp.repeat(of_head, n_head // len(of_head))
    return jnp.sqrt(total)
