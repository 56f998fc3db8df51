"""Which backend runs a call: what each one can do, and the choice that "auto" makes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp

from andrea_jax import devices
from andrea_jax.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Call:
    """What decides whether a backend can run a call: everything about it but its numbers."""

    device: str  # its own name: "NVIDIA H200", "cpu"
    cuda: tuple[int, int] | None  # compute capability, (9, 0) on an H200; None on a device that is not CUDA's
    dtype: str  # of q, k and v
    head_dim: int
    causal: bool
    from_zero: bool  # q_offset is 0, and known to be while tracing

    @staticmethod
    def of(q: jax.Array, causal: bool, q_offset: int | jax.Array) -> "Call":
        """The call with these arguments, on the device that holds q."""
        device = devices.of(q)
        return Call(
            device=device.device_kind,
            cuda=devices.compute_capability(device),
            dtype=q.dtype.name,
            head_dim=q.shape[-1],
            causal=causal,
            from_zero=isinstance(q_offset, int) and q_offset == 0,
        )


class AttentionFunction(Protocol):
    """A backend's function: `andrea_jax.attention.attention` with every argument resolved and checked."""

    def __call__(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        *,
        causal: bool,
        scale: float,
        q_offset: int | jax.Array,
        kv_length: jax.Array | None,
        entropy: bool,
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]: ...


class FusedFunction(Protocol):
    """The same for `andrea_jax.attention.attention_fused`."""

    def __call__(
        self, qkv: jax.Array, n_head: int, *, causal: bool, scale: float, entropy: bool
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]: ...


def split(qkv: jax.Array, n_head: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """q, k and v of [batch, seq, n_head + 2·n_kv_head, head_dim], the heads ordered q | k | v: copies."""
    q, k, v = jnp.split(qkv, [n_head, (qkv.shape[2] + n_head) // 2], axis=2)
    return q, k, v


def parts(arrays: tuple, fused: bool) -> tuple[jax.Array, jax.Array, jax.Array, tuple]:
    """The arrays that hold q, k and v, one three times where they are fused, and what comes after them."""
    if fused:
        return arrays[0], arrays[0], arrays[0], arrays[1:]
    return *arrays[:3], arrays[3:]


@dataclass(frozen=True)
class Backend:
    """One way to compute attention."""

    name: str
    attend: AttentionFunction
    why_not: Callable[[Call], str | None]  # the reason it cannot run a call, as in "it ..."; None where it can
    # the name of a backend that was measured to be faster on such a call; "auto" takes that one where it can run too
    faster: Callable[[Call], str | None] = lambda call: None
    attend_fused: FusedFunction | None = None  # reads q, k and v in place where they lie side by side; None: cannot


def choose(name: str, call: Call, backends: Sequence[Backend], preference: Sequence[str]) -> Backend:
    """The backend called `name`, or for "auto" the first of `preference` that can run `call`, fast.

    The choice of "auto" and its reason are logged at INFO by the logger "andrea_jax", once for each different one.
    Raises UserError where `name` is none of them or cannot run the call.
    """
    by_name = {backend.name: backend for backend in backends}
    if name == "auto":
        return _automatic(call, [by_name[choice] for choice in preference])
    if name not in by_name:
        names = ["auto", *by_name]
        listed = ", ".join(f'"{choice}"' for choice in names)
        raise UserError(f'attention backend must be one of {listed}, not "{name}"{did_you_mean(name, names)}')
    reason = by_name[name].why_not(call)
    if reason is not None:
        raise UserError(f'attention backend "{name}" cannot run here: it {reason} (jax {jax.__version__})')
    return by_name[name]


def _automatic(call: Call, preference: Sequence[Backend]) -> Backend:
    reasons = {backend.name: backend.why_not(call) for backend in preference}
    for backend in preference:
        faster = backend.faster(call)
        if reasons[backend.name] is None and faster is not None and reasons[faster] is None:
            reasons[backend.name] = f'was measured to be slower than "{faster}" on such a call'
    passed_over: dict[str, list[str]] = {}  # reason -> names, in the order of preference
    for backend in preference:
        reason = reasons[backend.name]
        if reason is None:
            devices.say_once(
                f'attention on {call.device}: backend "{backend.name}" ({_in_words(passed_over) or _FASTEST})'
            )
            return backend
        passed_over.setdefault(reason, []).append(f'"{backend.name}"')
    raise UserError(f"no attention backend can run here: {_in_words(passed_over)}")


def _in_words(passed_over: dict[str, list[str]]) -> str:
    each = ((", ".join(names) + (" each" if len(names) > 1 else ""), reason) for reason, names in passed_over.items())
    return "; ".join(f"{who} {reason}" for who, reason in each)


_FASTEST = "the fastest that can run"
