"""What the weights alone say of heads, each number with its null: copying, and composition of two heads.

Weight-only measures ignore rotary positions, the scale of norms and the biases (`factors.py`); they say what a head
could do, not what it does on a text.
"""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pandas as pd
from scipy import special

from andrea_jax.circuits.factors import Factored, HeadWeights, by_head, through_norm, triangle, unembedding
from andrea_jax.config import Model
from andrea_jax.model import Params, abstract

ALPHA = 0.05  # chance that any of a family's nulls passes its threshold
DRAWS = 256  # random heads, or pairs of heads, of a null (pairs: at least)
KINDS = ("Q", "K", "V")  # of composition: which input of the later head reads what the earlier one wrote


def family_threshold(n: int, sides: int) -> float:
    """|z| that the largest of n independent standard normal numbers passes with probability ALPHA (Šidák 1967).

    sides: 1 where only large z count, 2 where small ones do as well.
    """
    each = 1 - (1 - ALPHA) ** (1 / max(n, 1))
    return float(-special.ndtri(each / sides))


def copying(config: Model, params: Params, seed: int = 0) -> pd.DataFrame:
    """Whether attending to a token makes a head raise that token's own logit: Σλ / Σ|λ| over the eigenvalues λ of the
    full OV circuit W_E·W_V·W_O·W_U [vocab_size, vocab_size]; 1 copies, −1 does the opposite.

    Elhage et al. 2021, section "Detecting copying heads". The eigenvalues that are not 0 are those of a head_dim ×
    head_dim product, float64. The null: DRAWS heads with Gaussian W_V and W_O, drawn by `seed`, between this model's
    own embeddings; its mean is 0 and its sd near 1.5/head_dim where those are random too (0.023 at 64), and larger
    where training gave them a direction. Columns layer, head, copying, z = copying / null_sd, null_sd, threshold (of
    |z|, over all heads of the model), beyond.
    """
    unembed = through_norm(config, params, config.n_layer, unembedding(config, params))
    through = np.asarray(unembed, np.float64) @ np.asarray(params["W_E"], np.float64)
    layers, rng = by_head(config, params), np.random.default_rng(seed)
    rows = []
    for layer, heads in enumerate(layers):
        rows += [(layer, head, score) for head, score in enumerate(_copying(through, heads.ov))]
    null_sd = _copying(through, _random_ov(config, layers[0], rng)).std()
    table = pd.DataFrame(rows, columns=["layer", "head", "copying"])
    threshold = family_threshold(len(table), sides=2)
    z = table["copying"] / null_sd
    return table.assign(z=z, null_sd=null_sd, threshold=threshold, beyond=z.abs() > threshold)


def _copying(through: np.ndarray, ov: Factored) -> np.ndarray:
    """Σλ / Σ|λ| [head] of W_E·W_OV·W_U; through = W_U·W_E [d_model, d_model]. 0 for a head that writes nothing."""
    values = Factored(through @ ov.left, ov.right).eigenvalues()
    size = np.abs(values).sum(axis=-1)
    return np.real(values).sum(axis=-1) / np.where(size > 0, size, 1)


def _random_ov(config: Model, like: HeadWeights, rng: np.random.Generator) -> Factored:
    _, d, h = like.W_V.shape
    w_v = rng.standard_normal((DRAWS, d, h))
    if config.w_o == "free":
        return Factored(w_v, rng.standard_normal((DRAWS, h, d)))
    blocks = rng.standard_normal((DRAWS, h, h)) if config.w_o == "block_diagonal" else np.eye(h)[None]
    return Factored(w_v, np.concatenate([blocks, np.zeros((len(blocks), h, d - h))], axis=-1))  # any head's place


def composition(config: Model, params: Params, initial: Params | None = None, seed: int = 0) -> pd.DataFrame:
    """How much of what an earlier head writes is read by a later one: ‖W₁W₂‖_F / (‖W₁‖_F·‖W₂‖_F), float64.

    W₁ = W_OV of the earlier head; W₂ = W_QK of the later one for its query (kind Q), W_QKᵀ for its key (K), its W_OV
    for its value (V). Elhage et al. 2021, section "Two-layer attention-only transformers". The null: models of the same
    shapes with Gaussian weights, drawn by `seed`; its mean is 1/√d_model. `initial`: this model's parameters at step 0.

    A row a kind and pair, columns kind, layer_1, head_1, layer_2, head_2, composition, z, beyond (z above the
    threshold), initial, initial_z (at step 0; null where not given), null_mean, null_sd, threshold (of z, over all
    pairs and kinds). No rows for a model of one layer. Trained matrices share directions, so many pairs pass the
    threshold: it says "not by chance", and the size of z which pairs matter.
    """
    found = _pairs(by_head(config, params))
    found["initial"] = np.nan if initial is None else _pairs(by_head(config, initial))["composition"]
    null = _null(config, seed)
    mean, sd = np.array([null[kind] for kind in found["kind"]]).reshape(-1, 2).T
    threshold = family_threshold(len(found), sides=1)
    z, initial_z = (found["composition"] - mean) / sd, (found["initial"] - mean) / sd
    more = {"z": z, "beyond": z > threshold, "initial": found.pop("initial"), "initial_z": initial_z}
    return found.assign(**more, null_mean=mean, null_sd=sd, threshold=threshold)


@functools.lru_cache(maxsize=8)
def _null(config: Model, seed: int) -> dict[str, tuple[float, float]]:
    """Kind -> mean and sd of the composition of random heads."""
    config = dataclasses.replace(config, norm_weights=False)
    attention = {i: {"attention": layer["attention"]} for i, layer in abstract(config)["layers"].items()}
    drawn, rng = [_pairs([])], np.random.default_rng(seed)
    while config.n_layer > 1 and sum(map(len, drawn)) < DRAWS * len(KINDS):
        layers = jax.tree.map(lambda x: rng.standard_normal(x.shape, np.float32), attention)
        drawn.append(_pairs(by_head(config, {"layers": layers})))
    pairs = pd.concat(drawn)
    sizes = {kind: pairs.loc[pairs["kind"] == kind, "composition"].to_numpy(np.float64) for kind in KINDS}
    return {kind: (size.mean(), size.std()) for kind, size in sizes.items() if len(size)}


def _pairs(layers: list[HeadWeights]) -> pd.DataFrame:
    """Every kind and pair: columns kind, layer_1, head_1, layer_2, head_2, composition."""
    writes = [_short(heads.ov.T).swapaxes(-1, -2) for heads in layers]  # [head, r, d_model]
    parts = [pd.DataFrame({"kind": [], "layer_1": [], "head_1": [], "layer_2": [], "head_2": [], "composition": []})]
    for kind in KINDS:
        reads = [_short({"Q": heads.qk, "K": heads.qk.T, "V": heads.ov}[kind]) for heads in layers]
        for i, j in itertools.combinations(range(len(layers)), 2):
            cores = np.tensordot(writes[i], reads[j], axes=(2, 1))  # [head_1, r, head_2, r], with the norms of W₁W₂
            size = np.linalg.norm(cores, axis=(1, 3))
            first, second = (heads.ravel() for heads in np.indices(size.shape))
            columns = {"layer_1": i, "head_1": first, "layer_2": j, "head_2": second, "composition": size.ravel()}
            parts.append(pd.DataFrame({"kind": kind, **columns}))
    return pd.concat(parts[1:] or parts, ignore_index=True)


def _short(matrices: Factored) -> np.ndarray:
    """M [head, row, r] with MMᵀ = WWᵀ / ‖W‖² for each matrix W: ‖XM‖ is ‖XW‖ / ‖W‖. 0 where W is."""
    short = matrices.left @ triangle(matrices.T.left).swapaxes(-1, -2)
    size = np.linalg.norm(short, axis=(1, 2), keepdims=True)
    return short / np.where(size > 0, size, 1)
