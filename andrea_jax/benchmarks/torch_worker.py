"""The program of `torch_training`: trains in one process a device and writes the seconds of each step. No JAX in it.

python torch_worker.py FOLDER     with spec.json and tokens.npy, windows int [window, seq + 1]; writes <way>.json
"""

import itertools
import json
import os
import socket
import sys
import time
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import torch.multiprocessing  # pyright: ignore[reportMissingImports]
from torch import distributed, nn  # pyright: ignore[reportMissingImports]
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # pyright: ignore[reportMissingImports]

WAYS = ("one", "ddp", "fsdp")
WARM = 8  # steps that are not timed: compiling, and what follows it


def _model(spec: dict):
    d, heads = spec["d"], spec["heads"]

    def linear(wide_in: int, wide_out: int) -> nn.Linear:
        return nn.Linear(wide_in, wide_out, bias=False)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = linear(d, 3 * d), linear(d, d)
            self.into, self.back = linear(d, spec["wide"]), linear(spec["wide"], d)

        def forward(self, x):
            batch, seq, _ = x.shape
            parts = self.qkv(F.rms_norm(x, (d,))).chunk(3, dim=-1)
            q, k, v = (part.view(batch, seq, heads, d // heads).transpose(1, 2) for part in parts)
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(z.transpose(1, 2).reshape(batch, seq, d))
            return x + self.back(F.relu(self.into(F.rms_norm(x, (d,)))))

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(spec["vocab"], d), nn.Embedding(spec["seq"], d)
            self.layers = nn.ModuleList(Layer() for _ in range(spec["layers"]))
            self.unembed = linear(d, spec["vocab"])

        def forward(self, windows):
            x = self.words(windows[:, :-1]) + self.places.weight
            for layer in self.layers:
                x = layer(x)
            return self.loss(x, windows[:, 1:])

        def loss(self, x, targets):
            logits = self.unembed(F.rms_norm(x, (d,))).float()
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    torch.manual_seed(0)
    return Decoder()


def _seconds(way: str, spec: dict, rank: int, tokens) -> list[float]:
    """Seconds of each timed step."""
    device = torch.device("cuda", rank) if spec["cuda"] else torch.device("cpu")
    model = _model(spec).to(device)
    step_of = _fully_sharded(model, spec["cuda"]) if way == "fsdp" else model
    if way == "ddp":
        step_of = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank] if spec["cuda"] else None)
    if way != "fsdp" and spec["cuda"]:
        step_of = torch.compile(step_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=spec["cuda"])
    shift = 0 if way == "one" else rank
    parts = [part.to(device) for part in torch.split(tokens, spec["batch"])]
    ends = []
    for i in range(WARM + spec["repeats"]):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=spec["cuda"] and way != "fsdp"):
            loss = step_of(parts[(i * spec["n"] + shift) % len(parts)])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if i >= WARM - 1:
            ends.append(torch.cuda.Event(enable_timing=True) if spec["cuda"] else time.perf_counter())
            if spec["cuda"]:
                ends[-1].record()
    if not spec["cuda"]:
        return [end - start for start, end in itertools.pairwise(ends)]
    torch.cuda.synchronize(device)
    return [start.elapsed_time(end) / 1e3 for start, end in itertools.pairwise(ends)]


def _fully_sharded(model, cuda: bool):
    """As torch's own recipes do it: layer by layer, compiled layer by layer, gathered and multiplied in bfloat16."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if cuda else None)
    for layer in model.layers:
        if cuda:
            layer.compile()
        fully_shard(layer, mp_policy=policy)
    if cuda:
        model.loss = torch.compile(model.loss)
    return fully_shard(model, mp_policy=policy)


def _process(rank: int, folder: str, spec: dict) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=spec["port"])
    torch.set_float32_matmul_precision("high")
    distributed.init_process_group("nccl" if spec["cuda"] else "gloo", rank=rank, world_size=spec["n"])
    if spec["cuda"]:
        torch.cuda.set_device(rank)
    tokens = torch.from_numpy(np.load(Path(folder, "tokens.npy")).astype(np.int64))
    for way in spec["ways"]:
        if way != "one" or rank == 0:
            seconds = _seconds(way, spec, rank, tokens)
            if rank == 0:
                Path(folder, f"{way}.json").write_text(json.dumps(seconds))
        distributed.barrier()
    distributed.destroy_process_group()


def _spawn(folder: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    spec: dict[str, object] = {**json.loads(Path(folder, "spec.json").read_text()), "port": port}
    torch.multiprocessing.spawn(_process, (folder, spec), nprocs=int(str(spec["n"])))


if __name__ == "__main__":
    _spawn(sys.argv[1])
