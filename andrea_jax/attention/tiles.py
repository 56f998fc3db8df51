"""Tile sizes of the attention kernels, by device, dtype and head_dim. Nothing is tuned at run time."""

from typing import NamedTuple


class TritonTile(NamedTuple):
    """How a Triton kernel cuts its work."""

    queries: int
    keys: int
    warps: int
    stages: int  # loads from global memory that are under way or in use at a time
    registers: int | None = None  # the most a thread may have, where fewer let one more block onto a multiprocessor


class TritonTiles(NamedTuple):
    """The tile of each kernel in `triton_kernels.py`."""

    forward: TritonTile
    backward_queries: TritonTile
    backward_keys: TritonTile


def triton_tiles(cuda: tuple[int, int], dtype: str, head_dim: int) -> TritonTiles:
    """The tiles for a compute capability from 8.0 on and a head_dim up to 256."""
    table = _FLOAT32 if dtype == "float32" else _HOPPER if cuda[0] in (9, 10) else _AMPERE
    return next(TritonTiles(*map(TritonTile._make, tiles)) for span, tiles in table.items() if head_dim <= span)


# By the largest head_dim. Every entry compiles without wgmma being serialised, with at most a few registers spilled,
# and fits the shared memory of its devices: tests/attention/test_triton_compiled.py.

# 227 KB of shared memory, and a tensor core that a warpgroup of four warps feeds with 64 rows.
_HOPPER = {
    32: ((128, 64, 8, 3, 128), (128, 64, 8, 3, 128), (64, 128, 8, 2, None)),
    64: ((128, 64, 8, 3, 128), (128, 64, 8, 3, 128), (64, 128, 8, 2, None)),
    128: ((128, 64, 8, 2, None), (128, 64, 8, 2, None), (32, 128, 8, 2, None)),
    256: ((128, 32, 8, 2, None), (64, 64, 8, 2, None), (32, 64, 8, 2, None)),
}

# What fits 99 KB (an RTX 4090), and so the 163 KB of an A100.
_AMPERE = {
    32: ((128, 64, 4, 2, None), (64, 64, 4, 2, None), (64, 128, 8, 2, None)),
    64: ((128, 64, 4, 2, None), (64, 64, 4, 2, None), (32, 128, 8, 2, None)),
    128: ((64, 64, 4, 2, None), (64, 64, 4, 2, None), (64, 64, 8, 2, None)),
    256: ((64, 64, 8, 1, None), (64, 32, 8, 1, None), (32, 32, 8, 1, None)),
}

# Tensor cores would round float32 to 10 bits: these products are sums in ordinary registers, on every device.
_FLOAT32 = {
    64: ((32, 32, 8, 2, None), (32, 32, 8, 2, None), (32, 32, 8, 2, None)),
    128: ((32, 16, 8, 2, None), (32, 32, 8, 2, None), (16, 32, 8, 2, None)),
    256: ((32, 16, 8, 2, None), (16, 16, 8, 2, None), (16, 16, 8, 1, None)),
}
