"""How much the loss depends on a head, by its gradient, beside what removing it does.

    I_h = E_x |∂L(x) / ∂ξ_h|        ξ_h: a gate on z_h, 1 in the intact model

of Michel, Levy and Neubig 2019, "Are Sixteen Heads Really Better than One?", section 4.1, with the gradient of every
*example* x: the absolute value of a batch's mean gradient lets examples cancel, and its ranking changes with the
batch. Examples do not meet in a forward pass, so with gates of its own for every example one backward pass over the
batch's summed loss gives them all.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array

from andrea_jax.config import Model
from andrea_jax.heads import statistics
from andrea_jax.interventions.correlation import spearman
from andrea_jax.interventions.damage import answers, behaviour_damage, every_head, masks
from andrea_jax.interventions.edits import Compute, Progress, batches, shape_of_calls
from andrea_jax.interventions.tasks import IN_CONTEXT, Task
from andrea_jax.model import Params, bind
from andrea_jax.training.step import token_losses

KINDS = ("zero", "mean")  # of ablation, that importance is compared with


@dataclass(frozen=True)
class Importance:
    """table: a row a measure and head. measure ("loss", "induction", ...) · layer, head · importance, low, high:
    E_x |∂L(x)/∂ξ|, nats, with its 95% bootstrap interval over sequences · zero, zero_low, zero_high, mean, mean_low,
    mean_high: the damage of removing the head, nats, on the same positions · n: sequences.

    correlations: a row a measure, kind and scope: Spearman's rank correlation of importance and damage. scope "all"
    (all heads), "layer 3" (its heads), "within layers" (mean over layers) · rho, low, high: with the 95% bootstrap
    interval over sequences, null where two heads or more with different values are needed · heads: how many.
    """

    table: pd.DataFrame
    correlations: pd.DataFrame


def importance(
    config: Model,
    params: Params,
    tasks: Sequence[Task],
    *,
    dtype: str = "float32",
    backend: str = "auto",
    progress: Progress | None = None,
) -> Importance:
    """The importance of every head for every behaviour of the tasks, beside the damage of zero- and mean-ablation.

    The in-context score is left out: it is no loss. progress: told (done, in all), in heads × sequences.
    """
    heads = every_head(config)
    settings: Compute = {"dtype": dtype, "backend": backend}
    where, place = masks(config, [[head] for head in heads]), tuple(np.array(heads).T)
    total, done = len(KINDS) * (1 + len(heads)) * sum(len(task.tokens) for task in tasks), 0
    tables, correlations = [], []
    for task in tasks:
        found = {}
        for kind in KINDS:
            tell = None if progress is None else lambda now, _, before=done: progress(before + now, total)
            found[kind] = answers(config, params, task, where, kind, **settings, progress=tell)
            done += (1 + len(heads)) * len(task.tokens)
        for name in task.asked:
            there = task.asked[name].any(axis=1)  # a sequence that is asked nowhere has no gradient
            if name in IN_CONTEXT or not there.any():
                continue
            gradients = gate_gradients(config, params, task.on(there), name, **settings)
            values = {"importance": (np.abs(gradients)[:, *place], np.ones(len(gradients)))}
            for kind in KINDS:
                part, whole = behaviour_damage(task, found[kind], name)
                values[kind] = part[there], whole[there]
            tables.append(_rows(name, heads, values))
            correlations += _correlations(name, config, values)
    return Importance(pd.concat(tables, ignore_index=True), pd.DataFrame(correlations))


def gate_gradients(
    config: Model,
    params: Params,
    task: Task,
    behaviour: str,
    *,
    left: np.ndarray | None = None,
    dtype: str = "float32",
    backend: str = "auto",
    batch_size: int | None = None,
) -> np.ndarray:
    """∂L(x)/∂ξ of every sequence x: float32 [sequence, n_layer, n_head], nats; L(x) is its mean loss where it is asked.

    left bool [n_layer, n_head]: heads still there (None: all); the others stay at 0. Past the last head of a pruned
    layer it is 0. batch_size: sequences at once (None: what fits); it changes nothing.
    """
    size = batch_size or shape_of_calls(config, task.inputs.shape, 1)[0]
    gates = np.ones((config.n_layer, config.n_head), np.float32) if left is None else left.astype(np.float32)
    found = []
    for rows in batches(len(task.tokens), min(size, len(task.tokens))):
        arrays = task.tokens[rows].astype(np.int32), task.asked[behaviour][rows]
        found.append(np.asarray(_gradients(config, str(jnp.dtype(dtype)), backend, params, *arrays, gates)))
    return np.concatenate(found)[: len(task.tokens)]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _gradients(
    config: Model, dtype: str, backend: str, params: Params, tokens: Array, asked: Array, left: Array
) -> Array:
    """tokens int32 [batch, seq + 1], asked bool [batch, seq], left [n_layer, n_head] -> [batch, n_layer, n_head]."""
    model = bind(config, params, dtype=dtype, backend=backend)

    def summed(gates: Array) -> Array:
        def tap(layer: int, point: str, value: Array) -> Array:
            if point != "z":
                return value
            gate = (gates * left[None])[:, layer, None, : value.shape[2], None]
            return (value.astype(jnp.float32) * gate).astype(value.dtype)  # in float32: gates have its gradient

        losses = token_losses(model(tokens[:, :-1], tap=tap), tokens[:, 1:])
        return ((losses * asked).sum(axis=1) / asked.sum(axis=1)).sum()

    return jax.grad(summed)(jnp.ones((len(tokens), config.n_layer, config.n_head)))


def _rows(
    name: str, heads: Sequence[tuple[int, int]], values: dict[str, tuple[np.ndarray, np.ndarray]]
) -> pd.DataFrame:
    table = pd.DataFrame(heads, columns=["layer", "head"])
    table.insert(0, "measure", name)
    for column, (part, whole) in values.items():
        estimate = statistics.ratio(part, whole)
        assert estimate is not None  # every sequence has a position
        ends = ("low", "high") if column == "importance" else (f"{column}_low", f"{column}_high")
        table = table.assign(**dict(zip((column, *ends), estimate, strict=True)))
    return table.assign(n=len(values["importance"][0]))


def _correlations(name: str, config: Model, values: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[dict]:
    ends = np.cumsum((0, *config.layer_heads))
    layers = [slice(start, end) for start, end in itertools.pairwise(ends)]
    found = []
    for kind in KINDS:
        for scope, estimate, n in spearman(values["importance"], values[kind], layers):
            rho, low, high = estimate
            found.append(
                {"measure": name, "kind": kind, "scope": scope, "rho": rho, "low": low, "high": high, "heads": n}
            )
    return found
