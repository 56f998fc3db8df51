"""Runs the Triton kernels on a CPU: Triton's interpreter, in a process of its own, in place of jax-triton.

Triton decides when it is imported whether its kernels are interpreted, so the process that imports it this way does
nothing else. `launch` replaces `andrea_jax.attention.triton._launch`. The interpreter needs no tensors of torch: it
asks an array for its address and dtype, and this file's `Pointer` answers. It has no products of bfloat16; here they
are those of float32, which bfloat16 numbers fit in exactly.
"""

import os
import pickle
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from types import SimpleNamespace

import numpy as np

ROOT = Path(__file__).parents[2]
NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int32": "i32"}
_one_at_a_time = Lock()


class Pointer:
    """What the interpreter asks of a tensor, for a numpy array that it works on in place."""

    def __init__(self, array: np.ndarray):
        self.array, self.dtype = array, NAMES[array.dtype.name]

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def itself(self, *_, **__) -> "Pointer":
        return self

    untyped_storage = cpu = new_empty = set_ = copy_ = size = stride = storage_offset = itself


def launch(kernel, programs, tile, inputs, outputs):
    """`andrea_jax.attention.triton._launch`, interpreted."""
    import jax

    arrays = {name: x for name, x in (inputs | outputs).items() if isinstance(x, jax.Array)}
    constants = {name: x for name, x in inputs.items() if name not in (arrays | outputs)}

    def on_the_host(arrays):
        arrays = {name: np.asarray(x) for name, x in arrays.items()}
        return _ask((kernel, programs, constants | arrays, {name: (x.shape, x.dtype) for name, x in outputs.items()}))

    return jax.pure_callback(on_the_host, tuple(outputs.values()), arrays)


def _ask(request) -> tuple[np.ndarray, ...]:
    with _one_at_a_time:
        worker = _worker()
        pickle.dump(request, worker.stdin)
        worker.stdin.flush()
        answer = pickle.load(worker.stdout)
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return answer


@cache
def _worker() -> subprocess.Popen:
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, __file__], env=environment, **pipes)


def serve() -> None:
    """Answers requests until nobody can ask any more."""
    replies, sys.stdout = sys.stdout.buffer, sys.stderr
    _mend(import_module("triton.runtime.interpreter"))
    while True:
        try:
            kernel, programs, inputs, outputs = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            results = {
                name: inputs[name].copy() if name in inputs else np.full(shape, np.nan, dtype)
                for name, (shape, dtype) in outputs.items()
            }
            arguments = inputs | results
            for name, x in arguments.items():
                if isinstance(x, np.ndarray):
                    arguments[name] = Pointer(x)
            module, _, name = kernel.rpartition(":")
            kernels = import_module(module or "andrea_jax.attention.triton_kernels")
            getattr(kernels, name)[(programs,)](**arguments)
            answer = tuple(results.values())
        except Exception as error:
            answer = f"{kernel}: {error!r}"
        pickle.dump(answer, replies)
        replies.flush()


def _mend(interpreter) -> None:
    product = interpreter.InterpreterBuilder.create_dot

    def widened(x):
        if x.dtype.scalar.name != "bf16":
            return x
        return interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), interpreter.tl.float32)

    interpreter.InterpreterBuilder.create_dot = lambda self, a, b, *rest: product(self, widened(a), widened(b), *rest)
    # the language is patched once for good, not again for every call of every function
    language = interpreter.tl
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": language, "core": language.core}))
    interpreter._patch_lang = lambda _: interpreter._LangPatchScope()
    # Triton 3.6 makes an index of an array of one number in a way that numpy 2.5 refuses
    language.tensor.__index__ = lambda self: self.handle.data.item()


if __name__ == "__main__":
    serve()
