"""What freed memory costs when it is wanted again."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource
from andrea_jax.allocation import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    piece = libc.malloc(80 * 2**20)
    ctypes.memset(piece, 1, 80 * 2**20)
    libc.free(piece)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

each_time = [faults() for _ in range(3)]
keep_freed_memory()
kept = [faults() for _ in range(3)]
print(min(each_time), max(kept[1:]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_a_large_piece_costs_page_faults_each_time_and_once_it_is_kept_none():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    each_time, kept = map(int, done.stdout.split())
    assert each_time >= 40  # 20,480 pages of 4 KiB, or 40 huge ones
    assert kept == 0
