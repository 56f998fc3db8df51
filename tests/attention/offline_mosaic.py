"""Lowers Mosaic kernels for an H200, and compiles them to its machine code, on a machine without a GPU.

Compiling takes the packages jax-cuda13-plugin and jax-cuda13-pjrt of JAX's own version, nvidia-cuda-nvcc, and a C
compiler. The plugin asks the driver which GPU there is: a stand-in for its library answers "one of capability 9.0".
"""

import os
import subprocess
import sys
from pathlib import Path

import jax
from jax._src.lib.mlir import ir
from jax.sharding import AbstractDevice, AbstractMesh

DRIVER = """
#include <stdint.h>
int cuInit(unsigned f) { return 0; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDeviceGet(int *d, int i) { *d = 0; return 0; }
int cuDeviceGetCount(int *c) { *c = 1; return 0; }
int cuCtxGetDevice(int *d) { *d = 0; return 0; }
int cuCtxGetCurrent(void **c) { *c = (void *)1; return 0; }
int cuDeviceGetAttribute(int *v, int attribute, int d) { *v = attribute == 75 ? 9 : attribute == 76 ? 0 : 1; return 0; }
int cuModuleLoadData(void **m, const void *code) { *m = (void *)1; return 0; }
int cuModuleGetFunction(void **f, void *m, const char *name) { *f = (void *)1; return 0; }
int cuFuncSetAttribute(void *f, int attribute, int value) { return 0; }
int cuGetErrorString(int e, const char **s) { *s = "a stand-in has no errors"; return 0; }
int cuGetErrorName(int e, const char **s) { *s = "none"; return 0; }
"""
COMPILE = """
import ctypes, os, sys
plugin, module = sys.argv[1:]
library = ctypes.CDLL(plugin)
library.MosaicGpuCompile.argtypes = [ctypes.c_char_p, ctypes.c_int]
code = open(module, "rb").read()
library.MosaicGpuCompile.restype = ctypes.c_void_p
library.MosaicGpuCompile(code, len(code))  # fails to link the launcher afterwards; by then the code is dumped
os._exit(0)
"""


def lowered(function, *shapes):
    device = AbstractDevice("NVIDIA H200", num_cores=None, platform="cuda")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=device)):
        return jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",))


def modules(program) -> list[bytes]:
    """The Mosaic modules of a lowered program, one a launch."""
    found = []

    def visit(operation) -> ir.WalkResult:
        if operation.name == "stablehlo.custom_call" and "mhlo.backend_config" in operation.attributes:
            config = ir.DictAttr(operation.attributes["mhlo.backend_config"])
            found.append(ir.StringAttr(config["module"]).value_bytes)
        return ir.WalkResult.ADVANCE

    program.compiler_ir("stablehlo").operation.walk(visit)
    return found


def compiled(function, *shapes, folder: Path) -> list[str]:
    """What ptxas reports of each launch: registers, spills, warnings."""
    import jax_plugins.xla_cuda13 as plugin
    import nvidia

    (folder / "driver.c").write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "driver.c"], check=True)
    cuda = next(path for root in nvidia.__path__ for path in Path(root).glob("cu13") if (path / "bin/ptxas").exists())
    reports = []
    for i, module in enumerate(modules(lowered(function, *shapes))):
        here = folder / str(i)
        here.mkdir()
        (here / "module").write_bytes(module)
        surroundings = os.environ | {
            "LD_LIBRARY_PATH": str(folder), "CUDA_ROOT": str(cuda), "MOSAIC_GPU_CUDA_ROOT": str(cuda),
            "PATH": f"{cuda / 'bin'}{os.pathsep}{os.environ['PATH']}", "MOSAIC_GPU_DUMP_TO": str(here),
        }  # fmt: skip
        library = str(Path(plugin.__file__).parent / "xla_cuda_plugin.so")
        subprocess.run([sys.executable, "-c", COMPILE, library, here / "module"], env=surroundings, check=True)
        reports.append(next(here.glob("*.ptxas")).read_text())
    return reports
