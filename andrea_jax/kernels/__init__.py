"""Kernels for a GPU beside attention's: what XLA computes in several passes over memory, in one.

Each function here is a formula (`formulas`), with a kernel where the device has one and the arrays fit it; that a
kernel computes is said once. A kernel's file is loaded where it is used; it has `fits(*arrays)` and
`launch(*arrays, **settings)`. What they save is in docs/log.md.
"""

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from andrea_jax import devices
from andrea_jax.kernels import cut, formulas


class _Kernel(NamedTuple):
    formula: Callable
    file: str
    capability: tuple[int, int]  # the first that can
    last: tuple[int, int]
    rule: str  # its arrays by their axes
    whole: str  # the axis along which they cannot be cut

    def module(self, arrays: tuple[Array, ...]) -> ModuleType | None:
        """The kernel, where it can compute these arrays on the device that does."""
        mesh, found = devices.mesh(), devices.compute_capability(devices.of(arrays[0]))
        if mesh is not None and self.whole == "word" and mesh.shape[devices.HEADS] > 1:
            return None  # the vocabulary may be cut, and the formula needs a row's sums only
        if found is None or not self.capability <= found <= self.last:
            return None
        try:
            module = importlib.import_module(f"andrea_jax.kernels.{self.file}")
        except ImportError as error:  # Pallas on Triton is announced to leave JAX
            devices.say_once(f"{self.file}: not with jax {jax.__version__} ({error})")
            return None
        return module if arrays[0].ndim == 3 and module.fits(*arrays) else None

    def compute(self, *arrays: Array, **settings):
        formula = functools.partial(self.formula, **settings)
        module = self.module(arrays)
        if module is None:
            return formula(*arrays)
        devices.say_once(f"{self.file} computes on {devices.of(arrays[0]).device_kind}")

        def launch(*local: Array):  # on one device's part of the arrays
            return module.launch(*local, **settings) if module.fits(*local) else formula(*local)

        return cut.along(self.rule, self.whole, launch, formula, arrays)(*arrays)


_ANY = (99, 0)
_NORM = _Kernel(formulas.norm, "norm_kernel", (8, 0), _ANY, "batch seq d -> batch seq d, batch seq", "d")
_BACK_RULE = "batch seq d, batch seq, batch seq d, batch seq d -> batch seq d"
_BACK = _Kernel(formulas.norm_derivative, "norm_derivative_kernel", (8, 0), _ANY, _BACK_RULE, "d")
_LOSS = _Kernel(
    formulas.cross_entropy,
    "loss_kernel",
    (8, 0),
    _ANY,
    "batch seq word, batch seq -> batch seq, batch seq word",
    "word",
)
_GATED = _Kernel(
    formulas.gated_product, "gated_kernel", (9, 0), (9, 0), "batch seq k, n k, batch seq n -> batch seq n", "k"
)


def norm(x: Array) -> tuple[Array, Array]:
    """(x·r, r) with r = 1 / rms(x), float32 [batch, seq]; x [batch, seq, d_model], and x·r in its dtype."""
    return _NORM.compute(x)


def norm_derivative(y: Array, r: Array, g: Array, past: Array) -> Array:
    """Derivative by x of what reads both y, where it is g, and x itself, where it is `past`; (y, r) = norm(x).

    past + r·(g − y·mean(y·g)): y, g, past [batch, seq, d_model] of one dtype -> the same.
    """
    return _BACK.compute(y, r, g, past)


def cross_entropy(logits: Array, targets: Array, vocab: int, dtype: DTypeLike) -> tuple[Array, Array]:
    """logits float32 [batch, seq, word], those from `vocab` on no words; targets int [batch, seq]
    -> logsumexp(logits) − logits[target], float32 [batch, seq], nats; and its derivative by the logits,
    softmax(logits) − onehot(target), of their shape in `dtype`."""
    return _LOSS.compute(logits, targets, vocab=vocab, dtype=jnp.dtype(dtype))


def gated_product(g: Array, w: Array, gate: Array) -> Array:
    """(g · wᵀ) where gate ≠ 0, else 0: g [batch, seq, k], w [n, k], gate [batch, seq, n] -> [batch, seq, n]."""
    return _GATED.compute(g, w, gate)
