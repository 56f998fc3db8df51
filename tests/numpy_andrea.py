"""The ANDREA forward pass in plain numpy, float64, one sequence and one head at a time: the oracle of `model.py`."""

import math

import numpy as np

from andrea_jax.config import Model


def forward(m: Model, params: dict, tokens: np.ndarray) -> np.ndarray:
    """logits [seq, vocab] of one sequence [seq]; params with per-head weights."""
    x = _wide(params["W_E"])[tokens]
    if m.positions == "learned":
        x = x + _wide(params["W_P"])[: len(tokens)]
    for i in range(m.n_layer):
        layer = params["layers"][str(i)]
        x = x + _attention(m, layer["attention"]["projection"], _norm(m, layer, "norm_attention", x))
        if m.mlp_width:
            x = x + _mlp(m, layer["mlp"], _norm(m, layer, "norm_mlp", x))
    return _norm(m, params, "norm_final", x) @ (_wide(params["W_E"]).T if m.tied_embeddings else _wide(params["W_U"]))


def _attention(m: Model, w: dict, x: np.ndarray) -> np.ndarray:
    heads = []
    for head in range(len(w["W_Q"])):  # a pruned layer has fewer than m.n_head
        kv_head = head * m.kv_heads // m.n_head
        q, k, v = (
            x @ _wide(w[f"W_{name}"])[i] + (_wide(w[f"b_{name}"])[i] if m.biases else 0.0)
            for name, i in (("Q", head), ("K", kv_head), ("V", kv_head))
        )
        if m.positions == "rotary":
            q, k = _rotate(q, m.rotary_base), _rotate(k, m.rotary_base)
        z = np.zeros_like(v)
        for t in range(len(x)):
            scores = k[: t + 1] @ q[t] / math.sqrt(m.head_dim)
            pattern = np.exp(scores - scores.max())
            z[t] = pattern / pattern.sum() @ v[: t + 1]
        heads.append(z if m.w_o == "identity" else z @ _wide(w["W_O"])[head])
    y = sum(heads) if m.w_o == "free" else np.concatenate(heads, axis=1)
    return y + _wide(w["b_O"]) if m.biases else y


def _mlp(m: Model, w: dict, x: np.ndarray) -> np.ndarray:
    wide = x @ _wide(w["W_in"]) + (_wide(w["b_in"]) if m.biases else 0.0)
    if m.activation == "relu":
        wide = np.maximum(wide, 0.0)
    else:  # the tanh form of Hendrycks & Gimpel 2016
        wide = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    return wide @ _wide(w["W_out"]) + (_wide(w["b_out"]) if m.biases else 0.0)


def _norm(m: Model, holder: dict, name: str, x: np.ndarray) -> np.ndarray:
    if m.norm == "layer":
        x = x - x.mean(axis=1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5)
    if not m.norm_weights:
        return x
    weights = holder[name]
    return x * _wide(weights["gain"]) + (_wide(weights["b_norm"]) if m.norm == "layer" else 0.0)


def _rotate(x: np.ndarray, base: float) -> np.ndarray:
    """Component j and j + half are the real and imaginary part of a number turned by position·base^(−j/half)."""
    half = x.shape[1] // 2
    turn = np.exp(1j * np.arange(len(x))[:, None] * base ** (-np.arange(half) / half))
    turned = (x[:, :half] + 1j * x[:, half:]) * turn
    return np.concatenate([turned.real, turned.imag], axis=1)


def _wide(x: object) -> np.ndarray:
    return np.asarray(x, np.float64)
