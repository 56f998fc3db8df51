"""Taking heads out for good: smaller weights, the same logits as with the heads' z at 0.

`prune` cuts a model; `removal_order` says which heads go first; `curve` measures what that costs, against heads taken
out at random. Every layer keeps a head. Where heads share keys and values (n_kv_head < n_head) they go by whole groups.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd

from andrea_jax.config import Model
from andrea_jax.conversion import convert
from andrea_jax.errors import UserError
from andrea_jax.heads import statistics
from andrea_jax.heads.statistics import CHOOSE, REPORT
from andrea_jax.interventions.damage import NLL, Head, answers, behaviour_damage, every_head, masks
from andrea_jax.interventions.edits import Compute, Progress
from andrea_jax.interventions.importance import gate_gradients
from andrea_jax.interventions.tasks import Task
from andrea_jax.model import Params

type Strategy = Literal["importance", "re-estimated", "random"]
DRAWS = 20  # random orders
POINTS = 20  # of a curve, besides the intact model


def prune(config: Model, params: Params, removed: Sequence[Head]) -> tuple[Model, Params]:
    """(config, params) without these heads, in the same projection: copied weights, none computed.

    Heads behind a removed one move up: head h of the new layer is the h-th that was left. head_dim stays. UserError
    for a head that is not there, where a layer would lose its last head, where only part of a group would go, and where
    W_O is not free.
    """
    gone = masks(config, [removed])[0]
    kept = [np.flatnonzero(~gone[layer, :n]) for layer, n in enumerate(config.layer_heads)]
    _check(config, kept)
    per_head, split = convert(config, params, "per_head")
    layers = {}
    for name, layer in split["layers"].items():
        heads = kept[int(name)]
        index = {"Q": heads, "K": heads[:: config.group] // config.group}
        index |= {"V": index["K"], "O": heads}
        weights = {key: x if key == "b_O" else x[index[key[-1]]] for key, x in layer["attention"]["projection"].items()}
        layers[name] = {**layer, "attention": {"projection": weights}}
    smaller = dataclasses.replace(per_head, heads_per_layer=tuple(map(len, kept)))
    return convert(smaller, {**split, "layers": layers}, config.projection, config.projection_form)


def _check(config: Model, kept: Sequence[np.ndarray]) -> None:
    if config.w_o != "free":
        text = 'only models with model.w_o = "free" can lose heads: here each head has its own place in the stream'
        raise UserError(f'prune: {text} (model.w_o = "{config.w_o}")')
    for layer, heads in enumerate(kept):
        if not len(heads):
            raise UserError(f"prune: layer {layer} would lose its last head, and each keeps one")
        groups, sizes = np.unique(heads // config.group, return_counts=True)
        for group, size in zip(groups.tolist(), sizes.tolist(), strict=True):
            if size < config.group:
                first = group * config.group
                text = f"heads {layer}.{first} to {layer}.{first + config.group - 1} share keys and values"
                raise UserError(f"prune: {text}, and go together or not at all")


def most(config: Model) -> int:
    """How many heads can go: all but one (or one group) a layer."""
    return sum(config.layer_heads) - config.n_layer * config.group


def count(config: Model, fraction: float) -> int:
    """The heads that a fraction of them is, in whole groups. UserError where a layer could not keep one."""
    n = round(fraction * sum(config.layer_heads) / config.group) * config.group
    if not 0 < n <= most(config):
        limit = most(config) / sum(config.layer_heads)
        text = f"takes {n} of {sum(config.layer_heads)} heads; it must take one, and at most {limit:.2f} of them"
        raise UserError(f"fraction = {fraction:g}: {text}, since every layer keeps one")
    return n


def removal_order(
    config: Model,
    params: Params,
    task: Task,
    behaviour: str = "loss",
    *,
    re_estimate: bool,
    dtype: str = "float32",
    backend: str = "auto",
    progress: Progress | None = None,
) -> list[Head]:
    """The heads that can go, the least important first (see `importance`), on all sequences of the task.

    re_estimate: importance is measured again after each head (or group), among those left. progress: told (heads done,
    in all). Of equals the first goes.
    """
    left, order, values = masks(config, [every_head(config)])[0], [], None
    while len(order) < most(config):
        if values is None or re_estimate:
            gradients = gate_gradients(config, params, task, behaviour, left=left, dtype=dtype, backend=backend)
            values = np.abs(gradients).mean(axis=0, dtype=np.float64)
        order += _take(config, left, values)
        if progress:
            progress(len(order), most(config))
    return order


def _take(config: Model, left: np.ndarray, values: np.ndarray) -> list[Head]:
    """Takes the group with the least Σ of values [n_layer, n_head] out of `left`, of the layers that have another."""
    groups = values.reshape(config.n_layer, -1, config.group).sum(axis=-1)
    there = left.reshape(config.n_layer, -1, config.group)[..., 0]
    may_go = there & (there.sum(axis=1, keepdims=True) > 1)
    layer, group = np.unravel_index(int(np.where(may_go, groups, np.inf).argmin()), groups.shape)
    heads = [(int(layer), int(group) * config.group + i) for i in range(config.group)]
    for head in heads:
        left[head] = False
    return heads


def cheapest(
    config: Model,
    params: Params,
    task: Task,
    n: int,
    *,
    dtype: str = "float32",
    backend: str = "auto",
    progress: Progress | None = None,
) -> list[Head]:
    """n heads to remove: the first n of `removal_order`, measured once or again after each, whichever costs less loss
    on the task."""
    settings: Compute = {"dtype": dtype, "backend": backend}
    once = removal_order(config, params, task, re_estimate=False, **settings)
    again = removal_order(config, params, task, re_estimate=True, progress=progress, **settings)
    sets = [once[:n], again[:n]]
    part, _ = behaviour_damage(task, answers(config, params, task, masks(config, sets), "zero", **settings), "loss")
    return sets[int(part.sum(axis=0).argmin())]


def curve(
    config: Model,
    params: Params,
    task: Task,
    *,
    behaviour: str = "loss",
    dtype: str = "float32",
    backend: str = "auto",
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """What taking out heads costs, by strategy: a row a strategy and number of heads.

    strategy: "importance" (the order of the intact model), "re-estimated" (measured again after each head), "random"
    (the mean of `DRAWS` random orders) · removed: heads · fraction: of all heads · loss, nats/token · damage: loss
    − the intact model's, with its 95% interval low, high: over sequences (bootstrap), or over the random orders ·
    heads: which ones, "0.2 1.3"; "" for random. Importance is measured on the even sequences of the task, losses on the
    odd ones. progress: told (done, in all), in parts of one order or one point.
    """
    settings: Compute = {"dtype": dtype, "backend": backend}
    choosing, reporting, steps = task.on(CHOOSE), task.on(REPORT), most(config)
    if not steps:
        raise UserError(f"nothing can be pruned from {config.shape}: every layer keeps one")
    units = np.linspace(0, steps // config.group, min(POINTS, steps // config.group) + 1).astype(int)
    points = (units[1:] * config.group).tolist()
    order = functools.partial(removal_order, config, params, choosing, behaviour, **settings)
    rng = np.random.default_rng(seed)
    orders: dict[Strategy, list[list[Head]]] = {
        "importance": [order(re_estimate=False)],
        "re-estimated": [order(re_estimate=True, progress=progress)],
        "random": [_random_order(config, rng) for _ in range(DRAWS)],
    }
    sets = [order[:n] for several in orders.values() for order in several for n in points]
    found = answers(config, params, reporting, masks(config, sets), "zero", **settings, progress=progress)
    return _table(config, reporting, behaviour, orders, points, found)


def _random_order(config: Model, rng: np.random.Generator) -> list[Head]:
    left, order = masks(config, [every_head(config)])[0], []
    while len(order) < most(config):
        order += _take(config, left, rng.random(left.shape))
    return order


def _table(
    config: Model,
    task: Task,
    behaviour: str,
    orders: Mapping[Strategy, Sequence[Sequence[Head]]],
    points: Sequence[int],
    found: np.ndarray,
) -> pd.DataFrame:
    """found: `answers` of the intact model, then of every order at every point."""
    part, whole = behaviour_damage(task, found, behaviour)
    rows, start = [], 0
    for strategy, several in orders.items():
        rows.append({"strategy": strategy, "removed": 0, "damage": 0.0, "low": 0.0, "high": 0.0, "heads": ""})
        block = part[:, start : start + len(several) * len(points)]
        start += block.shape[1]
        damage = (block.sum(axis=0) / whole.sum()).reshape(len(several), -1)  # [order, point]
        low, high = np.percentile(damage, [2.5, 97.5], axis=0)
        if len(several) == 1:
            estimate = statistics.ratio(block, whole)
            assert estimate is not None
            low, high = estimate.low, estimate.high
        for i, n in enumerate(points):
            heads = " ".join(f"{layer}.{head}" for layer, head in several[0][:n]) if len(several) == 1 else ""
            figures = {"damage": damage[:, i].mean(), "low": low[i], "high": high[i]}
            rows.append({"strategy": strategy, "removed": n, **figures, "heads": heads})
    table = pd.DataFrame(rows)
    intact = found[0, :, list(task.asked).index(behaviour), NLL].sum(dtype=np.float64) / whole.sum()
    table.insert(2, "fraction", table["removed"] / sum(config.layer_heads))
    table.insert(3, "loss", intact + table["damage"])
    return table
