"""TransformerLens (package transformer-lens, below 4) as a peer: head scores from cached whole patterns.

It runs in a process of its own, so that what it adds to that process can be measured: `grown_mib` is the largest
resident size during the first call less the size before it. The package and torch are optional.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from andrea_jax.config import Model
from andrea_jax.conversion import convert
from andrea_jax.heads.targets import Targets
from andrea_jax.model import Params

SCORES = ("previous_token", "duplicate_token", "induction")


class Failed(Exception):
    """TransformerLens did not run; says why."""


def absent() -> str | None:
    """Why TransformerLens cannot be a peer here, or None."""
    missing = [name for name in ("torch", "transformer_lens") if find_spec(name) is None]
    return f"needs {' and '.join(missing)}" if missing else None


def measure(config: Model, params: Params, tokens: np.ndarray, asked: Mapping[str, Targets], repeats: int) -> dict:
    """{"scores": name -> [n_layer, n_head], "seconds": [repeat], "grown_mib"} of TransformerLens on a CPU, float32."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.npz")
        masks = {f"mask {name}": _mask(tokens, found) for name, found in asked.items()}
        arrays: dict = {**_state(config, params), "tokens": tokens, **masks}
        np.savez(file, **arrays)
        settings = json.dumps({**_settings(config), "repeats": repeats})
        command = [sys.executable, "-W", "ignore", "-m", __name__, str(file), settings]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed((done.stderr.strip().split("\n") or ["it ended without a word"])[-1][:300])
    found = json.loads(done.stdout.strip().split("\n")[-1])
    return {**found, "scores": {name: np.array(value) for name, value in found["scores"].items()}}


def _mask(tokens: np.ndarray, found: Targets) -> np.ndarray:
    """bool [sequence, query, key]."""
    mask = np.zeros((*tokens.shape, tokens.shape[1]), bool)
    mask[found.sequence, found.query, found.key] = True
    return mask


def _settings(m: Model) -> dict:
    """HookedTransformerConfig of the model."""
    return {
        "n_layers": m.n_layer, "n_heads": m.n_head, "d_model": m.d_model, "d_head": m.head_dim, "d_mlp": m.mlp_width,
        "n_ctx": m.seq_len, "d_vocab": m.vocab_size, "act_fn": "relu", "normalization_type": "RMSPre", "eps": 1e-5,
        "positional_embedding_type": "rotary", "rotary_dim": m.head_dim, "rotary_base": int(m.rotary_base),
        "default_prepend_bos": False, "device": "cpu",
    }  # fmt: skip


def _state(config: Model, params: Params) -> dict[str, np.ndarray]:
    """The parameters under TransformerLens's names."""
    _, params = convert(config, params, "per_head")
    state = {"embed.W_E": params["W_E"], "unembed.W_U": params["W_U"]}
    for i, layer in params["layers"].items():
        parts = {"attn": layer["attention"]["projection"], "mlp": layer["mlp"]}
        state |= {f"blocks.{i}.{part}.{name}": x for part, of in parts.items() for name, x in of.items()}
    return {name: np.asarray(x) for name, x in state.items()}


def _run(file: str, settings: dict) -> dict:
    """In the process of its own."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformer_lens import HookedTransformer, HookedTransformerConfig  # pyright: ignore[reportMissingImports]

    repeats = settings.pop("repeats")
    arrays = {name: torch.from_numpy(x) for name, x in np.load(file).items()}
    tokens = arrays.pop("tokens").long()
    masks = {name: arrays.pop(f"mask {name}") for name in SCORES}
    peer = HookedTransformer(HookedTransformerConfig(**settings))
    peer.load_state_dict(arrays, strict=False)
    seconds, scores, before, most = [], {}, _resident("VmRSS"), 0.0
    Path("/proc/self/clear_refs").write_text("5")  # the largest size counts from here
    for i in range(1 + repeats):
        start = time.perf_counter()
        with torch.no_grad():
            _, cache = peer.run_with_cache(tokens, names_filter=lambda name: name.endswith("hook_pattern"))
            scores = {name: _score(cache, mask, settings["n_layers"]) for name, mask in masks.items()}
        seconds += [time.perf_counter() - start] if i else []
        most = most or _resident("VmHWM")
    return {"scores": scores, "seconds": seconds, "grown_mib": most - before}


def _score(cache, mask, n_layers: int) -> list:
    """Mean mass on the mask over the queries that have a target: [n_layer, n_head]."""
    n = mask.any(-1).sum()
    layers = (cache[f"blocks.{i}.attn.hook_pattern"] for i in range(n_layers))
    return [((pattern * mask[:, None]).sum((0, 2, 3)) / n).tolist() for pattern in layers]


def _resident(what: str) -> float:
    """MiB of this process, from Linux."""
    lines = Path("/proc/self/status").read_text().split("\n")
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], json.loads(sys.argv[2]))))
