"""Two runs side by side: what differs, and what a matching of heads is worth."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from andrea_jax import runs, side_by_side
from andrea_jax.config import Experiment, Model, Optim, Probe, Train
from andrea_jax.heads import Profile
from andrea_jax.loaded import LoadedRun
from andrea_jax.side_by_side import compare

BASELINE = 0.2
# seven heads of known shares: previous_token, induction, duplicate_token
SHARES = np.array([[0.9, 0, 0], [0, 0.8, 0], [0, 0, 0.7], [0.5, 0.5, 0], [0, 0.4, 0.6], [0.1, 0.1, 0.1], [0.6, 0, 0.3]])
BEHAVIOURS = ("previous_token", "induction", "duplicate_token")


def profile(shares: np.ndarray, half_width: float = 0.02, undefined: tuple[str, ...] = ()) -> Profile:
    """All heads in layer 0; the best head is that with the largest share."""
    rows = []
    for j, probe in enumerate(BEHAVIOURS):
        for head, share in enumerate(shares[:, j]):
            score = np.nan if probe in undefined else BASELINE + share * (1 - BASELINE)
            rows.append({"probe": probe, "layer": 0, "head": head, "score": score, "low": score - half_width,
                         "high": score + half_width, "baseline": BASELINE, "control": None, "n": 9,
                         "undefined": probe in undefined})  # fmt: skip
    table = pd.DataFrame(rows)
    best = table.sort_values("score", ascending=False).drop_duplicates("probe")
    best.loc[best["undefined"], "n"] = 0
    nothing = pd.DataFrame({"none": []})
    return Profile(table, best.reset_index(drop=True), nothing, nothing, nothing)


def opened(root: Path, scored: Profile, step: int = 100, data_hash: str = "ab", **sections: object) -> LoadedRun:
    model = Model(vocab_size=300, seq_len=64, d_model=56, n_layer=1, n_head=7)
    run = runs.create(root, Experiment(**({"model": model} | sections)), "made")  # pyright: ignore[reportArgumentType]
    run.record(data_hash=data_hash)
    run.append_metrics({"step": 100, "tokens": 9, "loss": 2.5})
    run.append_metrics({"step": 100, "eval_loss": 2.0, "eval_loss_per_byte": 1.0, "eval_in_context": -0.1})
    scored.save(run.heads, step)
    return LoadedRun(run, {}, step)


def test_a_run_beside_itself_differs_in_nothing(tmp_path):
    run = opened(tmp_path, profile(SHARES))
    found = compare(run, run)
    assert found.config.empty and found.notes == ()
    assert (found.losses["difference"] == 0).all() and len(found.losses) == 4
    assert not found.scores["beyond"].any()
    assert found.distance == 0 and (found.heads["head_a"] == found.heads["head_b"]).all()


def test_heads_that_were_shuffled_are_found_again(tmp_path):
    order = np.array([3, 0, 6, 1, 5, 2, 4])  # head i of b does what head order[i] of a does
    found = compare(opened(tmp_path / "a", profile(SHARES)), opened(tmp_path / "b", profile(SHARES[order])))
    pairs = {(row["head_a"], row["head_b"]) for row in found.heads.to_dict("records")}
    assert pairs == {(f"0.{order[i]}", f"0.{i}") for i in range(7)}
    assert found.distance == pytest.approx(0, abs=1e-6)
    assert found.random.low > 0.3 and found.scrambled.low > 0.1
    assert found.heads.set_index("head_a").loc["0.1", "does"] == "induction"
    assert found.heads.set_index("head_a").loc["0.1", "share_b"] == pytest.approx(0.8, abs=1e-6)


def test_a_matching_on_one_behaviour_alone_beats_random_and_says_nothing(tmp_path):
    one = SHARES * np.array([1, 0, 0])
    found = compare(opened(tmp_path / "a", profile(one)), opened(tmp_path / "b", profile(one[::-1])))
    assert found.distance == pytest.approx(0, abs=1e-6) and found.random.mean > 0.2
    assert found.scrambled.mean == pytest.approx(0, abs=1e-6)  # any deal of one behaviour matches as well


def test_scrambled_heads_match_as_well_as_the_scrambled_null():
    rng = np.random.default_rng(4)
    dealt = rng.permuted(SHARES, axis=0)
    distance = side_by_side.distances(SHARES, dealt)[side_by_side.match(SHARES, dealt)].mean()
    null = side_by_side._null(SHARES, SHARES, 0, scramble=True)
    assert null.low <= distance <= null.high
    assert null.high < side_by_side._null(SHARES, SHARES, 0, scramble=False).mean


def test_with_fewer_heads_on_one_side_the_rest_stays_unmatched(tmp_path):
    found = compare(opened(tmp_path / "a", profile(SHARES)), opened(tmp_path / "b", profile(SHARES[[4, 1, 6]])))
    pairs = {(row["head_a"], row["head_b"]) for row in found.heads.to_dict("records")}
    assert pairs == {("0.4", "0.0"), ("0.1", "0.1"), ("0.6", "0.2")}


def test_beyond_means_that_the_intervals_do_not_meet(tmp_path):
    lower = SHARES.copy()
    lower[1, 1] = 0.77  # induction: the score falls by 0.03 · 0.8 = 0.024 of intervals ±0.02: they meet
    lower[0, 0] = 0.84  # previous token: by 0.048: they do not
    found = compare(opened(tmp_path / "a", profile(SHARES)), opened(tmp_path / "b", profile(lower)))
    scores = found.scores.set_index("probe")
    assert scores["beyond"].to_dict() == {"previous_token": True, "induction": False, "duplicate_token": False}
    assert scores.loc["previous_token", "difference"] == pytest.approx(-0.048)


def test_only_keys_that_differ_are_shown(tmp_path):
    a = opened(tmp_path, profile(SHARES))
    b = opened(tmp_path, profile(SHARES), train=Train(seed=3), optim=Optim(name="muon"))
    assert compare(a, b).config.to_dict("records") == [
        {"key": "optim.name", "a": "adamw", "b": "muon"},
        {"key": "train.seed", "a": 0, "b": 3},
    ]


def test_losses_are_those_of_the_compared_step_and_null_where_it_has_none(tmp_path):
    a, b = opened(tmp_path / "a", profile(SHARES), step=64), opened(tmp_path / "b", profile(SHARES))
    losses = compare(a, b).losses.set_index("measure")
    assert losses["a"].isna().all() and losses["difference"].isna().all()
    assert losses["b"].to_dict() == {"training loss": 2.5, "held-out loss": 2.0, "held-out loss a byte": 1.0,
                                     "in-context score": -0.1}  # fmt: skip


def test_unequal_data_and_unequal_probes_are_said(tmp_path):
    a = opened(tmp_path / "a", profile(SHARES))
    (other_data,) = compare(a, opened(tmp_path / "b", profile(SHARES), data_hash="cd")).notes
    (other_probe,) = compare(a, opened(tmp_path / "c", profile(SHARES), probe=Probe(n_sequences=8))).notes
    assert "different data" in other_data and "different sequences" in other_probe


def test_a_behaviour_that_is_undefined_on_one_side_is_not_matched_on(tmp_path):
    b = profile(SHARES, undefined=("duplicate_token",))
    found = compare(opened(tmp_path / "a", profile(SHARES)), opened(tmp_path / "b", b))
    assert "duplicate_token" not in set(found.heads["does"])
    assert found.scores.set_index("probe")["head_b"].isna().to_dict() == {
        "previous_token": False,
        "induction": False,
        "duplicate_token": True,
    }


def test_both_reprs_hold_the_names_the_tables_and_the_nulls(tmp_path):
    a, b = opened(tmp_path / "a", profile(SHARES)), opened(tmp_path / "b", profile(SHARES), train=Train(seed=1))
    found = compare(a, b)
    for shown in (repr(found), found._repr_html_()):
        for words in (
            a.run.name,
            b.run.name,
            "train.seed",
            "held-out loss",
            "7 heads matched",
            "at random",
            "scrambled",
        ):
            assert words in shown, words
