"""Physical pruning: smaller arrays, the logits of the masked model; which heads go, and the curve."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from edited_andrea import CONFIG, HEADS, PARAMS, TASK, TOKENS, Inner, forward, random_params

from andrea_jax import counting, model
from andrea_jax.comparison import equality
from andrea_jax.config import Experiment, Model, problems
from andrea_jax.conversion import convert
from andrea_jax.errors import UserError
from andrea_jax.interventions import cheapest, count, curve, prune, pruning, removal_order
from andrea_jax.trace import trace

REMOVED = [(1, 4), (1, 5), (0, 0), (0, 1), (1, 0), (1, 1)]  # whole groups of two; layer 1 keeps heads 2 and 3
SINGLE = Model(vocab_size=19, seq_len=23, d_model=40, n_layer=3, n_head=5, d_mlp=0)


def masked(layer: int, inner: Inner) -> Inner:
    z = inner.z.copy()
    z[[head for place, head in REMOVED if place == layer]] = 0
    return inner._replace(z=z)


@pytest.mark.parametrize("projection", ["fused", pytest.param("per_head", marks=pytest.mark.slow)])
def test_a_pruned_model_is_smaller_and_has_the_logits_of_the_masked_one(projection):
    config, params = convert(CONFIG, PARAMS, projection)
    smaller, left = prune(config, params, REMOVED)
    assert (smaller.heads_per_layer, smaller.projection, smaller.head_dim) == ((4, 2), projection, 8)
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (left, model.abstract(smaller))]
    assert shapes[0] == shapes[1]
    traced = trace(
        smaller, left, TOKENS[:2, :-1], backend="reference", points=("q", "k", "lse", "v", "z", "head_output")
    )
    for row, logits in zip(TOKENS, traced.logits, strict=False):
        np.testing.assert_allclose(logits, forward(CONFIG, PARAMS, row[:-1], masked)[0], rtol=2e-4, atol=2e-4)


@pytest.fixture(scope="module")
def traced():
    smaller, left = prune(CONFIG, PARAMS, REMOVED)
    return trace(smaller, left, TOKENS[:2, :-1], backend="reference", points=("q", "k", "lse", "v", "z", "head_output"))


def test_heads_move_up_and_keep_their_patterns(traced):
    inners = forward(CONFIG, PARAMS, TOKENS[1, :-1], masked)[1]
    for new, old in ((0, 2), (3, 5)):
        np.testing.assert_allclose(traced.pattern(0, new, sequence=1), inners[0].pattern[old], atol=1e-5)
    np.testing.assert_allclose(traced.pattern(1, 1, sequence=1), inners[1].pattern[3], atol=1e-5)
    with pytest.raises(UserError, match="head = 2: must be from 0 to 1"):
        traced.pattern(1, 2)


def test_a_trace_of_a_pruned_model_is_filled_up_with_zeros(traced):
    assert traced["z"].shape == (2, 2, 13, 6, 8) and traced["v"].shape == (2, 2, 13, 3, 8)
    for point, axis in {"q": 3, "z": 3, "head_output": 3, "lse": 2}.items():
        there = np.abs(np.asarray(traced[point])).max(
            axis=tuple(a for a in range(traced[point].ndim) if a not in (0, axis))
        )
        assert (there > 0).tolist() == [[True] * 4 + [False] * 2, [True] * 2 + [False] * 4]
    assert repr(traced).startswith("Trace of 2 layers with 4, 2 heads")


@pytest.mark.slow
def test_a_pruned_model_converts_and_counts_like_any_other():
    smaller, left = prune(CONFIG, PARAMS, REMOVED)
    other, converted = convert(smaller, left, "per_head")
    assert [len(converted["layers"][i]["attention"]["projection"]["W_K"]) for i in "01"] == [2, 1]
    checks = equality(smaller, left, TOKENS[:2]).set_index("quantity")
    assert (checks["max_difference"] <= checks["tolerance"]).all()  # nothing is nan
    back = convert(other, converted, "fused")[1]
    assert jax.tree.all(jax.tree.map(np.array_equal, left, back))
    parts = counting.parameters_by_part(smaller)
    assert (parts["W_Q"], parts["W_K"], parts["W_O"]) == (48 * 8 * 6, 48 * 8 * 3, 48 * 8 * 6)
    assert problems(Experiment(model=dataclasses.replace(smaller, vocab_size=307, seq_len=1024))) == []


def test_pruning_twice_is_pruning_once():
    once = prune(CONFIG, PARAMS, REMOVED)
    first = prune(CONFIG, PARAMS, REMOVED[:2])
    again = prune(*first, [(0, 0), (0, 1), (1, 0), (1, 1)])
    assert once[0] == again[0]
    assert jax.tree.all(jax.tree.map(np.array_equal, once[1], again[1]))


def test_a_layers_last_head_half_a_group_and_heads_with_a_place_of_their_own_stay():
    with pytest.raises(UserError, match="layer 1 would lose its last head"):
        prune(CONFIG, PARAMS, [(1, head) for head in range(6)])
    with pytest.raises(UserError, match=r"heads 0\.2 to 0\.3 share keys and values, and go together"):
        prune(CONFIG, PARAMS, [(0, 3)])
    config = dataclasses.replace(SINGLE, w_o="identity")
    with pytest.raises(UserError, match=r'only models with model\.w_o = "free"'):
        prune(config, random_params(config), [(0, 0)])
    with pytest.raises(UserError, match=r"head 3\.0: there is none"):
        prune(SINGLE, random_params(SINGLE), [(3, 0)])


def test_a_fraction_is_a_whole_number_of_groups_and_leaves_one_a_layer():
    assert [count(SINGLE, fraction) for fraction in (0.1, 0.5, 0.8)] == [2, 8, 12]
    assert count(CONFIG, 0.3) == 4  # of 12 heads in groups of two
    for fraction in (0.01, 0.9):
        with pytest.raises(UserError, match=r"must take one, and at most 0\.80 of them"):
            count(SINGLE, fraction)


@pytest.fixture
def importances(monkeypatch) -> np.ndarray:
    """Stands in for gradients [sequence, layer, head] of SINGLE; what is gone has 0, and head 2.4 gains by it."""
    values = np.array([[5, 1, 9, 8, 7], [0.1, 0.2, 0.3, 0.4, 0.5], [30, 31, 32, 33, 6]])

    def gradients(config, params, task, behaviour, *, left, **settings):
        now = values.copy()
        now[2, 4] += 10 * (~left).sum()
        return np.stack([now * left, -now * left])  # signs cancel in the mean, not in the mean size

    monkeypatch.setattr(pruning, "gate_gradients", gradients)
    return values


def test_the_least_important_go_first_and_every_layer_keeps_its_best(importances):
    order = removal_order(SINGLE, {}, TASK, re_estimate=False)
    assert order == [(1, 0), (1, 1), (1, 2), (1, 3), (0, 1), (0, 0), (2, 4), (0, 4), (0, 3), (2, 0), (2, 1), (2, 2)]
    again = removal_order(SINGLE, {}, TASK, re_estimate=True)
    assert again[:6] == order[:6] and again[6:] == [(0, 4), (0, 3), (2, 0), (2, 1), (2, 2), (2, 3)]  # 2.4 was spared


def test_heads_that_share_keys_go_together(monkeypatch):
    values = np.array([[1.0, 9, 4, 4, 2, 20], [6, 6, 7, 7, 8, 8]])
    monkeypatch.setattr(pruning, "gate_gradients", lambda *a, **k: values[None])
    assert removal_order(CONFIG, PARAMS, TASK, re_estimate=False)[:4] == [(0, 2), (0, 3), (0, 0), (0, 1)]  # 8, 10


def test_a_curve_counts_every_order_and_its_random_ones_have_an_interval(importances, monkeypatch):
    def answers(config, params, task, where, kind, **settings):
        """Σ of loss over 13 positions: 26 intact; each removed head costs what it is worth, on all sequences alike."""
        costs = np.concatenate([[0], (importances[None] * where).sum(axis=(1, 2))])
        sums = np.zeros((len(costs), len(task.tokens), 2, 2), np.float32)
        sums[:, :, 0, 0] = 26 + 13 * costs[:, None]
        return sums

    monkeypatch.setattr(pruning, "answers", answers)
    table = curve(SINGLE, {}, TASK)
    assert table["strategy"].unique().tolist() == ["importance", "re-estimated", "random"]
    once = table[table["strategy"] == "importance"].set_index("removed")
    assert once.index.tolist() == list(range(13)) and once.loc[3, "fraction"] == pytest.approx(3 / 15)
    assert once.loc[0, "loss"] == 2 and once.loc[3, "loss"] == pytest.approx(2.6)
    assert once.loc[5, "damage"] == once.loc[5, "low"] == pytest.approx(2, rel=1e-6)
    assert once.loc[5, "heads"] == "1.0 1.1 1.2 1.3 0.1"
    random = table[table["strategy"] == "random"].set_index("removed")
    assert (random.loc[1:, "low"] < random.loc[1:, "damage"]).all() and (random["heads"] == "").all()
    assert random.loc[12, "damage"] > once.loc[12, "damage"]


def test_the_cheaper_of_both_orders_is_taken(importances, monkeypatch):
    asked = []

    def answers(config, params, task, where, kind, **settings):
        asked.append(where)
        sums = np.zeros((3, len(task.tokens), 2, 2), np.float32)
        sums[1:, :, 0, 0] = [[5], [4]]
        return sums

    monkeypatch.setattr(pruning, "answers", answers)
    assert cheapest(SINGLE, {}, TASK, 7)[-1] == (0, 4)  # the re-estimated one, see above
    assert asked[0].shape == (2, 3, 5) and asked[0].sum(axis=(1, 2)).tolist() == [7, 7]


def test_random_orders_keep_one_head_a_layer_and_differ():
    rng = np.random.default_rng(0)
    orders = [pruning._random_order(SINGLE, rng) for _ in range(4)]
    for order in orders:
        assert len(order) == len(set(order)) == 12
        left = {(layer, head) for layer in range(3) for head in range(5)} - set(order)
        assert sorted(layer for layer, _ in left) == [0, 1, 2]
    assert len({tuple(order) for order in orders}) == 4
    assert len(HEADS) == 12
