"""The whole profile on a hand-built model whose heads are known."""

import dataclasses
import string
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from andrea_jax import heads
from andrea_jax.config import Probe
from andrea_jax.errors import UserError
from andrea_jax.heads import Profile, streams, targets

PROBES = ["previous_token", "current_token", "first_token", "duplicate_token", "delimiter", "newline", "induction",
          "induction_all", "bracket", "bracket_at_closer", "open_bracket", "entropy", "offset"]  # fmt: skip
T, PERIODS = 61, (7, 11, 17)
OFFSET = 10  # right for period 11 only


@pytest.fixture(scope="module")
def progress() -> list[tuple[int, int]]:
    return []


@pytest.fixture(scope="module")
def profile(dataset_named, vocab_size: int, progress) -> Profile:
    config, params = heads.planted(vocab_size, T, OFFSET)
    probe = Probe(n_sequences=10, periods=PERIODS)
    data = dataset_named("textwrap.py")
    return heads.profile(config, params, data, probe, seq_len=T, progress=lambda *done: progress.append(done))


def row(table: pd.DataFrame, probe: str, layer: int, head: int) -> pd.Series:
    rows = table[(table["probe"] == probe) & (table["layer"] == layer) & (table["head"] == head)]
    assert len(rows) == 1
    return rows.iloc[0]


def test_the_previous_token_head_is_found_on_text_and_on_random_tokens(profile: Profile):
    best = profile.best.set_index("probe").loc["previous_token"]
    assert (best["layer"], best["head"]) == (0, 0)
    assert best["score"] == pytest.approx(1, abs=1e-5) and best["control"] == pytest.approx(1, abs=1e-5)
    assert best["n"] == 5 * (T - 1)


def test_the_induction_head_passes_at_every_period_and_fails_at_wrong_offsets(profile: Profile):
    best = profile.best.set_index("probe")
    for probe in ("induction", "induction_all"):
        assert (best.loc[probe, "layer"], best.loc[probe, "head"]) == (1, 0)
        assert best.loc[probe, "score"] == pytest.approx(1, abs=1e-4)
        assert best.loc[probe, "control"] < 1e-6
    periods = profile.periods[(profile.periods["layer"] == 1) & (profile.periods["head"] == 0)]
    assert periods["period"].tolist() == [*PERIODS, *PERIODS]
    np.testing.assert_allclose(periods["score"], 1, atol=1e-4)


def test_a_fixed_offset_head_passes_at_one_period_and_is_caught_by_the_control(profile: Profile):
    found = profile.periods.query("layer == 1 and head == 1 and probe == 'induction'").set_index("period")
    assert found.loc[11, "score"] == pytest.approx(1, abs=1e-5)
    assert found.loc[17, "score"] < 1e-6
    whole = row(profile.table, "induction", 1, 1)
    assert whole["control"] == pytest.approx(1, abs=1e-5) and whole["control"] > 2 * whole["score"]


def test_a_uniform_head_scores_the_baseline_on_every_probe(profile: Profile):
    uniform = profile.table[(profile.table["layer"] == 0) & (profile.table["head"] == 1)]
    assert len(uniform) == len(PROBES) and not uniform["undefined"].any()
    np.testing.assert_allclose(uniform["score"], uniform["baseline"], rtol=2e-5)


def test_delimiter_and_newline_ask_held_out_text_and_have_one_target_a_query(dataset_named):
    dataset = dataset_named("x.txt")
    stream = streams.text(dataset, T, 4, 0)
    for probe, wanted in (("delimiter", string.punctuation), ("newline", "\n")):
        expected = []
        for i, row in enumerate(stream.tokens.tolist()):
            latest = None
            for q, token in enumerate(row):
                expected += [] if latest is None else [(i, q, latest)]
                latest = q if token and dataset.tokenizer.decode([token]) in wanted else latest
        found = stream.targets[probe]
        assert list(zip(*(x.tolist() for x in (found.sequence, found.query, found.key)), strict=True)) == expected
        assert len(expected) > 4


def test_every_number_has_its_companions(profile: Profile):
    table = profile.table
    assert list(table.columns[:11]) == ["probe", "layer", "head", "score", "low", "high", "baseline", "off_bos", "n",
                                        "control", "undefined"]  # fmt: skip
    assert list(profile.best.columns) == list(table.columns)
    assert list(profile.best["probe"]) == PROBES and len(table) == len(PROBES) * 4
    assert (table["low"] <= table["score"] + 1e-6).all() and (table["score"] <= table["high"] + 1e-6).all()
    assert table["score"].dtype == np.float32
    with_control = set(table.loc[table["control"].notna(), "probe"])
    assert with_control == {"previous_token", "induction", "induction_all"}


def test_the_fixed_offset_head_has_its_distance_and_the_curve_peaks_there(profile: Profile):
    assert row(profile.table, "offset", 1, 1)["offset"] == OFFSET
    curve = profile.offsets.query("layer == 1 and head == 1").set_index("offset")["mass"]
    assert curve.index.tolist() == list(range(33))
    assert curve.idxmax() == OFFSET and curve[OFFSET] == pytest.approx(1, abs=1e-5)


def test_specialization_is_0_for_a_uniform_head_and_near_1_for_one_behaviour(profile: Profile):
    found = heads.specialization(profile).set_index(["layer", "head"])["specialization"]
    assert found[0, 1] == pytest.approx(0, abs=1e-5)
    table = profile.table[(profile.table["layer"] == 0) & (profile.table["head"] == 0)].set_index("probe")
    behaviours = ["previous_token", "current_token", "first_token", "duplicate_token", "induction", "bracket"]
    shares = [(table["score"][p] - table["baseline"][p]) / (1 - table["baseline"][p]) for p in behaviours]
    assert found[0, 0] == pytest.approx(np.sqrt(np.square(shares).sum()), rel=1e-5)


def test_progress_counts_the_sequences_of_all_streams(profile: Profile, progress: list[tuple[int, int]]):
    done, totals = zip(*progress, strict=True)
    assert list(done) == sorted(set(done)) and set(totals) == {done[-1]}


def test_a_profile_survives_its_files(profile: Profile, tmp_path: Path):
    profile.save(tmp_path / "heads", 7)
    names = {path.name for path in (tmp_path / "heads").iterdir()}
    assert names == {f"{name}-7.parquet" for name in ("profile", "best", "periods", "offsets", "brackets")}
    loaded = Profile.load(tmp_path / "heads", 7)
    for field in dataclasses.fields(Profile):
        pd.testing.assert_frame_equal(getattr(loaded, field.name), getattr(profile, field.name))
    with pytest.raises(UserError, match="step 8 has no head profile"):
        Profile.load(tmp_path / "heads", 8)
    path = tmp_path / "heads" / "best-7.parquet"
    path.write_bytes(path.read_bytes()[:90])
    with pytest.raises(UserError, match=r"best-7\.parquet: is damaged; remove .*heads, and its tables"):
        Profile.load(tmp_path / "heads", 7)


def test_without_python_text_brackets_are_undefined_and_say_why(dataset_named, vocab_size: int):
    config, params = heads.planted(vocab_size, T, OFFSET)
    found = heads.profile(
        config, params, dataset_named("textwrap.txt"), Probe(n_sequences=10, periods=PERIODS), seq_len=T
    )
    asked = ["bracket", "bracket_at_closer", "open_bracket"]
    rows = found.table[found.table["probe"].isin(asked)]
    assert len(rows) == 12 and rows["undefined"].all() and rows["score"].isna().all() and (rows["n"] == 0).all()
    assert rows["reason"].str.contains("Python").all()
    best = found.best.set_index("probe").loc["bracket"]
    assert best["undefined"] and best.isna()["layer"] and found.brackets.empty
    assert not found.table[~found.table["probe"].isin(asked)]["undefined"].any()


def test_a_head_that_attends_to_the_preceding_token_is_not_induction(dataset_named, vocab_size: int):
    period = 11
    stream = streams.repeats(dataset_named("x.py"), (period, 7), T, 4, 0)
    config, params = heads.planted(vocab_size, T, period + 1)  # on k − 1, k the earlier copy
    mine = stream.period == period
    tokens = stream.tokens[mine]
    found = heads.measure(config, params, tokens, {"i": targets.induction(tokens)}).probes["i"]
    assert (found.n == period).all()
    # the first query of the second copy has no token that precedes its copy but BOS, which is k − 1 as well
    assert (found.mass[:, 1, 1] / period < 1e-6).all()


def test_repeats_ask_the_second_copy_first_and_no_more_than_four(dataset_named):
    stream = streams.repeats(dataset_named("x.py"), PERIODS, T, 10, 0)
    assert stream.tokens.shape == (12, T)  # an even number a period
    assert stream.period.tolist() == [7, 7, 11, 11, 17, 17] * 2
    for sequence, period in enumerate(stream.period.tolist()):
        first, every = (stream.targets[name].counted(12, T)[sequence] for name in ("induction", "induction_all"))
        copies = {7: 4, 11: 4, 17: 3}[period]  # 60 tokens after BOS
        assert np.flatnonzero(first).tolist() == list(range(period + 1, 2 * period + 1))
        assert np.flatnonzero(every).tolist() == list(range(period + 1, copies * period + 1))


def test_periods_that_do_not_fit_are_refused(dataset_named):
    with pytest.raises(UserError, match=r"up to \(seq_len - 1\) // 2 = 8, not \[5, 9\]"):
        streams.repeats(dataset_named("x.py"), (5, 9), 17, 4, 0)


def test_saving_a_profile_leaves_files_of_other_names_alone(profile: Profile, tmp_path: Path):
    other = tmp_path / "profile-7.parquet.tmp"
    other.write_text("of another process")
    profile.save(tmp_path, 7)
    assert other.read_text() == "of another process"
