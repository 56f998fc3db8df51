"""Programs that would need most of the device's memory are not run: on a CPU they could stop the machine."""

import os

import jax
from jax.stages import Compiled

from andrea_jax.errors import UserError

MOST = 0.5  # of the device's memory


class TooLarge(UserError):
    """A program that needs more than `MOST` of the device's memory."""


def device_bytes() -> int:
    """Memory of the device that JAX computes on; on a CPU that of the machine."""
    statistics = jax.devices()[0].memory_stats()
    if statistics is None:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return statistics["bytes_limit"]


def refuse_large(compiled: Compiled) -> None:
    """Raises TooLarge for a program whose arguments, results and temporary arrays are more than `MOST` of memory."""
    memory = compiled.memory_analysis()
    if memory is None:
        return
    needed = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    if needed > MOST * device_bytes():
        raise TooLarge(f"needs {needed / 2**30:.1f} GiB, more than half of the device's {device_bytes() / 2**30:.1f}")
