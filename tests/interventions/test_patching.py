"""Activation and path patching against passes by hand."""

import numpy as np
import pytest
from edited_andrea import CONFIG, PARAMS, Inner, forward, losses, with_pattern

from andrea_jax.errors import UserError
from andrea_jax.interventions import LogitDifference, Loss, patch, patching, path_patch

RNG = np.random.default_rng(4)
CLEAN = RNG.integers(1, 19, (3, 5))
CORRUPTED = CLEAN.copy()
CORRUPTED[:, 1] = (CORRUPTED[:, 1] + 6) % 18 + 1  # the prompts differ in their second token
ANSWER, WRONG, LAST = np.array([3, 5, 7]), np.array([4, 6, 8]), np.full(3, 4)
METRIC = LogitDifference(ANSWER, WRONG, LAST)


def difference(logits: np.ndarray, i: int) -> float:
    return logits[-1, ANSWER[i]] - logits[-1, WRONG[i]]


@pytest.fixture(scope="module")
def passes() -> dict[str, list]:
    """Logits and inners of every prompt, by hand."""
    return {name: [forward(CONFIG, PARAMS, row) for row in rows] for name, rows in
            (("clean", CLEAN), ("corrupted", CORRUPTED))}  # fmt: skip


def test_a_head_restored_is_its_clean_z_in_the_corrupted_run(passes):
    found = patch(CONFIG, PARAMS, CLEAN, CORRUPTED, METRIC, backend="reference")
    assert list(found.columns[:2]) == ["layer", "head"] and len(found) == 12
    table = found.set_index(["layer", "head"])
    base, goal = (np.array([difference(passes[name][i][0], i) for i in range(3)]) for name in ("corrupted", "clean"))
    for place in ((0, 3), (1, 0)):
        values = []
        for i in range(3):

            def restore(layer: int, inner: Inner, i=i, place=place) -> Inner:
                z = inner.z.copy()
                if layer == place[0]:
                    z[place[1]] = passes["clean"][i][1][layer].z[place[1]]
                return inner._replace(z=z)

            values.append(difference(forward(CONFIG, PARAMS, CORRUPTED[i], restore)[0], i))
        row, expected = table.loc[place], np.mean(values)
        assert row["metric"] == pytest.approx(expected, rel=1e-3, abs=1e-3)
        assert row["effect"] == pytest.approx(expected - base.mean(), rel=1e-3, abs=1e-3)
        assert row["share"] == pytest.approx((expected - base.mean()) / (goal - base).mean(), rel=1e-2, abs=1e-3)
        assert row["low"] <= row["effect"] <= row["high"]


@pytest.mark.slow
def test_positions_before_the_difference_change_nothing_and_the_other_direction_starts_from_the_clean_run():
    targets, asked = np.roll(CLEAN, -1, axis=1), np.zeros((3, 5), bool)
    asked[:, 3] = True
    metric = Loss(targets, asked)
    found = patch(CONFIG, PARAMS, CLEAN, CORRUPTED, metric, by="position", restore=False, backend="reference")
    table = found.set_index(["layer", "position"])
    assert len(table) == 2 * 5
    for position in (0, 4):  # the same token in both; after the position that is asked
        assert (table.xs(position, level="position")["effect"].abs() < 1e-5).all()
    assert (table.xs(1, level="position")["effect"].abs() > 1e-4).any()
    clean = np.mean(
        [losses(forward(CONFIG, PARAMS, row)[0], after)[3] for row, after in zip(CLEAN, targets, strict=True)]
    )
    assert table.loc[(1, 0), "metric"] == pytest.approx(clean, rel=1e-4)


def test_the_masks_of_places_are_those_of_their_names():
    by_head, by_both = (patching._places(CONFIG, by, 5) for by in ("head", "head_position"))
    assert len(by_head) == 1 + 12 and len(by_both) == 1 + 12 * 5
    masks = patching._masks(CONFIG, by_head, 5)
    assert not masks[0].any() and masks[1:].sum(axis=(1, 2, 3)).tolist() == [5] * 12
    ((layer, position, head),) = np.argwhere(patching._masks(CONFIG, by_both[[1 + 7 * 5 + 3]], 5)[0])
    assert (layer, head, position) == (1, 1, 3)  # head 7 of all is 1.1
    of_layer = patching._masks(CONFIG, patching._places(CONFIG, "position", 5)[[1 + 5 + 2]], 5)[0]
    assert of_layer[1, 2].all() and of_layer.sum() == 6


def test_a_path_through_values_moves_what_the_receiver_copies(passes):
    """Only v of the receivers: pattern clean, v of the pass in which the sender's z is corrupted and all else kept."""
    found = path_patch(CONFIG, PARAMS, CLEAN, CORRUPTED, METRIC, [(1, 2), (1, 3)], inputs=("v",), through_mlps=True,
                       backend="reference").set_index(["layer", "head"])  # fmt: skip
    for sender in ((0, 1), (0, 4)):
        values = []
        for i in range(3):

            def send(layer: int, inner: Inner, i=i, sender=sender) -> Inner:
                z = passes["clean"][i][1][layer].z.copy()
                if layer == sender[0]:
                    z[sender[1]] = passes["corrupted"][i][1][layer].z[sender[1]]
                return inner._replace(z=z)

            arriving = forward(CONFIG, PARAMS, CLEAN[i], send)[1][1].v

            def receive(layer: int, inner: Inner, arriving=arriving) -> Inner:
                if layer != 1:
                    return inner
                v = inner.v.copy()
                v[[2, 3]] = arriving[[2, 3]]  # heads 2 and 3 read one key-value head
                return with_pattern(v, inner.pattern)

            values.append(difference(forward(CONFIG, PARAMS, CLEAN[i], receive)[0], i))
        assert found.loc[sender, "metric"] == pytest.approx(np.mean(values), rel=1e-3, abs=1e-3)
        assert abs(found.loc[sender, "effect"]) > 1e-3


def test_no_path_leads_to_a_layers_own_heads_and_other_inputs_are_other_paths(passes):
    settings = {"through_mlps": True, "backend": "reference"}
    found = {inputs: path_patch(CONFIG, PARAMS, CLEAN, CORRUPTED, METRIC, [(1, 2)], inputs=tuple(inputs), **settings)
             for inputs in ("v", "qk", "qkv")}  # fmt: skip
    for table in found.values():
        assert (table.loc[table["layer"] == 1, "effect"].abs() < 1e-5).all()
        assert (table.loc[table["layer"] == 0, "effect"].abs() > 1e-3).any()
    assert not np.allclose(found["v"]["effect"], found["qk"]["effect"], atol=1e-4)
    kept = path_patch(CONFIG, PARAMS, CLEAN, CORRUPTED, METRIC, [(1, 2)], inputs=("v",), backend="reference")
    assert not np.allclose(kept["effect"], found["v"]["effect"], atol=1e-4)  # layer 0's MLP hears the sender


@pytest.mark.slow
def test_direct_paths_to_the_logits_are_all_that_the_last_layer_has():
    direct = path_patch(CONFIG, PARAMS, CLEAN, CORRUPTED, METRIC, "logits", through_mlps=True, backend="reference")
    whole = patch(CONFIG, PARAMS, CLEAN, CORRUPTED, METRIC, restore=False, backend="reference")
    last, first = direct["layer"] == 1, direct["layer"] == 0
    np.testing.assert_allclose(direct.loc[last, "effect"], whole.loc[last, "effect"], rtol=1e-3, atol=1e-4)
    assert not np.allclose(direct.loc[first, "effect"], whole.loc[first, "effect"], atol=1e-3)


def test_batches_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r"must both be tokens \[prompt, seq\] of one shape.*not \[3, 5\] and \[3, 4\]"):
        patch(CONFIG, PARAMS, CLEAN, CORRUPTED[:, :4], METRIC)
    with pytest.raises(UserError, match=r"metric: wrong must have the shape \[3\], not \[2\]"):
        patch(CONFIG, PARAMS, CLEAN, CORRUPTED, METRIC._replace(wrong=WRONG[:2]))
    with pytest.raises(UserError, match=r'by = "heads".*did you mean "head"'):
        patch(CONFIG, PARAMS, CLEAN, CORRUPTED, METRIC, by="heads")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="inputs must be one or more of q, k, v"):
        path_patch(CONFIG, PARAMS, CLEAN, CORRUPTED, METRIC, [(1, 0)], inputs=())
    with pytest.raises(UserError, match=r"head 2\.0: there is none"):
        path_patch(CONFIG, PARAMS, CLEAN, CORRUPTED, METRIC, [(2, 0)])
