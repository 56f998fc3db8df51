"""The Triton kernels compiled for GPUs that need not be here: shared memory, registers, and what ptxas warns of."""

import os
import re
import subprocess
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import pytest

from andrea_jax import devices
from andrea_jax.attention import attention, attention_fused, triton

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

SHARED_MEMORY = {(8, 0): 163 * 1024, (8, 9): 99 * 1024, (9, 0): 227 * 1024}  # the most that one block may have
TYPES = {"bfloat16": "*bf16", "float16": "*fp16", "float32": "*fp32", "int32": "*i32"}


def launches(monkeypatch, cuda, dtype, head_dim, length, fused=False, **options):
    """What the backend launches for one call and its gradients: kernel -> (tile, arguments by name)."""
    recorded = {}

    def record(kernel, programs, tile, inputs, outputs):
        recorded[kernel] = tile, inputs | outputs
        return tuple(jnp.zeros(x.shape, x.dtype) for x in outputs.values())

    monkeypatch.setattr(devices, "compute_capability", lambda device: cuda)
    monkeypatch.setattr(triton, "find_spec", lambda name: name)
    monkeypatch.setattr(triton, "_launch", record)
    q, qkv = (jax.ShapeDtypeStruct((4, length, heads, head_dim), dtype) for heads in (12, 36))
    attend = partial(attention_fused, n_head=12) if fused else attention
    arrays = (qkv,) if fused else (q, q, q)

    def total(*arrays):
        return sum(y.astype(jnp.float32).sum() for y in attend(*arrays, backend="triton", **options))

    jax.eval_shape(jax.grad(total, range(len(arrays))), *arrays)
    return recorded


def compiled(kernel, tile, arguments, cuda):
    """(PTX, bytes of shared memory)."""
    api, compiler = import_module("triton"), import_module("triton.compiler")
    function = getattr(import_module("andrea_jax.attention.triton_kernels"), kernel)
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(function.params):
        x = arguments[parameter.name]
        if x is None or parameter.is_constexpr:
            signature[parameter.name], constants[(i,)] = "constexpr", x
        elif isinstance(x, int):
            signature[parameter.name] = "i32"
        else:
            signature[parameter.name], attributes[(i,)] = TYPES[x.dtype.name], [["tt.divisibility", 16]]
    source = compiler.ASTSource(function, signature, constants, attributes)
    target = import_module("triton.backends.compiler").GPUTarget("cuda", 10 * cuda[0] + cuda[1], 32)
    options = {"num_warps": tile.warps, "num_stages": tile.stages, "maxnreg": tile.registers}
    options["enable_fp_fusion"] = True
    result = api.compile(source, target=target, options=options)
    return result.asm["ptx"], result.metadata.shared


def assembler_notes(ptx, cuda, folder) -> str:
    (folder / "kernel.ptx").write_text(ptx)
    ptxas = import_module("triton.backends.nvidia.compiler").get_ptxas(10 * cuda[0] + cuda[1]).path
    architecture = "sm_90a" if cuda == (9, 0) else f"sm_{cuda[0]}{cuda[1]}"
    command = [ptxas, "-v", f"-arch={architecture}", folder / "kernel.ptx", "-o", folder / "kernel.cubin"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


# a quarter of a minute each
WHOLE = pytest.mark.skipif(
    "ANDREA_WHOLE_CONTRACT" not in os.environ, reason="ANDREA_WHOLE_CONTRACT=1 compiles these too"
)
TRAINING = {"length": 1024, "fused": True}
EVERYTHING = {"length": 1000, "entropy": True, "q_offset": jnp.int32(3), "kv_length": jnp.zeros(4, jnp.int32)}


@pytest.mark.parametrize(
    "cuda, dtype, head_dim, options, most_spilled",
    [
        pytest.param((9, 0), "bfloat16", 64, TRAINING, 32, id="H200"),
        pytest.param((9, 0), "float16", 72, EVERYTHING, 32, id="H200, padded", marks=WHOLE),
        pytest.param((9, 0), "bfloat16", 256, EVERYTHING, 512, id="H200, wide", marks=WHOLE),
        pytest.param((8, 9), "bfloat16", 64, TRAINING, 32, id="RTX 4090", marks=pytest.mark.slow),
        pytest.param((8, 9), "bfloat16", 256, EVERYTHING, 32, id="RTX 4090, wide", marks=WHOLE),
        pytest.param((8, 9), "float32", 256, TRAINING, 64, id="RTX 4090, float32, wide", marks=WHOLE),
    ],
)
def test_kernels_fit_the_device_and_nothing_is_serialised(
    cuda, dtype, head_dim, options, most_spilled, monkeypatch, tmp_path
):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    recorded = launches(monkeypatch, cuda, dtype, head_dim, **options)
    assert list(recorded) == ["forward", "backward_queries", "backward_keys"]
    for kernel, (tile, arguments) in recorded.items():
        ptx, shared_memory = compiled(kernel, tile, arguments, cuda)
        assert shared_memory <= SHARED_MEMORY[cuda], kernel
        assert ("wgmma" in ptx) == (cuda == (9, 0) and dtype != "float32"), kernel
        notes = assembler_notes(ptx, cuda, tmp_path)
        assert "Potential Performance Loss" not in notes, f"{kernel}: {notes}"
        spilled, registers = (
            int(re.search(x, notes)[1]) for x in (r"(\d+) bytes spill stores", r"Used (\d+) registers")
        )
        assert spilled <= most_spilled and registers <= (tile.registers or 255), f"{kernel}: {notes}"
