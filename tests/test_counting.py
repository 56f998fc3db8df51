"""Parameters by part, against counts made by hand."""

import dataclasses
from pathlib import Path

import pytest

from andrea_jax import config_files, counting
from andrea_jax.config import Model

CONFIGS = Path(__file__).parent.parent / "configs"
TINY = Model(vocab_size=11, seq_len=5, d_model=32, n_layer=3, n_head=4, n_kv_head=2, d_mlp=7)  # head_dim 8
PLAIN = {
    "embeddings": 11 * 32 + 5 * 32,
    "W_Q": 3 * 32 * 32,
    "W_K": 3 * 32 * 2 * 8,
    "W_V": 3 * 32 * 2 * 8,
    "W_O": 3 * 32 * 32,
    "MLP": 3 * 2 * 32 * 7,
    "unembedding": 32 * 11,
}


@pytest.mark.parametrize(
    ("name", "layer", "in_all", "total"),
    [
        ("andrea-12m", 589_824, 3_538_944, 12_780_288),
        ("andrea-120m", 2_359_296, 28_311_552, 98_698_752),
        ("andrea-480m", 9_437_184, 150_994_944, 505_678_848),
    ],
)
def test_the_family_has_the_published_counts(name, layer, in_all, total):
    config = config_files.load(CONFIGS / f"{name}.toml").model
    parts = counting.parameters_by_part(config)
    assert sum(parts.values()) == total
    share = f"{100 * in_all / total:.1f}%"
    expected = f"attention: {layer:,} a layer,\n{in_all:,} in all ({share})"
    assert counting.attention_share(parts, config.n_layer) == expected


@pytest.mark.parametrize(
    ("projection", "form"), [("fused", "one"), ("fused", "three"), ("per_head", "einsum"), ("per_head", "loop")]
)
def test_every_form_has_the_same_parts_with_grouped_keys(projection, form):
    config = dataclasses.replace(TINY, projection=projection, projection_form=form)
    assert counting.parameters_by_part(config) == PLAIN


def test_tied_embeddings_are_counted_once():
    tied = dataclasses.replace(TINY, tied_embeddings=True)
    assert counting.parameters_by_part(tied) == PLAIN | {"unembedding": 0}


def test_biases_are_a_part_of_their_own():
    biases = 3 * (32 + 16 + 16 + 32 + 7 + 32)  # b_Q, b_K, b_V, b_O, b_in, b_out of three layers
    for projection in ("fused", "per_head"):
        config = dataclasses.replace(TINY, biases=True, projection=projection)
        assert counting.parameters_by_part(config) == PLAIN | {"biases": biases}


@pytest.mark.parametrize(("norm", "vectors"), [("rms", 1), ("layer", 2)])
def test_gains_and_biases_of_norms_are_a_part_of_their_own(norm, vectors):
    config = dataclasses.replace(TINY, norm=norm, norm_weights=True)
    norms = (2 * 3 + 1) * vectors * 32  # two a layer and the last one
    assert counting.parameters_by_part(config) == PLAIN | {"norms": norms}


@pytest.mark.parametrize(("w_o", "n"), [("identity", 0), ("block_diagonal", 3 * 4 * 8 * 8)])
def test_a_restricted_w_o_counts_only_what_it_learns(w_o, n):
    config = dataclasses.replace(TINY, w_o=w_o, projection="per_head")
    assert counting.parameters_by_part(config) == PLAIN | {"W_O": n}


def test_an_attention_only_model_with_rotary_positions_has_neither_mlp_nor_position_embeddings():
    config = dataclasses.replace(TINY, d_mlp=0, positions="rotary")
    assert counting.parameters_by_part(config) == PLAIN | {"MLP": 0, "embeddings": 11 * 32}
