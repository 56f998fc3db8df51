"""A hand-built model whose heads are known: the positive control of every probe.

Two attention-only layers of two heads over one-hot tokens and positions. The stream has three parts: the token, the
position, and the previous token, which head 0.0 writes there.

    0.0  previous token   position q looks for position q − 1, and copies its token
    0.1  uniform          all scores 0: causal-uniform attention
    1.0  induction        token x_q looks for a key whose previous token is x_q
    1.1  fixed offset     position q looks for position q − offset

Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", describe the circuit of 0.0 and 1.0.
"""

import jax
import jax.numpy as jnp
import numpy as np

from andrea_jax.config import Model
from andrea_jax.model import Params

SHARPNESS = 40.0  # score of a wanted key; all others have 0. exp(−40) is far below float32's precision


def planted(vocab_size: int, seq_len: int, offset: int) -> tuple[Model, Params]:
    """(config, params) of the model above, per-head projection, float32; its logits are all 0."""
    head_dim = -(-max(vocab_size + (seq_len + 1) // 2, seq_len) // 8) * 8
    d = 2 * head_dim
    token, previous = np.arange(vocab_size), np.arange(vocab_size) + vocab_size + seq_len
    position = np.arange(seq_len) + vocab_size
    w_e, w_p = np.zeros((vocab_size, d), np.float32), np.zeros((seq_len, d), np.float32)
    w_e[token, token], w_p[np.arange(seq_len), position] = 1, 1

    weights = [{f"W_{name}": np.zeros((2, d, head_dim), np.float32) for name in "QKV"} for _ in range(2)]
    for layer in weights:
        layer["W_O"] = np.zeros((2, head_dim, d), np.float32)
    rms = [np.sqrt(2 / d), np.sqrt(3 / d)]  # of the stream before each layer: two ones, then three
    _seek(weights[0], 0, position[1:], position[:-1], rms[0])
    _seek(weights[1], 0, token, previous, rms[1])
    _seek(weights[1], 1, position[offset:], position[: seq_len - offset], rms[1])
    weights[0]["W_V"][0, token, token] = rms[0]
    weights[0]["W_O"][0, token, previous] = 1

    layers = {str(i): {"attention": {"projection": layer}} for i, layer in enumerate(weights)}
    params = {"W_E": w_e, "W_P": w_p, "W_U": np.zeros((d, vocab_size), np.float32), "layers": layers}
    config = Model(
        vocab_size=vocab_size, seq_len=seq_len, d_model=d, n_layer=2, n_head=2, d_mlp=0, projection="per_head"
    )
    return config, jax.tree.map(jnp.asarray, params)


def _seek(weights: dict[str, np.ndarray], head: int, sought: np.ndarray, found: np.ndarray, rms: float) -> None:
    """A query with component sought[i] scores SHARPNESS on the keys with component found[i], 0 on all others."""
    head_dim = weights["W_Q"].shape[-1]
    i = np.arange(len(sought))
    weights["W_Q"][head, sought, i] = SHARPNESS * rms**2 * np.sqrt(head_dim)
    weights["W_K"][head, found, i] = 1
