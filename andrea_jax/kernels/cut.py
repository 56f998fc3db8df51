"""Teaches a kernel launch what XLA does not know of it: along which axes a partitioner may cut its arrays.

Where one device computes, the launch is left alone. A mapped axis (`jax.vmap`) takes the plain formula.
"""

from collections.abc import Callable

import jax
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def along(rule: str, whole: str, launch: Callable, plain: Callable) -> Callable:
    """`launch` as a function of arrays whose axes `rule` names, "batch seq d, batch seq d -> batch seq"; the axis
    `whole` stays whole. `plain` computes the same without a kernel."""
    run = custom_vmap(launch if jax.device_count() == 1 else _cut(rule, whole, launch))

    @run.def_vmap
    def mapped(n: int, on: list[bool], *arrays):
        out = jax.vmap(plain, in_axes=[0 if it else None for it in on], axis_size=n)(*arrays)
        return out, jax.tree.map(lambda _: True, out)

    return run


def _cut(rule: str, whole: str, launch: Callable) -> Callable:
    arguments, results = ([axes.split() for axes in side.split(",")] for side in rule.split("->"))

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
