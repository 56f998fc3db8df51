"""Which device computes, or which mesh of them, and saying once what was chosen for it."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import jax
from jax.core import Tracer
from jax.sharding import PartitionSpec

_log = logging.getLogger("andrea_jax")
_said: set[str] = set()
# what `over` has set, the innermost last; each thread has its own, since programs are also traced side by side
_meshes: ContextVar[tuple[jax.sharding.Mesh | None, ...]] = ContextVar("meshes", default=())

ROWS, HEADS = ("data", "fsdp"), "heads"  # a mesh's axes that cut the windows of a batch; and heads, d_mlp, vocabulary


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


def compiler_options() -> dict[str, str | bool]:
    """What a training run's programs are compiled with where JAX computes by default.

    On a GPU without Triton's matrix products: trying them beside the library's is most of what XLA does there (120M on
    an H200, 2026-11-30: 54 s with them, 16 s without), and steps are as fast (39.60 and 39.65 ms).
    """
    return {"xla_gpu_enable_triton_gemm": False} if jax.default_backend() == "gpu" else {}


def say_once(message: str) -> None:
    """Logs at INFO, by the logger "andrea_jax", what was not logged before."""
    if message not in _said:
        _said.add(message)
        _log.info(message)


@contextlib.contextmanager
def over(mesh: jax.sharding.Mesh | None) -> Iterator[None]:
    """What is traced inside it computes on this mesh, of axes data, fsdp and heads; None: on one device."""
    before = _meshes.set((*_meshes.get(), mesh))
    try:
        yield
    finally:
        _meshes.reset(before)


def mesh() -> jax.sharding.Mesh | None:
    """That of the innermost `over`."""
    return _meshes.get()[-1] if _meshes.get() else None


def alone() -> bool:
    """Whether one device computes, for all that is known while tracing."""
    return jax.device_count() == 1 or _meshes.get()[-1:] == (None,)


def on_each(launch: Callable, inputs: tuple[PartitionSpec, ...], outputs) -> Callable:
    """`launch` on each device's part of its arguments and results, which `inputs` and `outputs` cut along `mesh()`."""
    return jax.shard_map(launch, mesh=mesh(), in_specs=inputs, out_specs=outputs, check_vma=False)
