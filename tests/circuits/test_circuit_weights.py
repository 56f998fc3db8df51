"""Copying and composition: what is built into weights is found, and what is random stays within its null."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm as normal
from small_models import BASE, draw_params

from andrea_jax.circuits import composition, copying, family_threshold
from andrea_jax.circuits.weights import _null
from andrea_jax.config import Model
from andrea_jax.conversion import convert
from andrea_jax.heads import planted


def copying_of_the_planted_head(sign: float) -> tuple[float, float]:
    """(score, z) of head 0.0, which writes the token it attends to; W_U reads that part of the stream."""
    config, params = planted(vocab_size=11, seq_len=13, offset=3)
    w_u = np.zeros((config.d_model, 11), np.float32)
    w_u[11 + 13 + np.arange(11), np.arange(11)] = sign
    table = copying(config, {**params, "W_U": jnp.asarray(w_u)})
    assert (table.loc[1:, "copying"] == 0).all()  # the others write nothing
    assert not table.loc[1:, "beyond"].any()
    return table.loc[0, "copying"], table.loc[0, "z"]


def test_a_head_that_writes_the_token_it_attends_to_copies_and_its_opposite_anticopies():
    assert copying_of_the_planted_head(1.0) == (pytest.approx(1), pytest.approx(copying_of_the_planted_head(1.0)[1]))
    assert copying_of_the_planted_head(-1.0)[0] == pytest.approx(-1)


def test_the_copying_score_is_that_of_the_whole_vocab_by_vocab_matrix():
    config = dataclasses.replace(BASE, n_layer=1, n_head=6, n_kv_head=2)
    params = draw_params(config)
    weights = {name: np.asarray(w, np.float64) for name, w in params["layers"]["0"]["attention"]["projection"].items()}
    found = copying(config, params)["copying"]
    for head in range(6):
        whole = np.asarray(params["W_E"], np.float64) @ weights["W_V"][head // 3] @ weights["W_O"][head]
        values = np.linalg.eigvals(whole @ np.asarray(params["W_U"], np.float64))
        assert found[head] == pytest.approx(values.sum().real / np.abs(values).sum(), abs=1e-7)


@pytest.mark.parametrize(
    ("d_model", "n_head", "published"), [(384, 12, 0.046), pytest.param(768, 12, 0.023, marks=pytest.mark.slow)]
)
def test_the_null_of_copying_has_the_published_spread(d_model: int, n_head: int, published: float):
    config = Model(vocab_size=4999, seq_len=3, d_model=d_model, n_layer=1, n_head=n_head, d_mlp=0)
    found = copying(config, draw_params(config))
    assert found["null_sd"][0] == pytest.approx(published, rel=0.15)  # an sd of 256 draws is known to 4.4%
    assert found["z"].std() == pytest.approx(1, rel=0.7)


def test_the_null_of_composition_has_mean_one_over_the_root_of_d_model():
    config = Model(vocab_size=5, seq_len=3, d_model=768, n_layer=2, n_head=12, d_mlp=0)
    null = _null(config, seed=0)
    assert [mean for mean, _ in null.values()] == pytest.approx([0.0361] * 3, abs=1e-4)


def composing_params(kind: str) -> tuple[Model, dict]:
    """Head 0.0 writes component 7 for what it reads in component 2; head 2.1 reads component 7 as `kind`."""
    config = dataclasses.replace(BASE, n_layer=3, d_mlp=0)
    params = draw_params(config)
    weights = [{name: np.array(w) for name, w in params["layers"][i]["attention"]["projection"].items()} for i in "02"]
    for layer, head, names in ((0, 0, "VO"), (1, 1, "QKVO")):
        for name in names:
            weights[layer][f"W_{name}"][head] = 0
    weights[0]["W_V"][0, 2, 0] = weights[0]["W_O"][0, 0, 7] = 3
    weights[1]["W_Q"][1, 7 if kind == "Q" else 4, 0] = weights[1]["W_K"][1, 7 if kind == "K" else 4, 0] = 5
    weights[1]["W_V"][1, 7 if kind == "V" else 4, 0] = weights[1]["W_O"][1, 0, 11] = 2
    for i, layer in zip("02", weights, strict=True):
        params["layers"][i]["attention"]["projection"] = {name: jnp.asarray(w) for name, w in layer.items()}
    return config, params


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
@pytest.mark.parametrize("projection", ["per_head", "fused"])
def test_a_head_that_reads_only_what_another_writes_composes_with_it_fully(kind: str, projection: str):
    table = composition(*convert(*composing_params(kind), projection))
    assert len(table) == 3 * 3 * 9  # kinds, pairs of layers, pairs of heads
    pair = table[(table["layer_1"] == 0) & (table["head_1"] == 0) & (table["layer_2"] == 2) & (table["head_2"] == 1)]
    assert pair.set_index("kind")["composition"].to_dict() == pytest.approx(
        {other: float(other == kind) for other in "QKV"}, abs=1e-12
    )
    best = table.loc[table["z"].idxmax()]
    assert (best["kind"], best["layer_1"], best["head_1"], best["layer_2"], best["head_2"]) == (kind, 0, 0, 2, 1)
    assert best["beyond"]


def test_composition_is_that_of_whole_matrices_and_of_the_shared_key_value_heads():
    config = dataclasses.replace(BASE, n_head=6, n_kv_head=2)
    params = draw_params(config)
    first, second = (
        {name: np.asarray(w, np.float64) for name, w in params["layers"][i]["attention"]["projection"].items()}
        for i in "01"
    )
    found = composition(config, params).set_index(["kind", "head_1", "head_2"])["composition"]
    for h1, h2 in ((0, 5), (4, 1)):
        writes = first["W_V"][h1 // 3] @ first["W_O"][h1]
        qk = second["W_Q"][h2] @ second["W_K"][h2 // 3].T
        for kind, reads in {"Q": qk, "K": qk.T, "V": second["W_V"][h2 // 3] @ second["W_O"][h2]}.items():
            sizes = [np.linalg.norm(m) for m in (writes @ reads, writes, reads)]
            assert found[kind, h1, h2] == pytest.approx(sizes[0] / sizes[1] / sizes[2], rel=1e-6)


def test_the_threshold_is_passed_by_a_random_model_about_once_in_twenty():
    assert family_threshold(1, sides=1) == pytest.approx(1.6449, abs=1e-4)
    assert family_threshold(1, sides=2) == pytest.approx(1.9600, abs=1e-4)
    assert normal.cdf(family_threshold(6480, sides=1)) ** 6480 == pytest.approx(0.95)
    config = dataclasses.replace(BASE, d_mlp=0)
    passed = [composition(config, draw_params(config, seed))["beyond"].any() for seed in range(40)]
    assert sum(passed) <= 6  # a fair coin of 1/20 passes more than 6 of 40 times with probability 0.3%


def test_composition_is_given_beside_that_of_the_initial_model():
    table = composition(BASE, draw_params(BASE), draw_params(BASE, seed=7))
    same = composition(BASE, draw_params(BASE, seed=7))
    np.testing.assert_array_equal(table["initial"], same["composition"])
    np.testing.assert_allclose(table["initial_z"], same["z"])
    assert same["initial"].isna().all()


def test_a_model_of_one_layer_has_no_pairs():
    config = dataclasses.replace(BASE, n_layer=1)
    table = composition(config, draw_params(config))
    assert len(table) == 0 and "beyond" in table
