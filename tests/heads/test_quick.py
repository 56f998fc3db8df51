"""The head profile in one pass is the one in four."""

import numpy as np
import pandas as pd
import pytest
from conftest import VOCAB_SIZE

from andrea_jax import config, heads, model
from andrea_jax.data import Dataset
from andrea_jax.heads import QuickProfile, brackets

SHAPE = config.Model(vocab_size=VOCAB_SIZE, seq_len=61, d_model=16, n_layer=1, n_head=2, positions="rotary")
PROBE = config.Probe(n_sequences=6, periods=(3, 5))  # repeats are 1 + 4·5 = 21 long: padded to 61 in one pass


@pytest.mark.slow
def test_one_pass_over_all_streams_gives_the_tables_of_a_pass_each(dataset_named, monkeypatch: pytest.MonkeyPatch):
    dataset: Dataset = dataset_named("textwrap.py")
    params = model.initialise(SHAPE, 3)
    monkeypatch.setattr(brackets, "WANTED_HARDEST", 1)
    settings = {"seq_len": 61, "dtype": "float32", "backend": "reference"}
    expected = heads.profile(SHAPE, params, dataset, PROBE, **settings)
    found = QuickProfile(SHAPE, dataset, PROBE, **settings)(params)
    assert found.n_tokens == expected.n_tokens == 6 * 61
    for name in ("table", "periods", "offsets"):
        a, b = (getattr(profile, name) for profile in (found, expected))
        if name == "table":  # of brackets the quick one has fewer windows
            a, b = (x[~x["probe"].str.contains("bracket")].reset_index(drop=True) for x in (a, b))
        pd.testing.assert_frame_equal(a, b, rtol=1e-5, atol=1e-6)
    brackets_of = found.table[found.table["probe"] == "bracket"]
    assert not brackets_of["undefined"].any()
    assert np.isfinite(brackets_of["score"]).all()


def test_no_more_sequences_than_the_probe_asks_for_and_no_more_than_32(dataset_named):
    dataset = dataset_named("textwrap.py")
    many = config.Probe(n_sequences=50, periods=(3, 5))
    settings = {"seq_len": 13, "dtype": "float32", "backend": "reference"}
    assert QuickProfile(SHAPE, dataset, PROBE, **settings).n_sequences == 6
    assert QuickProfile(SHAPE, dataset, many, **settings).n_sequences == 32
