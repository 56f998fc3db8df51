"""Things that can be run and timed: a compiled call, queued, and a chain of calls in one compiled program.

Calls are queued: the next is handed to the device before the last is done, so that the device never waits for the host.
Where a call is so short that it would, many calls are chained in one program, and one number of each result is written
into arguments of the next call: so the compiler can neither leave a call out, nor run two at once, nor move work out of
the loop. That costs two or more of the smallest kernels a call; `timing.limits` measures them.
"""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.stages import Compiled

from andrea_jax.benchmarks.memory import refuse_large
from andrea_jax.compiled import launches, matmuls

HOST = 0.6  # of a call's time: where handing it over takes the host more, calls are chained,
LONG = 1e-3  # seconds, if they are shorter than this

type Row = dict  # what a benchmark says of one thing, as it stands in the JSON
type Call = Callable[..., object]  # arrays in, a tree of arrays out


class Timed(Protocol):
    """Something that can be run and timed."""

    calls: int  # in one run

    def run(self, times: int) -> float:
        """Seconds that `times` runs take, handed over one after the other."""
        ...

    def chained(self, seconds: float) -> "Timed | None":
        """Calls in one run, that takes about so many seconds; None where the last run did not wait for the host."""
        ...

    def facts(self) -> Row:
        """What is known of it besides its time."""
        ...


@dataclass
class JaxCall:
    """`call(*draw())`, compiled when made; raises what compiling raises, `TooLarge` for what may not fit.

    draw: makes the arguments, arrays; they lie on the device only from the first run on.
    linked: which arguments a chain writes into. Everything that the call does must depend on one of them.
    options: of the compiler (XLA flags without their dashes).
    """

    call: Call
    draw: Callable[[], tuple[Array, ...]]
    linked: tuple[int, ...] = (0,)
    options: dict[str, bool | int | str] = field(default_factory=dict)
    calls: int = field(default=1, init=False)
    _a_call: float = field(default=0.0, init=False)  # seconds, in the last run
    _handed: float = field(default=0.0, init=False)  # seconds of it until the last call was handed over

    def __post_init__(self):
        lowered = jax.jit(self.call).lower(*jax.eval_shape(self.draw))
        self.compiled: Compiled = lowered.compile(compiler_options=self.options)
        refuse_large(self.compiled)

    @functools.cached_property
    def arguments(self) -> tuple[Array, ...]:
        return jax.block_until_ready(self.draw())

    def run(self, times: int) -> float:
        arguments, result, start = self.arguments, None, time.perf_counter()
        for _ in range(times):
            result = self.compiled(*arguments)
        handed = time.perf_counter() - start
        jax.block_until_ready(result)
        seconds = time.perf_counter() - start
        self._a_call, self._handed = seconds / times, handed / times
        return seconds

    def chained(self, seconds: float) -> "Chain | None":
        if self._handed < HOST * self._a_call or self._a_call > LONG:
            return None
        return Chain(self.call, self.arguments, self.linked, math.ceil(seconds / self._a_call), self.options)

    def facts(self) -> Row:
        """Launches and matrix products of one call, and what it needs besides arguments and results."""
        text, memory = self.compiled.as_text(), self.compiled.memory_analysis()
        assert text is not None and memory is not None  # CPU, CUDA and ROCm have both
        return {"launches": launches(text), "matmuls": matmuls(text), "temp_mib": memory.temp_size_in_bytes / 2**20}


class Chain:
    """`calls` calls in one compiled program, each waiting for the last."""

    def __init__(self, call: Call, arguments: tuple[Array, ...], linked: tuple[int, ...], calls: int, options: dict):
        self.calls = calls
        self._state = [jnp.copy(arguments[i]) for i in linked], _zeros(jax.eval_shape(call, *arguments))
        self._fixed = {i: argument for i, argument in enumerate(arguments) if i not in linked}
        program = jax.jit(functools.partial(_chain, jax.jit(call), linked, calls), donate_argnums=0)
        self.compiled: Compiled = program.lower(self._state, self._fixed).compile(compiler_options=options)

    def run(self, times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            self._state = self.compiled(self._state, self._fixed)
        jax.block_until_ready(self._state)
        return time.perf_counter() - start

    def chained(self, seconds: float) -> None:
        return None

    def facts(self) -> Row:
        return {}


def _chain(call: Call, linked: tuple[int, ...], calls: int, state, fixed: dict[int, Array]):
    """State: the linked arguments and the last result. Both are carried whole, or the compiler would leave out what
    the next call does not read; and a result is never read by the call after, or it would have to be copied first."""

    def once(_, state):
        some, _ = state
        arguments = fixed | dict(zip(linked, some, strict=True))
        result = call(*(arguments[i] for i in range(len(arguments))))
        number = jax.tree.leaves(result)[0].ravel()[0]
        return [_written(x, number) for x in some], result

    return lax.fori_loop(0, calls, once, state)


def _written(x: Array, number: Array) -> Array:
    """x with `number` in the place of its first."""
    return lax.dynamic_update_slice(x, number.astype(x.dtype).reshape((1,) * x.ndim), (0,) * x.ndim)


def _zeros(shapes):
    return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
