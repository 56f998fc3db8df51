"""Which device computes, and saying once what was chosen for it."""

import logging

import jax
from jax.core import Tracer

_log = logging.getLogger("andrea_jax")
_said: set[str] = set()


def of(x: jax.Array):
    """Where `x` lies. While tracing no array lies anywhere yet: the device that JAX computes on by default."""
    if isinstance(x, jax.Array) and not isinstance(x, Tracer):
        return min(x.devices(), key=lambda device: device.id)
    default = jax.config.jax_default_device  # what jax.default_device(...) sets: a device, a platform's name or None
    return default if isinstance(default, jax.Device) else jax.devices(default)[0]


def compute_capability(device) -> tuple[int, int] | None:
    """(9, 0) on an H200; None on a device that is not CUDA's."""
    if device.platform != "gpu" or "cuda" not in device.client.platform_version:  # "gpu" is also what ROCm says
        return None
    major, minor = str(device.compute_capability).split(".")
    return int(major), int(minor)


def say_once(message: str) -> None:
    """Logs at INFO, by the logger "andrea_jax", what was not logged before."""
    if message not in _said:
        _said.add(message)
        _log.info(message)
