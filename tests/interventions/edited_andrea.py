"""The ANDREA forward pass in numpy, float64, with every head's pattern and z in the open for a test to edit.

And the model and the task that the tests of interventions share, so that they share compiled programs too.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from andrea_jax import model
from andrea_jax.config import Model
from andrea_jax.conversion import convert
from andrea_jax.interventions import Task, every_head
from andrea_jax.interventions.damage import masks


class Inner(NamedTuple):
    """Of one layer: v of each head [head, seq, head_dim] (its key-value head's), pattern [head, seq, seq], z as v."""

    v: np.ndarray
    pattern: np.ndarray
    z: np.ndarray


Edit = Callable[[int, Inner], Inner]  # (layer, what would be) -> what is


def forward(m: Model, params: dict, tokens: np.ndarray, edit: Edit = lambda _, inner: inner) -> tuple:
    """(logits [seq, vocab], the Inner of each layer) of one sequence [seq]; either projection. For models with RMS
    norms without weights, ReLU, biases, rotary positions, and an unembedding of their own.

    z is pattern · v of the edited pattern and v, unless the edit changes z itself.
    """
    _, params = convert(m, params, "per_head")
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    x, inners = params["W_E"][tokens], []
    for i in range(m.n_layer):
        layer = params["layers"][str(i)]
        inner = edit(i, _inner(m, layer["attention"]["projection"], _norm(x)))
        inners.append(inner)
        x = x + sum(z @ w for z, w in zip(inner.z, layer["attention"]["projection"]["W_O"], strict=True))
        x = x + layer["attention"]["projection"]["b_O"]
        if m.mlp_width:
            mlp = layer["mlp"]
            x = x + np.maximum(_norm(x) @ mlp["W_in"] + mlp["b_in"], 0) @ mlp["W_out"] + mlp["b_out"]
    return _norm(x) @ params["W_U"], inners


def _inner(m: Model, w: dict, x: np.ndarray) -> Inner:
    v, pattern = [], []
    for head in range(len(w["W_Q"])):
        places = {"Q": head, "K": head // m.group, "V": head // m.group}
        q, k, own = (x @ w[f"W_{name}"][i] + w[f"b_{name}"][i] for name, i in places.items())
        q, k = _rotate(q, m.rotary_base), _rotate(k, m.rotary_base)
        scores = np.where(np.tri(len(x), dtype=bool), q @ k.T / np.sqrt(m.head_dim), -np.inf)
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        v.append(own)
        pattern.append(e / e.sum(axis=1, keepdims=True))
    return with_pattern(np.stack(v), np.stack(pattern))


def _norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5)


def _rotate(x: np.ndarray, base: float) -> np.ndarray:
    half = x.shape[1] // 2
    turn = np.exp(1j * np.arange(len(x))[:, None] * base ** (-np.arange(half) / half))
    turned = (x[:, :half] + 1j * x[:, half:]) * turn
    return np.concatenate([turned.real, turned.imag], axis=1)


def with_pattern(v: np.ndarray, pattern: np.ndarray) -> Inner:
    return Inner(v, pattern, pattern @ v)


def losses(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """−log p(target) [seq]."""
    top = logits.max(axis=1, keepdims=True)
    return (np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]) - logits[np.arange(len(targets)), targets]


def random_params(config: Model, scale: float = 0.3) -> dict:
    """Normal numbers everywhere, biases too; large enough that patterns are far from even."""
    rng = np.random.default_rng(7)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0, scale, x.shape), jnp.float32), model.abstract(config))


CONFIG = Model(vocab_size=19, seq_len=23, d_model=48, n_layer=2, n_head=6, n_kv_head=3, d_mlp=40, positions="rotary",
               biases=True)  # fmt: skip
PARAMS = random_params(CONFIG)
_RNG = np.random.default_rng(0)
TOKENS = np.pad(_RNG.integers(1, 19, (5, 13)), ((0, 0), (1, 0))).astype(np.int32)
TASK = Task(TOKENS, {"loss": np.ones((5, 13), bool), "some": (_RNG.random((5, 13)) < 0.4) | (np.arange(13) == 4)})
HEADS = every_head(CONFIG)
EACH = masks(CONFIG, [[head] for head in HEADS])
