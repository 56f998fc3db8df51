"""How unique a head is, in several meanings, beside the gradients that it receives (claim C9).

A head may be redundant because the model does without it, because another attends alike, because another writes alike,
or because the others of its layer together say what it says. These need not agree, so each has its column.
"""

import functools

import jax
import numpy as np
import pandas as pd
from jax import Array

from andrea_jax import similarity
from andrea_jax.config import Model
from andrea_jax.conversion import convert
from andrea_jax.interventions import Task, ablate, every_head, gate_gradients
from andrea_jax.interventions.correlation import rank_correlation
from andrea_jax.model import Params, bind
from andrea_jax.training import loss
from andrea_jax.training.step import head_grad_norm

GRADIENTS = ("weights", "gate")
UNIQUENESS = ("damage", "js", "cka", "r2")
EXAMPLES_AT_ONCE = 16  # whose gradients of all parameters are held


def measure(config: Model, params: Params, tokens: np.ndarray) -> pd.DataFrame:
    """A row a head, on tokens int [sequence, seq + 1], in float32. For layers of two heads or more.

    layer, head · gradients, means over examples x: weights, E_x ‖∂L(x)/∂(W_Q, W_K, W_V, W_O)‖ (`head_grad_norm`); gate,
    E_x |∂L(x)/∂ξ| (Michel et al. 2019) · uniqueness, more is more unique: damage, nats, of mean-ablation; js, the
    distance to the nearest pattern of the layer; cka, 1 − the largest CKA with another output of the layer; r2, 1 − R²
    from the layer's other heads (`similarity.summarise`).
    """
    task = Task(tokens, {"loss": np.ones(tokens[:, 1:].shape, bool)})
    alike = similarity.summarise(similarity.measure(config, params, tokens[:, :-1]))
    heads = every_head(config)
    table = pd.DataFrame(heads, columns=["layer", "head"])
    place = tuple(np.array(heads).T)
    table["weights"] = np.asarray(gradient_norms(config, params, tokens))[place]
    table["gate"] = np.abs(gate_gradients(config, params, task, "loss")).mean(axis=0)[place]
    damage = ablate(config, params, [task], kinds=("mean",)).table
    table["damage"] = damage["damage"].to_numpy()  # head by head, in the same order
    pairs = [pair for pair in alike.pairs.to_dict("records") if pair["layer_1"] == pair["layer_2"]]
    mine = [[pair for pair in pairs if pair["layer_1"] == layer and head in (pair["head_1"], pair["head_2"])]
            for layer, head in heads]  # fmt: skip
    table["js"] = [min(pair["js"] for pair in own) for own in mine]
    table["cka"] = [1 - max(pair["cka"] for pair in own) for own in mine]
    table["r2"] = 1 - alike.heads["r2"]
    return table


@functools.partial(jax.jit, static_argnums=0)
def gradient_norms(config: Model, params: Params, tokens: Array) -> Array:
    """E_x of `head_grad_norm` of every example's own mean loss, tokens [example, seq + 1] -> [n_layer, n_head]."""

    def norms(example: Array) -> Array:
        def own_loss(params: Params) -> Array:
            return loss(bind(config, params)(example[None, :-1]), example[None, 1:])

        return head_grad_norm(config, jax.grad(own_loss)(params))

    return jax.lax.map(norms, tokens, batch_size=EXAMPLES_AT_ONCE).mean(axis=0)


def correlations(table: pd.DataFrame) -> dict[tuple[str, str], float]:
    """(gradient, uniqueness) -> Spearman's rho within layers, the mean over layers; nan where no layer has one."""
    found = {}
    for gradient in GRADIENTS:
        for unique in UNIQUENESS:
            rho = [rank_correlation(rows[[gradient]].to_numpy().T, rows[[unique]].to_numpy().T)[0]
                   for _, rows in table.groupby("layer")]  # fmt: skip
            known = [value for value in rho if not np.isnan(value)]
            found[gradient, unique] = float(np.mean(known)) if known else float("nan")
    return found


def twins(config: Model, params: Params, layer: int, a: int, b: int) -> tuple[Model, Params, Params]:
    """(config, alone, twins): two models of one function, in per-head projection. In the first, head b of a layer
    writes nothing; in the second it is a's twin: both have a's W_Q, W_K, W_V, and half of its W_O.

    Raises ValueError where heads share keys and values: a twin needs its own.
    """
    if config.group > 1:
        raise ValueError("twin heads need keys and values of their own, and model.n_kv_head is below n_head")
    per_head, split = convert(config, params, "per_head")
    weights = split["layers"][str(layer)]["attention"]["projection"]
    alone = weights | {"W_O": weights["W_O"].at[b].set(0)}
    copied = {name: x.at[b].set(x[a]) for name, x in weights.items() if name[2:] in ("Q", "K", "V")}
    doubled = weights | copied | {"W_O": weights["W_O"].at[np.array([a, b])].set(weights["W_O"][a] / 2)}
    return per_head, _with_layer(split, layer, alone), _with_layer(split, layer, doubled)


def _with_layer(params: Params, layer: int, weights: Params) -> Params:
    changed = {**params["layers"][str(layer)], "attention": {"projection": weights}}
    return {**params, "layers": {**params["layers"], str(layer): changed}}
