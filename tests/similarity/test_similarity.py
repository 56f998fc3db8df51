"""Distances, CKA and R² against independent numpy in float64, and on heads that are known to be alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import jensenshannon

from andrea_jax import model as andrea
from andrea_jax.config import Model
from andrea_jax.conversion import convert
from andrea_jax.errors import UserError
from andrea_jax.heads import planted
from andrea_jax.similarity import Measured, Similarity, measure, summarise
from andrea_jax.similarity.engine import asked_rows
from andrea_jax.similarity.summary import RIDGE, classical_mds
from andrea_jax.trace import trace

CONFIG = Model(vocab_size=13, seq_len=17, d_model=24, n_layer=2, n_head=6, n_kv_head=3, heads_per_layer=(2, 4), d_mlp=0,
               norm="layer", projection="per_head")  # fmt: skip
N, T = 7, 11
TOKENS = np.random.default_rng(0).integers(1, 13, (N, T))


@pytest.fixture(scope="module")
def params() -> dict:
    rng = np.random.default_rng(3)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.5, x.shape), x.dtype), andrea.abstract(CONFIG))


@pytest.fixture(scope="module")
def measured(params) -> Measured:
    return measure(CONFIG, params, TOKENS, queries=T)


@pytest.fixture(scope="module")
def traced(params):
    return trace(CONFIG, params, TOKENS, points=("q", "k", "lse", "head_output"))


NAMES = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]


def smoothed(row: np.ndarray) -> np.ndarray:
    """The pattern of the last query of a prefix, with one even row among q others."""
    q = len(row) - 1
    return np.array([(q * mass + 1 / (q + 1)) / (q + 1) for mass in row])


def test_distances_are_those_of_smoothed_rows_in_bits_averaged_over_queries(measured: Measured, traced):
    assert measured.names == NAMES
    for a, b in ((0, 1), (1, 4), (2, 6), (5, 5)):
        for sequence in (0, 6):
            even = np.tril(np.ones((T, T))) / np.arange(1, T + 1)[:, None]
            first, second = (traced.pattern(*NAMES[i], sequence=sequence) if i < 6 else even for i in (a, b))
            each = [jensenshannon(*(smoothed(p[q, : q + 1].astype(np.float64)) for p in (first, second)), base=2)
                    for q in range(1, T)]  # fmt: skip
            assert measured.js[sequence, a, b] == pytest.approx(np.mean(each), abs=2e-4)
            assert measured.js[sequence, b, a] == measured.js[sequence, a, b]


def outputs(traced, half: int) -> np.ndarray:
    """What each head adds to the stream, without position 0: float64 [head, token, d_model]."""
    x = np.asarray(traced["head_output"], np.float64)[:, half::2, 1:].reshape(2, -1, 6, 24)
    return np.stack([x[layer, :, head] for layer, head in NAMES])


def test_cka_is_the_unbiased_linear_one_of_the_heads_outputs(measured: Measured, traced):
    x = outputs(traced, half=1)
    n = x.shape[1]
    off = 1 - np.eye(n)
    k, m = (x[i] @ x[i].T * off for i in (1, 4))

    def hsic(k: np.ndarray, m: np.ndarray) -> float:
        """Song et al. 2012, equation 5, by explicit sums."""
        ones = np.ones(n)
        whole = (ones @ k @ ones) * (ones @ m @ ones) / ((n - 1) * (n - 2))
        return (np.trace(k @ m) + whole - 2 / (n - 2) * (ones @ k @ m @ ones)) / (n * (n - 3))

    expected = hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m))
    pairs = summarise(measured).pairs.set_index(["layer_1", "head_1", "layer_2", "head_2"])
    assert pairs["cka"][0, 1, 1, 2] == pytest.approx(expected, abs=1e-4)


def test_r2_is_fitted_on_one_half_of_the_sequences_and_reported_on_the_other(measured: Measured, traced, params):
    fit, report = outputs(traced, half=0), outputs(traced, half=1)
    w_o = np.asarray(params["layers"]["1"]["attention"]["projection"]["W_O"], np.float64)
    z = [np.stack([x[2 + head] @ np.linalg.pinv(w_o[head]) for head in range(4)]) for x in (fit, report)]
    found = summarise(measured).heads.set_index(["layer", "head"])
    for head in range(4):
        (x, y), (x2, y2) = (
            (np.concatenate([h[i] for i in range(4) if i != head], axis=1), out[2 + head])
            for h, out in zip(z, (fit, report), strict=True)
        )
        centred = x - x.mean(0)
        ridge = RIDGE * (centred**2).sum(0).mean() * np.eye(12)
        slope = np.linalg.solve(centred.T @ centred + ridge, centred.T @ (y - y.mean(0)))
        left = ((y2 - y.mean(0) - (x2 - x.mean(0)) @ slope) ** 2).sum()
        around = ((y2 - y2.mean(0)) ** 2).sum()
        assert found["r2"][1, head] == pytest.approx(1 - left / around, abs=2e-3)
        assert found["spread"][1, head] == pytest.approx(np.sqrt(around / len(y2)), rel=1e-4)


def test_neither_projection_nor_batches_change_distances_and_predictions(measured: Measured, params):
    other = measure(*convert(CONFIG, params, "fused"), TOKENS, queries=T, batch_size=4)  # the last batch is not full
    np.testing.assert_allclose(other.js, measured.js, atol=1e-4)
    first, second = (summarise(m).heads for m in (measured, other))
    np.testing.assert_allclose(first["r2"], second["r2"], atol=1e-4)
    np.testing.assert_allclose(first["spread"], second["spread"], rtol=1e-4)
    names = ["like_layer", "like_head", "group", "order"]
    pd.testing.assert_frame_equal(first[names], second[names])


@pytest.fixture(scope="module")
def twins() -> Similarity:
    """The planted model with head 0.0, previous token, once more as 0.1; 1.0 attends evenly; 1.1 is as it was."""
    config, params = planted(vocab_size=13, seq_len=17, offset=3)
    weights = params["layers"]["0"]["attention"]["projection"]
    twice = {name: jnp.stack([w[0], w[0]]) for name, w in weights.items()}
    second = {name: w.at[0].set(0) for name, w in params["layers"]["1"]["attention"]["projection"].items()}
    layers = {"0": {"attention": {"projection": twice}}, "1": {"attention": {"projection": second}}}
    return summarise(measure(config, {**params, "layers": layers}, TOKENS, queries=5))


def test_twin_heads_are_at_distance_0_in_one_group_and_say_the_same(twins: Similarity):
    heads = twins.heads.set_index(["layer", "head"])
    for head in (0, 1):
        twin = heads.loc[(0, head)]
        assert (twin["like_layer"], twin["like_head"]) == (twin["same_layer"], twin["same_head"]) == (0, 1 - head)
        assert twin["js"] == twin["low"] == twin["high"] == 0
        assert twin["cka"] == pytest.approx(1, abs=1e-4)
        assert twin["r2"] == pytest.approx(1, abs=1e-3)
        assert twin["group"] == 1
    assert heads["group"].isna().tolist() == [False, False, True, True]
    assert np.hypot(*(heads.loc[(0, 0), ["x", "y"]] - heads.loc[(0, 1), ["x", "y"]])) < 1e-6


def test_a_head_that_attends_evenly_is_at_distance_0_from_even_attention(twins: Similarity):
    heads = twins.heads.set_index(["layer", "head"])
    assert heads["even"][1, 0] == pytest.approx(0, abs=1e-3)
    assert heads["even"].drop((1, 0)).min() > 0.5
    assert heads["cka"][1, 0] == 0 and np.isnan(heads["r2"][1, 0])  # it writes nothing


def test_all_queries_are_asked_where_there_are_few_and_all_parts_of_the_text_where_there_are_many():
    assert asked_rows(3, 11, 64, 4).tolist() == [[[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 0, 0]]] * 3
    asked = asked_rows(100, 101, 10, 10)[:, 0]
    np.testing.assert_array_equal((asked - 1) // 10, np.tile(np.arange(10), (100, 1)))  # one in every tenth
    assert len(np.unique(asked)) == 100


def test_the_map_keeps_the_distances_of_points_in_a_plane():
    points = np.random.default_rng(5).normal(size=(7, 2))
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    found = classical_mds(distance)
    np.testing.assert_allclose(np.linalg.norm(found[:, None] - found[None], axis=-1), distance, atol=1e-7)
    assert (found.max(axis=0) >= -found.min(axis=0)).all()


def test_too_few_sequences_or_heads_are_refused(params):
    with pytest.raises(ValueError, match="four or more sequences of two or more tokens, not 3 of 11"):
        measure(CONFIG, params, TOKENS[:3])
    one = Measured([(0, 0)], np.zeros((4, 2, 2), np.float32), np.zeros((2, 1, 1)), [], [])
    with pytest.raises(UserError, match="the model has only one"):
        summarise(one)


@pytest.mark.slow
def test_a_bfloat16_model_is_compared_in_float32(measured: Measured, params):
    found = measure(CONFIG, params, TOKENS, queries=T, dtype="bfloat16")
    assert found.js.dtype == np.float32
    np.testing.assert_allclose(found.js, measured.js, atol=0.03)
    first, second = (summarise(m).heads["spread"] for m in (measured, found))
    np.testing.assert_allclose(second, first, rtol=0.03)
