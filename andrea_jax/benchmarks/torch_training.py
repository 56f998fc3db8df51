"""The same model trained by torch on the same devices: one, DistributedDataParallel, and fully sharded (FSDP2).

torch.compile, bfloat16 under autocast, fused AdamW, attention by SDPA (on a CPU eager and float32), one process
a device, the same text and as many windows a device. torch is optional; its program is `torch_worker.py`.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import jax
import numpy as np

from andrea_jax import data
from andrea_jax.benchmarks.programs import Row
from andrea_jax.config import Experiment

WAYS = ("one", "ddp", "fsdp")
PROGRAM = Path(__file__).with_name("torch_worker.py")
TIMEOUT = 420.0  # seconds


def rows(
    name: str, e: Experiment, n: int, dataset: data.Dataset, repeats: int, ways: Sequence[str] = WAYS
) -> list[Row]:
    """A row for each way: tokens/s and efficiency against one device. Needs a model of the default kind."""
    row = {"part": "torch", "model": name, "projection": "fused", "steps": repeats, "batch": e.train.batch_size}
    if find_spec("torch") is None:
        return [{**row, "mesh": "torch", "devices": n, "us": None, "reason": "needs torch"}]
    with tempfile.TemporaryDirectory() as folder:
        batches = [data.batch(dataset, e, step) for step in range(8)]
        np.save(Path(folder, "tokens.npy"), np.concatenate(batches))
        m = e.model
        sizes = {"vocab": m.vocab_size, "d": m.d_model, "heads": m.n_head, "layers": m.n_layer, "wide": m.mlp_width}
        spec = {
            **sizes,
            "seq": e.data.seq_len,
            "batch": e.train.batch_size,
            "n": n,
            "repeats": repeats,
            "ways": list(ways),
        }
        Path(folder, "spec.json").write_text(json.dumps({**spec, "cuda": jax.default_backend() == "gpu"}))
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(PROGRAM), folder], capture_output=True, text=True, timeout=TIMEOUT
        )
        found = {way: Path(folder, f"{way}.json") for way in ways}
        seconds = {way: json.loads(file.read_text()) for way, file in found.items() if file.exists()}
    failed = (done.stderr.strip().split("\n") or [""])[-1][:300]
    return [_row({**row, "mesh": f"torch {way}"}, way, n, e, seconds, failed) for way in ways]


def _row(row: Row, way: str, n: int, e: Experiment, seconds: dict[str, list[float]], failed: str) -> Row:
    devices = 1 if way == "one" else n
    row = {**row, "devices": devices, "batch": row["batch"] * devices}
    if way not in seconds:
        return {**row, "us": None, "reason": failed or "ended without a word"}
    step = statistics.median(seconds[way])
    base = statistics.median(seconds["one"]) if "one" in seconds else None
    times = {"us": 1e6 * step, "fastest_us": 1e6 * min(seconds[way]), "slowest_us": 1e6 * max(seconds[way])}
    rate = row["batch"] * e.data.seq_len / step
    return {**row, **times, "tokens_per_s": rate, "efficiency": base / step if base else None, "reason": None}
