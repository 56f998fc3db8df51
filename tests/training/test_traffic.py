"""Bytes that a step sends: formulas against sums by hand, and times and efficiency of made-up links."""

import dataclasses

import numpy as np
import pytest

from andrea_jax.config import Model
from andrea_jax.config_mesh import Mesh
from andrea_jax.training import traffic

# a layer: attention 4·24² = 2,304, MLP 2·24·40 = 1,920; W_E and W_U 7·24 = 168 each, W_P 11·24 = 264
MODEL = Model(vocab_size=7, seq_len=11, d_model=24, n_layer=5, n_head=3, d_mlp=40, projection="per_head")
LAYERS, ENDS = 5 * 4224, 168 + 168 + 264


def bytes_of(mesh: Mesh, axis: str, model: Model = MODEL) -> float:
    return traffic.sent(model, mesh, windows=12, seq=11, itemsize=2)[axis].bytes


def test_the_data_axis_sends_the_gradients_twice_around_a_ring():
    assert bytes_of(Mesh(data=3), "data") == pytest.approx(2 * 2 / 3 * (2 * LAYERS + 4 * ENDS))
    assert bytes_of(Mesh(data=3, fsdp=2), "data") == pytest.approx(2 / 3 * (2 * LAYERS + 4 * ENDS))


def test_the_fsdp_axis_sends_weights_and_gradients_once():
    gathered, scattered = 2 * (LAYERS + 168) + 4 * (168 + 264), 2 * LAYERS + 4 * ENDS
    assert bytes_of(Mesh(fsdp=4), "fsdp") == pytest.approx(3 / 4 * (gathered + scattered))


def test_the_heads_axis_sends_six_residual_streams_a_layer_and_moves_a_fused_w_qkv():
    stream = 2 * (12 // 2) * 11 * 24  # bytes of half of the windows
    assert bytes_of(Mesh(data=2, heads=3), "heads") == pytest.approx(2 * 2 / 3 * 6 * 5 * stream)
    fused = dataclasses.replace(MODEL, projection="fused")
    moved = 2 * 2 / 3 * 2 * 5 * 3 * 24**2 / 3
    assert bytes_of(Mesh(data=2, heads=3), "heads", fused) == pytest.approx(2 * 2 / 3 * 6 * 5 * stream + moved)
    assert traffic.sent(MODEL, Mesh(), windows=12, seq=11, itemsize=2) == {}


def test_an_axis_that_leaves_the_host_takes_the_slow_link():
    over = {"heads": traffic.Sent(8e6, 0), "fsdp": traffic.Sent(8e6, 0), "data": traffic.Sent(8e6, 0)}
    links = traffic.Links(host=8e9, network=1e9, per_host=4)
    times = traffic.seconds(over, Mesh(data=2, fsdp=2, heads=2), links)
    assert times == pytest.approx({"heads": 1e-3, "fsdp": 1e-3, "data": 8e-3})
    later = traffic.seconds({"data": traffic.Sent(0, 3)}, Mesh(data=8), links)
    assert later["data"] == pytest.approx(3 * 3 * traffic.LATENCY_NETWORK)  # 3 calls, a tree of 3 hops


def test_what_can_travel_behind_the_backward_pass_costs_nothing_until_it_is_longer():
    low, high = traffic.efficiency(3.0, {"data": 1.0, "heads": 1.0})
    np.testing.assert_allclose([low, high], [3 / 5, 3 / 4])
    assert traffic.efficiency(3.0, {"fsdp": 3.0})[1] == pytest.approx(3 / 4)  # two of the three are hidden
