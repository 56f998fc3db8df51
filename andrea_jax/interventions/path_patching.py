"""Path patching: what one head does through the queries, keys or values of others alone."""

import functools
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array

from andrea_jax.config import Model
from andrea_jax.errors import UserError
from andrea_jax.interventions.damage import Head, every_head, masks
from andrea_jax.interventions.edits import Layers, Progress, Reader, recorded, sweep
from andrea_jax.interventions.patching import Metric, check_pair, effects, of_rows, untouched
from andrea_jax.model import Params, bind

INPUTS = ("q", "k", "v")


class _Paths(NamedTuple):
    """clean: point -> its values in the clean run · corrupted_z · receivers: point -> bool [n_layer, n_head or
    n_kv_head], whose value is patched · through_mlps bool: MLPs are computed again, not kept."""

    clean: dict[str, Layers]
    corrupted_z: Layers
    receivers: dict[str, Array]
    through_mlps: Array


def path_patch(
    config: Model,
    params: Params,
    clean: np.ndarray,
    corrupted: np.ndarray,
    metric: Metric,
    receivers: Sequence[Head] | Literal["logits"],
    *,
    inputs: Sequence[Literal["q", "k", "v"]] = INPUTS,
    through_mlps: bool = False,
    dtype: str = "float32",
    backend: str = "auto",
    progress: Progress | None = None,
) -> pd.DataFrame:
    """What every head, as a sender, does to the metric through the inputs of `receivers` alone.

    First pass: clean, with every z and every MLP's output kept, but for the sender's z, which is the corrupted run's;
    it gives what q, k and v of the receivers would be. Second: clean, with these `inputs` of the receivers, everything
    else computed; it gives the metric. through_mlps: the first pass does not keep MLPs, so paths may lead through them
    (Wang et al. 2022). receivers "logits": the first pass gives the metric. Of heads that share keys and values all
    get the receiver's. A row a sender: layer, head, then as `patching.patch`, with the clean run as the one patched
    into; a head in the receivers' layers or above has effect 0. UserError as there, and for a receiver not there.
    """
    check_pair(clean, corrupted, metric)
    settings = config, str(jnp.dtype(dtype)), backend
    tokens, other = (x.astype(np.int32) for x in (clean, corrupted))
    senders, direct = masks(config, [[], *([head] for head in every_head(config))]), receivers == "logits"
    chosen = _receivers(config, [] if isinstance(receivers, str) else receivers, inputs)
    points = ("z", "mlp_out") if config.mlp_width else ("z",)

    def prepare(rows: np.ndarray) -> Callable[[np.ndarray], Array]:
        kept, sent = (recorded(*settings, points, params, x[rows]) for x in (tokens, other))
        paths, read = _Paths(kept, sent["z"], chosen, jnp.asarray(through_mlps)), of_rows(metric, rows)
        return lambda edits: _patched(*settings, direct, params, tokens[rows], paths, senders[edits], read)

    found = sweep(config, clean, len(senders), prepare, progress)
    layer, head = np.array(every_head(config)).T
    return effects(found, untouched(settings, params, other, metric), {"layer": layer, "head": head})


def _receivers(config: Model, heads: Sequence[Head], inputs: Sequence[str]) -> dict[str, Array]:
    if not inputs or set(inputs) - set(INPUTS):
        raise UserError(f"inputs must be one or more of {', '.join(INPUTS)}, not {list(inputs)}")
    chosen = masks(config, [heads])[0]
    of_groups = chosen.reshape(config.n_layer, -1, config.group).any(axis=-1)
    wanted = {"q": chosen, "k": of_groups, "v": of_groups}
    return {point: jnp.asarray(mask & (point in inputs)) for point, mask in wanted.items()}


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _patched(
    config: Model, dtype: str, backend: str, direct: bool, params: Params, tokens: Array, paths: _Paths, senders: Array,
    read: Reader,
) -> Array:  # fmt: skip
    """The metric for every set of senders, bool [edit, n_layer, n_head]: [edit, batch]."""
    n, arriving = len(senders), {}
    model, tiled = bind(config, params, dtype=dtype, backend=backend), jnp.tile(tokens, (n, 1))

    def apart(x: Array) -> Array:
        """[edit · batch, ...] -> [edit, batch, ...]."""
        return x.reshape(n, len(tokens), *x.shape[1:])

    def send(layer: int, point: str, value: Array) -> Array:
        if point == "z":
            sender = senders[:, layer, None, None, : value.shape[2], None]
            z = jnp.where(sender, paths.corrupted_z[layer][None], paths.clean["z"][layer][None])
            return z.reshape(value.shape)
        if point == "mlp_out":
            return jnp.where(paths.through_mlps, apart(value), paths.clean[point][layer][None]).reshape(value.shape)
        if point in paths.receivers:
            arriving[layer, point] = value
        return value

    def receive(layer: int, point: str, value: Array) -> Array:
        if point not in paths.receivers:
            return value
        chosen = paths.receivers[point][layer, None, None, : value.shape[2], None]
        return jnp.where(chosen, arriving[layer, point], value)

    logits = model(tiled, tap=send)
    return jax.vmap(read)(apart(logits if direct else model(tiled, tap=receive)))
