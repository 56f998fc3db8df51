"""How many parameters a model has, by part."""

import math

import jax

from andrea_jax.config import Model
from andrea_jax.model import abstract

PARTS = {
    "W_E": "embeddings", "W_P": "embeddings", "W_U": "unembedding", "W_in": "MLP", "W_out": "MLP",
    "gain": "norms", "b_norm": "norms",
}  # fmt: skip


def parameters_by_part(config: Model) -> dict[str, int]:
    """Parameters of each part, in the order embeddings, W_Q, W_K, W_V, W_O, MLP, unembedding, biases, norms.

    Counted from the model's own parameter tree, of which only the shapes are made. A fused W_QKV is counted by its
    columns q | k | v. Parts that the config does not have count 0; biases, and norms with their gains and biases, are
    left out where there are none.
    """
    names = ("embeddings", "W_Q", "W_K", "W_V", "W_O", "MLP", "unembedding", "biases", "norms")
    counts: dict[str, int] = dict.fromkeys(names, 0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(abstract(config)):
        name = str(path[-1].key)
        if name == "W_QKV":
            n_head = config.layer_heads[int(path[1].key)]  # layers, its number, ...
            columns = {"W_Q": n_head, "W_K": n_head // config.group, "W_V": n_head // config.group}
            for part, n in columns.items():
                counts[part] += leaf.shape[0] * n * config.head_dim
        else:
            part = PARTS.get(name, "biases" if name.startswith("b_") else name)
            counts[part] += math.prod(leaf.shape)
    return {part: n for part, n in counts.items() if n or part not in ("biases", "norms")}


def attention_share(parts: dict[str, int], n_layer: int) -> str:
    """What attention's W_Q, W_K, W_V and W_O hold, a layer and in all (claim C5), in lines as narrow as the table."""
    attention = sum(parts[name] for name in ("W_Q", "W_K", "W_V", "W_O"))
    share = f"{attention / sum(parts.values()):.1%}"
    return f"attention: {attention // n_layer:,} a layer,\n{attention:,} in all ({share})"
