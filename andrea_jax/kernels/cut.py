"""Teaches a kernel launch what XLA does not know of it: along which axes its arrays may be cut.

Where one device computes, the launch is left alone; on a training run's mesh it is known how arrays are cut; else a
partitioner is told the rule. A mapped axis (`jax.vmap`) becomes part of the batch, or takes the plain formula.
"""

from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from andrea_jax import devices


def along(rule: str, whole: str, launch: Callable, plain: Callable, arrays: Sequence[Array]) -> Callable:
    """`launch` as a function of arrays whose axes `rule` names, "batch seq d, batch seq d -> batch seq"; the axis
    `whole` stays whole. `plain` computes the same without a kernel."""
    run = custom_vmap(_on_mesh(rule, launch, arrays) if devices.mesh() else _cut(rule, whole, launch))

    @run.def_vmap
    def mapped(n: int, on: list[bool], *arrays):
        if any(axes[0] != "batch" for axes in next(_axes(rule))):  # each has weights of its own: no kernel does that
            out = jax.vmap(plain, in_axes=[0 if it else None for it in on], axis_size=n)(*arrays)
        else:
            wide = [x if it else jnp.broadcast_to(x[None], (n, *x.shape)) for x, it in zip(arrays, on, strict=True)]
            folded = [x.reshape(-1, *x.shape[2:]) for x in wide]
            out = along(rule, whole, launch, plain, folded)(*folded)
            out = jax.tree.map(lambda x: x.reshape(n, -1, *x.shape[1:]), out)
        return out, jax.tree.map(lambda _: True, out)

    return run


def _axes(rule: str) -> Iterator[list[list[str]]]:
    """Of the arguments, and of the results."""
    return ([axes.split() for axes in side.split(",")] for side in rule.split("->"))


def _on_mesh(rule: str, launch: Callable, arrays: Sequence[Array]) -> Callable:
    """Cut as training cuts arrays: the batch by rows, d_mlp by heads where it divides."""
    mesh, (arguments, results) = devices.mesh(), _axes(rule)
    assert mesh is not None
    sizes = {
        axis: size for axes, x in zip(arguments, arrays, strict=True) for axis, size in zip(axes, x.shape, strict=True)
    }
    by: dict[str, tuple[str, ...]] = {"batch": devices.ROWS}
    if sizes.get("n", 1) % mesh.shape[devices.HEADS] == 0:
        by["n"] = (devices.HEADS,)
    inputs, outputs = (
        tuple(PartitionSpec(*(by.get(axis) for axis in axes)) for axes in side) for side in (arguments, results)
    )
    return devices.on_each(launch, inputs, outputs if len(results) > 1 else outputs[0])


def _cut(rule: str, whole: str, launch: Callable) -> Callable:
    """Cut as a partitioner finds its arrays cut."""
    if devices.alone():
        return launch
    arguments, results = _axes(rule)

    def partition(mesh: Mesh, given, _):
        cut_by = {}  # axis -> the mesh's axes along which the first array that has it is cut
        for axes, array in zip(arguments, given, strict=True):
            spec = (*array.sharding.spec, *[None] * len(axes))
            cut_by = {axis: by for axis, by in zip(axes, spec, strict=False) if by and axis != whole} | cut_by
        inputs, outputs = (
            tuple(NamedSharding(mesh, PartitionSpec(*(cut_by.get(axis) for axis in axes))) for axes in side)
            for side in (arguments, results)
        )
        return mesh, launch, outputs if len(results) > 1 else outputs[0], inputs

    cut = custom_partitioning(launch)
    cut.def_partition(partition, decode_shardings=True, sharding_rule=rule, need_replication_factors=(whole,))
    return cut
