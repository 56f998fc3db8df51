"""The scoring benchmark, tiny: its rows, what is said without TransformerLens, and what is compared with it."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from andrea_jax import benchmarks
from andrea_jax.benchmarks import lens, programs, results, scoring, timing
from andrea_jax.config import Model
from andrea_jax.heads import scores
from andrea_jax.model import abstract
from andrea_jax.plots import scoring_figures

CONFIG = Model(vocab_size=17, seq_len=23, d_model=24, n_layer=1, n_head=3, positions="rotary")
TINY = scoring.Sizes(CONFIG, CONFIG, tokens=46, seqs=(23,), ablation=(2, 7))


@pytest.fixture
def _quick(monkeypatch):
    monkeypatch.setattr(timing, "TARGET", 1e-4)
    monkeypatch.setattr(programs, "HOST", 2.0)  # no chain
    monkeypatch.setattr(results, "limits", lambda dtype, repeats: {"ceiling_tflops": 1.5, "smallest_us": 0.25})


@pytest.mark.usefixtures("_quick")
def test_every_contender_has_a_row_and_who_is_absent_is_said(tmp_path):
    benchmarks.bench_scoring(tmp_path, sizes=TINY, peer=False, repeats=2)
    found = json.loads((tmp_path / "scoring.json").read_text())
    rows = {row["contender"]: row for row in found["rows"]}
    assert list(rows) == ["forward pass", "all scores", "forward pass and all scores",
                          "TransformerLens, three scores", "ablation of every head"]  # fmt: skip
    both = rows["forward pass and all scores"]
    assert both["ratio"] == pytest.approx(both["us"] / rows["forward pass"]["us"])
    assert rows["ablation of every head"]["heads_per_s"] > 0
    assert rows["TransformerLens, three scores"]["reason"] == "not asked for"
    assert any("not run: TransformerLens" in text for text in found["verdicts"])
    assert (tmp_path / "scoring.png").is_file()


def test_every_probe_has_targets_on_the_sequences_that_are_timed():
    config, tokens = scoring._scored(dataclasses.replace(TINY, tokens=83), 41)
    asked = scoring.probes(tokens)
    assert tokens.shape == (2, 41) and tokens.max() < config.vocab_size and len(asked) == 6 + 33
    assert all(len(found.key) for found in asked.values())


@pytest.mark.skipif(lens.absent() is not None, reason="needs torch and transformer_lens")
def test_transformer_lens_computes_the_same_scores():
    config, tokens = scoring._scored(TINY, 23)
    asked = {name: scoring.probes(tokens)[name] for name in lens.SCORES}
    rng = np.random.default_rng(3)  # weights whose patterns are far from even
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.5, x.shape), x.dtype), abstract(config))
    theirs, ours = (
        lens.measure(config, params, tokens, asked, 1)["scores"],
        scores.measure(config, params, tokens, asked),
    )
    for name, sums in ours.probes.items():
        np.testing.assert_allclose(theirs[name], sums.mass.sum(0) / sums.n.sum(), atol=1e-5)


def test_the_verdicts_compare_with_what_was_promised():
    def row(contender: str, **values) -> dict:
        return {"contender": contender, "seq": 1024, "batch": 1, "reason": None, "us": 100.0, "ratio": 1.0, **values}

    rows = [row("forward pass", temp_mib=9.0), row("all scores", us=120.0, ratio=1.2, temp_mib=10.0),
            row("forward pass and all scores", us=130.0, ratio=1.3, temp_mib=11.0),
            row("TransformerLens, three scores", us=720.0, temp_mib=40.0, off_by=1e-6)]  # fmt: skip
    said = scoring_figures.verdicts(rows)
    assert said[:2] == [
        "all scores take at most 1.25 times a plain forward pass: true: 1.20 times",
        "forward pass and all scores take at most 1.25 times a plain forward pass: "
        "NOT true at every length: 1.30 times",
    ]
    assert "NOT true at every length: 6.0 times as fast, 4.0 times less memory" in said[-1]
