"""What is said of several runs: measures, differences with what the seeds allow, matched heads, reasons for doubt."""

import numpy as np
import pandas as pd
import pytest
from made_runs import BASELINE, SHARES, STEP, made, profile
from scipy import stats

from andrea_jax.errors import UserError
from andrea_jax.sweeps.comparing import RunsCompared, compare_runs

LOSSES = {7: (2.0, 2.3, 2.1), 1: (2.2, 2.45, 2.35)}  # n_head -> loss of seeds 0, 1, 2


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> RunsCompared:
    """One head against seven, three seeds each; the heads of another seed are the same in another order."""
    root, rng = tmp_path_factory.mktemp("runs"), np.random.default_rng(5)
    for n_head, losses in LOSSES.items():
        for seed, loss in enumerate(losses):
            shares = rng.permutation(SHARES) if n_head == 7 else SHARES[[seed]]
            made(root, seed, n_head, loss=loss, shares=shares)
    return compare_runs(list(root.iterdir()))


def measure(found: RunsCompared, name: str) -> dict:
    (row,) = found.differences.loc[found.differences["measure"] == name].to_dict("records")
    return row


def test_the_table_of_runs_has_a_row_a_run_by_their_values(found):
    assert found.keys == ("model.n_head", "train.seed")
    assert found.runs["model.n_head"].tolist() == [1, 1, 1, 7, 7, 7]
    assert found.runs["train.seed"].tolist() == [0, 1, 2, 0, 1, 2]
    assert found.runs["heldout_loss"].tolist() == [2.2, 2.45, 2.35, 2.0, 2.3, 2.1]
    of_seven = found.runs.iloc[3]
    assert of_seven["induction"] == pytest.approx(BASELINE + 0.8 * (1 - BASELINE))
    assert of_seven["specialization"] == pytest.approx(np.linalg.norm(SHARES, axis=1).mean(), abs=1e-6)
    assert (of_seven["in_context"], of_seven["tokens_per_s"], of_seven["n_params"]) == (-0.1, 1e4, 41)
    assert (of_seven["device"], of_seven["jax"], of_seven["data_hash"]) == ("one", "0.12.0", "ab")
    assert np.isnan(of_seven["peak_memory_mib"])


def test_the_table_of_heads_has_a_row_a_run_layer_head_and_probe_with_baseline_and_interval(found):
    heads = found.heads
    assert len(heads) == 3 * 7 * 3 + 3 * 1 * 3
    keys = ["run", "layer", "head", "probe"]
    assert not heads.duplicated(keys).any() and {"score", "low", "high", "baseline", "control", "n"} <= set(heads)
    of_one = heads[(heads["model.n_head"] == 1) & (heads["train.seed"] == 1) & (heads["probe"] == "induction")]
    assert of_one["score"].tolist() == [pytest.approx(BASELINE + 0.8 * (1 - BASELINE))]


def test_a_difference_is_taken_seed_by_seed(found):
    row, by_seed = measure(found, "heldout_loss"), np.subtract(LOSSES[7], LOSSES[1])
    interval = stats.ttest_1samp(by_seed, 0).confidence_interval(0.95)
    assert (row["contrast"], row["keys"], row["n"]) == ("n_head 7 against 1", "model.n_head", 3)
    assert row["difference"] == pytest.approx(by_seed.mean())
    assert (row["low"], row["high"]) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert row["verdict"] == "beyond noise"
    assert max(LOSSES[7]) > min(LOSSES[1])  # as two heaps of seeds they overlap
    assert measure(found, "in_context")["verdict"] == "within noise"


def test_losses_a_byte_are_compared_only_where_tokens_differ(found):
    assert "heldout_loss_per_byte" not in set(found.differences["measure"])
    assert found.runs["heldout_loss_per_byte"].tolist() == [loss / 2 for loss in found.runs["heldout_loss"]]


def test_heads_of_another_seed_match_and_chance_does_not(found):
    seeds = found.matches[found.matches["what"] == "another seed"]
    of_seven = seeds[seeds["n"] == 7]
    assert len(seeds) == 6 and len(of_seven) == 3
    np.testing.assert_allclose(of_seven["distance"], 0, atol=1e-6)
    assert (of_seven["p"] < 0.05).all() and (of_seven["z"] > 2).all() and (of_seven["null"] > 0.1).all()
    assert len(found.matches[found.matches["what"] == "n_head 7 against 1"]) == 3  # the same seed only


def test_runs_that_differ_in_nothing_else_give_no_reason_for_doubt(found):
    assert found.notes == ()


def test_every_value_is_compared_with_the_first_where_all_else_is_equal(tmp_path):
    for n_head in (1, 7):
        for w_o in ("free", "identity"):
            made(tmp_path, 0, n_head, w_o, shares=SHARES[:n_head])
    compared = compare_runs(list(tmp_path.iterdir()))
    assert list(dict.fromkeys(compared.differences["contrast"])) == [
        "w_o identity against free · n_head 1",
        "n_head 7 against 1 · w_o free",
        "n_head 7 against 1 · w_o identity",
        "w_o identity against free · n_head 7",
    ]
    assert set(compared.differences["verdict"]) == {"too few seeds"}
    assert compared.notes == ()


def test_runs_that_differ_in_several_keys_at_once_are_flagged_with_the_keys(tmp_path):
    made(tmp_path, 0, 1, "free", shares=SHARES[:1])
    made(tmp_path, 0, 7, "identity")
    (note,) = compare_runs(list(tmp_path.iterdir())).notes
    assert note == ("n_head 7 against 1, w_o identity against free: model.n_head, model.w_o differ at once, "
                    "so no one of them explains a difference")  # fmt: skip


def test_other_code_data_or_steps_are_reasons_for_doubt(tmp_path):
    a, b = made(tmp_path, 0), made(tmp_path, 1, commit="fedcba9876543210")
    first, second = (run.provenance["sessions"][0] for run in (a, b))
    a.record(sessions=[first | {"dirty": True}, first])
    older = second | {"versions": {"python": "3.12.1", "jax": "0.11.2"}, "runs_together": 3}
    b.record(data_hash="cd", sessions=[older, second])
    (b.checkpoints / str(STEP)).rename(b.checkpoints / "64")
    profile(SHARES).save(b.heads, 64)
    notes = "\n".join(compare_runs([a.path, b.path]).notes)
    assert "trained on different commits: 0123456789 (1 runs), fedcba9876 (1 runs)" in notes
    assert "trained on different versions of jax: 0.12.0 (1 runs), 0.11.2 and 0.12.0 (1 runs)" in notes
    assert "trained on different numbers of seeds at a time: 1 (1 runs), 3 and 1 (1 runs)" in notes
    assert "different data" in notes and "devices" not in notes
    assert f"{b.name}: is compared at step 64 of {STEP}" in notes
    assert "1 of 2 runs were trained by code with uncommitted changes" in notes


def test_one_experiment_counts_once_wherever_it_lies(tmp_path):
    a, b = made(tmp_path / "a"), made(tmp_path / "b")
    with pytest.raises(UserError, match=r"are the same experiment, run [0-9a-f]{8}; name it once"):
        compare_runs([a.path, b.path])
    with pytest.raises(UserError, match="1 finished runs: it takes two to compare"):
        compare_runs([a.path])


def test_two_runs_are_matched_head_by_head_whatever_their_seeds(tmp_path):
    a, b = made(tmp_path, 0), made(tmp_path, 1, rate=1e-2, shares=SHARES[::-1])
    compared = compare_runs([a.path, b.path])
    assert compared.matches["what"].tolist() == ["learning_rate 0.01 against 0.001"]
    assert [table.title for table in compared.tables()][-1] == "Matched heads"


def test_the_development_is_that_of_runs_with_three_scored_checkpoints(tmp_path):
    a, b = made(tmp_path, 0), made(tmp_path, 1)
    for run, steps in ((a, (0, 8)), (b, (8,))):
        for step in steps:
            profile(SHARES * step / STEP).save(run.heads, step)
    table = compare_runs([a.path, b.path]).development
    assert table["run"].tolist() == [a.name] * 3
    assert table["tokens"].tolist() == [0, 8 * 5 * 61, STEP * 5 * 61]
    size = np.linalg.norm(SHARES, axis=1).mean()
    assert table["specialization"].tolist() == pytest.approx([0, 0.08 * size, size], abs=1e-6)


def test_tables_and_figures_are_saved_and_read_back_equal(tmp_path):
    a, b = made(tmp_path / "runs", 0), made(tmp_path / "runs", 0, 1, shares=SHARES[:1])
    for step in (0, 8):
        profile(SHARES[[0]]).save(b.heads, step)
    compared = compare_runs([a.path, b.path])
    pngs = compared.save(tmp_path / "out")
    names = ["measures", "profiles", "specialization", "matched-heads"]
    assert [path.name for path in pngs] == [f"{name}.png" for name in names]
    expected = {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    tables = ("runs", "heads", "differences", "matches", "development")
    expected |= {f"{name}.{kind}" for name in tables for kind in ("csv", "parquet")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == expected
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out/differences.parquet"), compared.differences)


def test_a_run_whose_last_checkpoint_is_gone_but_was_scored_needs_no_parameters(tmp_path):
    a, b = made(tmp_path, 0), made(tmp_path, 1)
    compared = compare_runs([a.path, b.path], step=STEP)
    assert compared.runs["step"].tolist() == [STEP, STEP]
