"""GPT-2 in plain numpy float64, from the tensors of a Hugging Face file: the oracle of `interop/gpt2.py`.

Written from Radford et al. 2019, section 2.3, and the layout of the published files; nothing of the package in it.
"""

import math

import numpy as np


def forward(tensors: dict[str, np.ndarray], n_head: int, ids: np.ndarray, activation: str = "gelu_new") -> np.ndarray:
    """logits [seq, vocab] of one sequence [seq]; names without "transformer."; tied unless there is an lm_head."""
    t = {name: np.asarray(value, np.float64) for name, value in tensors.items()}
    n_layer = len([name for name in t if name.endswith("ln_1.weight")])
    x = t["wte.weight"][ids] + t["wpe.weight"][: len(ids)]
    for layer in range(n_layer):
        part = {name.removeprefix(f"h.{layer}."): value for name, value in t.items() if name.startswith(f"h.{layer}.")}
        x = x + attention(part, n_head, layer_norm(part, "ln_1", x))
        wide = layer_norm(part, "ln_2", x) @ part["mlp.c_fc.weight"] + part["mlp.c_fc.bias"]
        x = x + act(wide, activation) @ part["mlp.c_proj.weight"] + part["mlp.c_proj.bias"]
    return layer_norm(t, "ln_f", x) @ t.get("lm_head.weight", t["wte.weight"]).T


def attention(t: dict[str, np.ndarray], n_head: int, x: np.ndarray) -> np.ndarray:
    d = x.shape[1]
    q, k, v = np.split(x @ t["attn.c_attn.weight"] + t["attn.c_attn.bias"], 3, axis=1)
    heads = []
    for head in range(n_head):
        mine = slice(head * d // n_head, (head + 1) * d // n_head)
        scores = q[:, mine] @ k[:, mine].T / math.sqrt(d // n_head)
        scores[np.triu_indices(len(x), 1)] = -np.inf
        pattern = np.exp(scores - scores.max(axis=1, keepdims=True))
        heads.append(pattern / pattern.sum(axis=1, keepdims=True) @ v[:, mine])
    return np.concatenate(heads, axis=1) @ t["attn.c_proj.weight"] + t["attn.c_proj.bias"]


def layer_norm(t: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    x = x - x.mean(axis=1, keepdims=True)
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * t[f"{name}.weight"] + t[f"{name}.bias"]


def act(x: np.ndarray, name: str) -> np.ndarray:
    return (
        np.maximum(x, 0) if name == "relu" else 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    )
