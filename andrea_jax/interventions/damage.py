"""What a model loses without a head, a set of heads, or each head in turn."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array

from andrea_jax.config import Model
from andrea_jax.errors import UserError
from andrea_jax.heads import statistics
from andrea_jax.interventions.edits import Progress, edited, sweep
from andrea_jax.interventions.kinds import check_kind, swaps
from andrea_jax.interventions.tasks import IN_CONTEXT, Task
from andrea_jax.model import Params

Head = tuple[int, int]  # (layer, head)
COLUMNS = ["kind", "heads", "layer", "head", "measure", "damage", "low", "high", "intact", "ablated", "n"]
NLL, RIGHT = 0, 1  # the last axis of what a task's answers are


@dataclass(frozen=True)
class Damage:
    """table: a row a kind, head (or set) and measure. kind · heads: "1.2", or "0.3 1.2" for a set · layer, head: null
    for a set · measure · damage, low, high: ablated − intact, for accuracies intact − ablated, so that more is worse;
    with the 95% bootstrap interval over sequences, each sequence paired with itself intact · intact, ablated: the two
    values · n: positions asked.
    Measures: loss (nats/token, held-out text) · in_context (mean loss at late − at early positions, nats) · every other
    behaviour of the tasks: its mean −log p (nats), and as "<name>_accuracy" the share of right guesses. Null where n
    is 0.

    heads_per_s: edits of one kind over the seconds that all tasks took, of the last kind (where there are two, nothing
    is compiled in that time) · tokens: those of one edit.
    """

    table: pd.DataFrame
    heads_per_s: float
    tokens: int


def ablate(
    config: Model,
    params: Params,
    tasks: Sequence[Task],
    *,
    kinds: Sequence[str] = ("zero", "mean"),
    sets: Sequence[Sequence[Head]] | None = None,
    dtype: str = "float32",
    backend: str = "auto",
    seed: int = 0,
    progress: Progress | None = None,
) -> Damage:
    """Removes each of `sets` (None: every head by itself) in each of `kinds` (see `kinds.KINDS`), on all tasks.

    One compiled program a shape of tokens, for all heads and kinds. progress: told (done, in all), in edits ×
    sequences. UserError for a head that the model does not have.
    """
    chosen = [[head] for head in every_head(config)] if sets is None else [list(heads) for heads in sets]
    where = masks(config, chosen)
    for kind in kinds:
        check_kind(kind)
    total, done = len(kinds) * (1 + len(where)) * sum(len(task.tokens) for task in tasks), 0
    rows: list[dict] = []
    seconds = 0.0
    for kind in kinds:
        began = time.perf_counter()
        for task in tasks:
            tell = None if progress is None else lambda now, _, before=done: progress(before + now, total)
            settings = {"dtype": dtype, "backend": backend, "seed": seed, "progress": tell}
            found = answers(config, params, task, where, kind, **settings)
            done += (1 + len(where)) * len(task.tokens)
            rows += [{"kind": kind, **row} for row in _rows(task, found, chosen)]
        seconds = time.perf_counter() - began
    table = pd.DataFrame(rows, columns=COLUMNS).astype({"layer": "Int64", "head": "Int64"})
    return Damage(table, len(where) / seconds, sum(task.inputs.size for task in tasks))


def every_head(config: Model) -> list[Head]:
    """All heads, layer by layer."""
    return [(layer, head) for layer, n in enumerate(config.layer_heads) for head in range(n)]


def masks(config: Model, sets: Sequence[Sequence[Head]]) -> np.ndarray:
    """bool [set, n_layer, n_head], true for the heads of each set. UserError for one that the model does not have."""
    where, known = np.zeros((len(sets), config.n_layer, config.n_head), bool), set(every_head(config))
    for i, heads in enumerate(sets):
        for layer, head in heads:
            if (layer, head) not in known:
                raise UserError(f"head {layer}.{head}: there is none in a model of {config.shape}")
            where[i, layer, head] = True
    return where


def answers(
    config: Model,
    params: Params,
    task: Task,
    where: np.ndarray,
    kind: str,
    *,
    dtype: str = "float32",
    backend: str = "auto",
    seed: int = 0,
    progress: Progress | None = None,
) -> np.ndarray:
    """`Answers` of the intact model (first) and of every edit: float32 [1 + edit, sequence, behaviour, 2].

    where bool [edit, n_layer, n_head]. The intact model goes through the same program, so that what an edit does not
    change differs by rounding at most.
    """
    with_intact = np.concatenate([np.zeros_like(where[:1]), where])[:, :, None]  # an axis for positions
    swap = swaps(kind, config, params, task.inputs, dtype=dtype, backend=backend, seed=seed)

    def prepare(rows: np.ndarray) -> Callable[[np.ndarray], Array]:
        arrays = params, task.inputs[rows].astype(np.int32), swap(rows)
        read = task.answers(rows)
        return lambda edits: edited(config, str(jnp.dtype(dtype)), backend, *arrays, with_intact[edits], read)

    return sweep(config, task.inputs, len(with_intact), prepare, progress)


def behaviour_damage(task: Task, found: np.ndarray, name: str, what: int = NLL) -> tuple[np.ndarray, np.ndarray]:
    """(Σ damage [sequence, edit], positions [sequence]) of one behaviour, from `answers`; more is worse."""
    sums = found[..., list(task.asked).index(name), what].astype(np.float64).T
    change = sums[:, 1:] - sums[:, :1]
    return change if what == NLL else -change, task.asked[name].sum(axis=1)


def _rows(task: Task, found: np.ndarray, chosen: Sequence[Sequence[Head]]) -> Iterator[dict]:
    """The rows of `Damage.table` of one task and kind."""
    for measure, part, whole, values in _measures(task, found):
        estimate = statistics.ratio(part, whole) if whole.any() else None
        for i, heads in enumerate(chosen):
            one = heads[0] if len(heads) == 1 else (None, None)
            figures = {name: np.float32(np.nan) for name in ("damage", "low", "high", "intact", "ablated")}
            if estimate is not None:
                figures = dict(zip(("damage", "low", "high"), (x[i] for x in estimate), strict=True))
                figures |= {"intact": values[0], "ablated": values[1 + i]}
            names = {"heads": " ".join(f"{layer}.{head}" for layer, head in heads), "layer": one[0], "head": one[1]}
            yield {**names, "measure": measure, **figures, "n": int(task_n(task, measure))}


def _measures(task: Task, found: np.ndarray) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """(measure, Σ damage [sequence, edit], its denominators [sequence], value of each edit [1 + edit])."""
    for name, asked in task.asked.items():
        sums = found[..., list(task.asked).index(name), :].sum(axis=1, dtype=np.float64) / max(asked.sum(), 1)
        if name == IN_CONTEXT[0]:
            late, early = (behaviour_damage(task, found, band) for band in IN_CONTEXT)
            change = late[0] / late[1][:, None] - early[0] / early[1][:, None]
            place, n = list(task.asked).index(IN_CONTEXT[1]), task.asked[IN_CONTEXT[1]].sum()
            early_loss = found[..., place, NLL].sum(axis=1, dtype=np.float64) / n
            yield "in_context", change, np.ones(len(change)), (sums[:, NLL] - early_loss).astype(np.float32)
        if name in IN_CONTEXT:
            continue
        yield name, *behaviour_damage(task, found, name), sums[:, NLL].astype(np.float32)
        if name != "loss":
            share = sums[:, RIGHT].astype(np.float32)
            yield f"{name}_accuracy", *behaviour_damage(task, found, name, RIGHT), share


def task_n(task: Task, measure: str) -> int:
    """Positions that a measure asks at, in all."""
    names = IN_CONTEXT if measure == "in_context" else (measure.removesuffix("_accuracy"),)
    return sum(int(task.asked[name].sum()) for name in names)
