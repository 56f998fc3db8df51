"""Optimizers and learning-rate schedules, built from optax.

Which optimizer sees which parameter matters when the two projections are compared: AdamW, SGD and Lion work
element by element, so both train the same; Muon, Adafactor and LAMB look at whole matrices, so they do not, unless
optim.matrices = "fused" shows them the same matrices of both: W_QKV and W_O.

- muon: the layers' 2-D matrices (fused W_QKV or W_Q, W_K, W_V, W_O; the MLP's) are orthogonalised (Jordan 2024, which
  also leaves embeddings out). Everything else goes to AdamW with b1, b2 and the same learning rate: W_E, W_P, W_U,
  biases, gains, and the 3-D per-head W_Q, W_K, W_V, W_O. Muon updates are scaled to a root mean square of 0.2, that of
  AdamW (Liu et al. 2025, section 2.2), so that one learning rate serves both.
- adafactor: second moments are factored over the two longest axes of parameters whose axes are 128 or more, and each
  parameter's step is relative to its own root mean square. No momentum: b1 and b2 are not used.
- lamb: each parameter's step is scaled by ‖w‖ / ‖update‖.
- sgd: momentum b1; b2 is not used. adamw, lion: b1 and b2.

Weight decay is decoupled (w −= rate·weight_decay·w; inside the trust ratio for lamb), on everything but biases (b_...)
and the gains of norms.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike

from andrea_jax.config import Optim
from andrea_jax.model import Params
from andrea_jax.projections import Weights, fuse_heads

Schedule = Callable[[ArrayLike], Array]


def schedule(optim: Optim, steps: int) -> Schedule:
    """The learning rate of step 0, 1, ..., steps − 1, float32; of an integer or an array of them.

        learning_rate · min(1, (step + 1) / warmup_steps) · decay(step)

    constant: decay = 1 · linear: 1 − p · cosine: (1 + cos πp) / 2, with p = (step − warmup) / (steps − warmup) ·
    wsd: min(1, (steps − step) / (decay_share·steps)). No step has rate 0: the warm-up starts at 1 / warmup_steps, and
    0 would be reached at step = steps.
    """
    warmup = optim.warmup_steps

    def rate(step: ArrayLike) -> Array:
        step = jnp.asarray(step, jnp.float32)
        p = jnp.clip((step - warmup) / max(steps - warmup, 1), 0.0, 1.0)
        decay = {
            "constant": lambda: jnp.ones_like(p),
            "linear": lambda: 1.0 - p,
            "cosine": lambda: (1.0 + jnp.cos(jnp.pi * p)) / 2.0,
            "wsd": lambda: jnp.clip((steps - step) / max(optim.decay_share * steps, 1.0), 0.0, 1.0),
        }[optim.schedule]()
        return optim.learning_rate * jnp.minimum(1.0, (step + 1.0) / max(warmup, 1)) * decay

    return rate


def make(optim: Optim, steps: int) -> optax.GradientTransformation:
    """The optimizer of a config: clipping by the global gradient norm (where clip_norm > 0), then the optimizer."""
    rate, decay = schedule(optim, steps), optim.weight_decay
    optimizer = {
        "adamw": lambda: optax.adamw(rate, optim.b1, optim.b2, weight_decay=decay, mask=decays),
        "sgd": lambda: _sgd(optim, rate),
        "lion": lambda: optax.lion(rate, optim.b1, optim.b2, weight_decay=decay, mask=decays),
        "muon": lambda: _muon(optim, rate),
        "adafactor": lambda: _adafactor(optim, rate),
        "lamb": lambda: optax.lamb(rate, optim.b1, optim.b2, weight_decay=decay, mask=decays),
    }[optim.name]()
    optimizer = on_fused(optimizer) if optim.matrices == "fused" else optimizer
    return optax.chain(optax.clip_by_global_norm(optim.clip_norm), optimizer) if optim.clip_norm else optimizer


def on_fused(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """`optimizer` on each layer's W_QKV and W_O, whichever way the projection stores them: its state is that of the
    fused model, and so are its updates, stored back without computing anything."""

    def init(params: Params) -> optax.OptState:
        return optimizer.init(_fused(params))

    def update(updates: Params, state: optax.OptState, params: Params) -> tuple[Params, optax.OptState]:
        fused, state = optimizer.update(_fused(updates), state, _fused(params))
        (stored,) = jax.linear_transpose(_fused, updates)(fused)  # of a map that moves numbers: its inverse
        return stored, state

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


def _fused(params: Params) -> Params:
    """Anything shaped like the parameters, with every layer's projection as one W_QKV and a 2-D W_O."""

    def projection(weights: Weights) -> Weights:
        if "W_QKV" in weights:
            return weights
        if weights["W_Q"].ndim == 3:
            return fuse_heads(weights)
        joined = {f"{kind}_QKV": [weights[f"{kind}_{x}"] for x in "QKV"] for kind in "Wb" if f"{kind}_Q" in weights}
        rest = {name: value for name, value in weights.items() if name[2:] not in ("Q", "K", "V")}
        return rest | {name: jnp.concatenate(parts, axis=-1) for name, parts in joined.items()}

    layers = {
        name: layer | {"attention": {"projection": projection(layer["attention"]["projection"])}}
        for name, layer in params["layers"].items()
    }
    return {**params, "layers": layers}


def decays(params: optax.Params) -> optax.Params:
    """True for each parameter that weight decay applies to: all but gains and the biases, whose names start with b_."""
    return jax.tree_util.tree_map_with_path(lambda path, _: not path[-1].key.startswith(("b_", "gain")), params)


def _sgd(optim: Optim, rate: Schedule) -> optax.GradientTransformation:
    return optax.chain(
        optax.trace(optim.b1),
        optax.add_decayed_weights(optim.weight_decay, decays),
        optax.scale_by_learning_rate(rate),
    )


def _adafactor(optim: Optim, rate: Schedule) -> optax.GradientTransformation:
    # optax adds adafactor's decay after the learning rate, so the rate has to be in it
    return optax.adafactor(
        rate, weight_decay_rate=lambda step: optim.weight_decay * rate(step), weight_decay_mask=decays
    )


def _muon(optim: Optim, rate: Schedule) -> optax.GradientTransformation:
    def of(params: optax.Params) -> optax.Params:
        def choose(path: tuple, value: Array) -> str:
            matrix = value.ndim == 2 and path[0].key == "layers" and not path[-1].key.startswith("b_")
            return "muon" if matrix else "adamw"

        return jax.tree_util.tree_map_with_path(choose, params)

    muon = optax.contrib.muon(rate, beta=optim.b1, weight_decay=optim.weight_decay, consistent_rms=0.2)
    adamw = optax.adamw(rate, optim.b1, optim.b2, weight_decay=optim.weight_decay, mask=decays)
    return optax.partition({"muon": muon, "adamw": adamw}, of)
