"""Teaches a kernel launch what XLA does not know of it: a mapped axis becomes part of the batch, and a partitioner may
cut along the batch and the key-value heads. Gradients are the backends' own business (`jax.custom_vjp`).

Heads are cut only where q, k and v are arrays of their own. Of one array q | k | v that is cut along its heads, no
device has the q, k and v of the same heads: there XLA first gathers the heads, which training avoids (it splits W_QKV
where `compute.mesh` cuts heads, `training/placement.py`).
"""

import functools
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, ShapeDtypeStruct
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from andrea_jax import devices


@functools.lru_cache
def once(launch: Callable, static) -> Callable:
    """`launch` with these settings, which is traced and lowered once for all layers of a model."""
    return jax.jit(functools.partial(launch, static))


def for_each_batch_and_head(launch: Callable, *arrays: Array | None, fused: bool = False):
    """`launch`(*arrays), for arrays [batch, length, heads, head_dim], [batch, heads, query] and [batch].

    The first are q and k; or, `fused`, the first is all of q, k and v.
    """
    run = custom_vmap(_cut(launch, fused, *arrays))

    @run.def_vmap
    def into_the_batch(n: int, mapped, *arrays):
        def fold(x: Array, is_mapped: bool) -> Array:
            x = x if is_mapped else jnp.broadcast_to(x[None], (n, *x.shape))
            return x.reshape(-1, *x.shape[2:])

        out = for_each_batch_and_head(launch, *jax.tree.map(fold, arrays, tuple(mapped)), fused=fused)
        out = jax.tree.map(lambda x: x.reshape(n, -1, *x.shape[1:]), out)
        return out, jax.tree.map(lambda _: True, out)

    return run(*arrays)


def _on_mesh(launch: Callable, fused: bool, *arrays: Array | None) -> Callable:
    heads = None if fused else devices.HEADS
    axes = {1: P(devices.ROWS), 3: P(devices.ROWS, heads), 4: P(devices.ROWS, None, heads)}
    cut = functools.partial(jax.tree.map, lambda x: axes[len(x.shape)])
    return devices.on_each(launch, cut(arrays), cut(jax.eval_shape(launch, *arrays)))


def _cut(launch: Callable, fused: bool, *arrays: Array | None) -> Callable:
    """`launch` cut along the batch and the key-value heads, and nothing else: on a training run's mesh as it cuts
    arrays, else as a partitioner finds them cut. Left as it is for one device: nothing to cut, and the program says
    what it launches."""
    if devices.mesh() is not None:
        return _on_mesh(launch, fused, *arrays)
    return launch if devices.alone() else _partitioned(launch, fused, *arrays)


def _partitioned(launch: Callable, fused: bool, *arrays: Array | None) -> Callable:
    launch = getattr(launch, "__wrapped__", launch)  # custom_partitioning refuses jitted functions that write into refs
    q, k, *_ = arrays
    assert q is not None and (fused or k is not None)
    group = 1 if fused or k is None else q.shape[2] // k.shape[2]

    def heads_factor(heads: int) -> str:
        if fused:
            return f"heads{heads}"
        return "head" if heads * group == q.shape[2] else "(head group)"

    def factors(x: Array | ShapeDtypeStruct) -> str:
        match x.shape:
            case (_, length, heads, _):
                return f"batch length{length} {heads_factor(heads)} dim"
            case (_, heads, length):
                return f"batch {heads_factor(heads)} length{length}"
        return "batch"

    results = jax.eval_shape(launch, *arrays)
    rule = " -> ".join(", ".join(factors(x) for x in jax.tree.leaves(side)) for side in (arrays, results))
    uncut = [name for name in dict.fromkeys(re.findall(r"\w+", rule)) if name not in ("batch", "head")]
    sizes = {} if group == 1 else {"group": group}

    def partition(mesh: Mesh, arguments, results):
        batch, _, head, _ = (*arguments[0].sharding.spec, None, None, None, None)[:4]
        head = None if fused else head
        axes = {1: P(batch), 3: P(batch, head), 4: P(batch, None, head)}
        inputs, outputs = jax.tree.map(lambda x: NamedSharding(mesh, axes[len(x.shape)]), (arguments, results))
        return mesh, launch, outputs, inputs

    cut = custom_partitioning(launch)
    cut.def_partition(
        partition, decode_shardings=True, sharding_rule=rule, need_replication_factors=tuple(uncut), **sizes
    )
    return cut
