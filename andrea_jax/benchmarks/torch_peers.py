"""Attention of torch on the same GPU in the same process: SDPA through cuDNN and flash, FlexAttention.

Inputs are [batch, n_head, seq, head_dim], contiguous, as torch's users have them, and require gradients in the forward
pass too, as in training. A timing is of queued calls between two CUDA events. torch is imported only when asked for.
"""

import contextlib
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from andrea_jax.benchmarks.programs import Row
from andrea_jax.benchmarks.shapes import Shape

_ONE = threading.Lock()  # which kernel SDPA takes is a setting of the whole process
KERNELS = {"torch-cudnn": "CUDNN_ATTENTION", "torch-flash": "FLASH_ATTENTION", "torch-flex": ""}


def load() -> ModuleType:
    """torch. Raises ImportError, or RuntimeError where it sees no GPU."""
    import torch  # pyright: ignore[reportMissingImports]

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device")
    return torch


@dataclass
class Queue:
    """Calls of `step`, timed by the device's own clock."""

    torch: ModuleType
    step: Callable[[], object]
    kernel: str  # that SDPA shall take; "" for FlexAttention
    calls: int = 1

    def run(self, times: int) -> float:
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self.torch.cuda.synchronize()
        with _chosen(self.kernel):
            events[0].record()
            for _ in range(times):
                self.step()
            events[1].record()
        self.torch.cuda.synchronize()
        return 1e-3 * events[0].elapsed_time(events[1])

    def chained(self, seconds: float) -> None:
        return None

    def facts(self) -> Row:
        return {}


def make(name: str, shape: Shape, passes: str, dtype: str) -> Queue:
    """One peer on one shape, "forward" or "forward + backward", run once: that is when torch compiles."""
    torch = load()
    with _ONE:
        return _make(torch, name, shape, passes, dtype)


def _make(torch: ModuleType, name: str, shape: Shape, passes: str, dtype: str) -> Queue:
    b, t, h, d = shape
    q, k, v = (
        torch.randn(b, h, t, d, device="cuda", dtype=getattr(torch, dtype), requires_grad=True) for _ in range(3)
    )
    cotangent = torch.randn_like(q)
    sdpa = functools.partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)
    attend = sdpa if KERNELS[name] else _flex(torch, t)

    def both() -> None:
        q.grad = k.grad = v.grad = None
        attend(q, k, v).backward(cotangent)

    queue = Queue(torch, both if passes == "forward + backward" else lambda: attend(q, k, v), KERNELS[name])
    queue.run(1)
    return queue


def _chosen(kernel: str) -> contextlib.AbstractContextManager:
    """Where SDPA takes this kernel or fails."""
    if not kernel:
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel  # pyright: ignore[reportMissingImports]

    return sdpa_kernel(getattr(SDPBackend, kernel))


def _flex(torch: ModuleType, seq: int) -> Callable:
    from torch.nn.attention import flex_attention as flex  # pyright: ignore[reportMissingImports]

    mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, seq, seq, device="cuda")
    return functools.partial(_compiled_flex(torch), block_mask=mask)


@functools.cache
def _compiled_flex(torch: ModuleType) -> Callable:
    """FlexAttention, compiled anew for every shape: the kernel for "any shape" is slower."""
    from torch.nn.attention import flex_attention as flex  # pyright: ignore[reportMissingImports]

    torch._dynamo.config.recompile_limit = 64  # above it torch would quietly stop compiling
    return torch.compile(flex.flex_attention, dynamic=False)
