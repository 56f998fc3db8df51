"""Every script of experiments/ runs on a tiny setting and answers its question."""

import json

import pandas as pd
import pytest
from scripts import EXPERIMENTS, script

from andrea_jax.compared import Comparison


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.py")), ids=lambda path: path.stem)
def test_a_script_is_short_and_headed_by_its_question_and_its_command(path):
    lines = path.read_text().splitlines()
    heading = lines.index('"""') + 1
    assert sum(line != "" for line in lines[heading:]) <= 80
    assert lines[0].startswith('"""') and lines[0].endswith("?")
    assert lines[2].startswith(f"    python experiments/{path.name}")


@pytest.mark.slow
def test_compare_projections_writes_its_results_and_a_verdict_a_claim(tiny_config, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert script("compare_projections").main([str(tiny_config), "model.n_layer=1", "--repeats", "2"]) == 0
    said = capsys.readouterr().out
    assert [line[:2] for line in said.splitlines() if line[0:1] == "C"] == ["C1", "C3", "C4", "C6"]
    assert "per-head, loop: 12 (36)" in said
    assert (tmp_path / "results/compare_projections/tiny/comparison.json").is_file()
    assert json.loads((tmp_path / "results/claims/C6.json").read_text())["verdict"] == "holds"


@pytest.mark.slow
def test_specialize_trains_a_seed_and_its_control_and_scores_both(tiny_config, tmp_path, capsys):
    where = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert script("specialize").main([str(tiny_config), "--seeds", "3", *where]) == 0
    assert "of 1 seeds" in capsys.readouterr().out
    found = json.loads((tmp_path / "out/specialize.json").read_text())
    assert [(row["seed"], row["n_layer"]) for row in found] == [(3, 2), (3, 1)]
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_what_is_undefined_is_null_in_the_results_of_specialize():
    text = script("specialize").as_json(
        [{"seed": 0, "bracket_score": float("nan"), "control": 0.25, "device": {"a": 1}}]
    )
    assert json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON")) == [
        {"seed": 0, "bracket_score": None, "control": 0.25, "device": {"a": 1}}
    ]


@pytest.mark.slow
def test_seeds_by_vmap_are_timed_beside_one_seed(tiny_config, tmp_path, capsys, monkeypatch):
    study = script("vmapped_seeds")
    monkeypatch.setattr(study, "TURNS", 1)
    assert study.main([str(tiny_config), "--seeds", "2", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "vmapped-seeds.json").read_text())["rows"]
    assert [row["seeds"] for row in rows] == [1, 2]
    one, two = rows
    assert one["times_one"] == 1
    assert two["times_one"] == pytest.approx(two["ms"] / one["ms"])
    assert two["tokens_per_s"] == pytest.approx(one["tokens_per_s"] * 2 / two["times_one"])
    assert "tiny: 2 seeds" in capsys.readouterr().out


def comparison(difference: float = 1e-7, loop: float = 3.0, einsum: float = 1.0, matmuls: int = 12) -> Comparison:
    """Made-up results: a form of the loop's time and matmuls, one of the einsum's time; the fused ones take 1 ms."""
    equality = pd.DataFrame({
        "form": ["per-head, loop"] * 3, "quantity": ["logits", "gradients", "weights there and back"],
        "max_difference": [0.0, difference, 0.0], "tolerance": [2e-5, 2e-5, 0.0],
    })  # fmt: skip
    rows = [
        {"form": form, "passes": passes, "min_ms": ms, "matmuls": n * times}
        for passes, times in (("forward", 1), ("forward + backward", 3))
        for form, ms, n in (
            ("fused, one matrix", 1.0, 2),
            ("fused, three matrices", 1.0, 4),
            ("per-head, einsum", einsum, 4),
            ("per-head, loop", loop, matmuls),
        )
    ]
    return Comparison(equality, pd.DataFrame(rows), {"timing_of": "one layer"})


def test_the_verdicts_follow_the_numbers():
    findings = script("compare_projections").findings
    same, fewer, faster, back = findings(comparison())
    assert (same.claim, same.verdict) == ("C1", "holds")
    assert "1.0e-07, of gradients (per-head, loop)" in same.sentence
    assert (fewer.claim, fewer.verdict) == ("C3", "holds if per-head is computed as loop")
    assert "fused, one matrix: 2 (6)" in fewer.sentence
    assert (faster.claim, faster.verdict) == ("C4", "holds if per-head is computed as loop")
    assert "forward: " in faster.sentence and "per-head, loop 3.00" in faster.sentence
    assert (back.claim, back.verdict) == ("C6", "holds")

    other, fewer, faster, _ = findings(comparison(difference=float("nan"), loop=1.05, einsum=0.25, matmuls=2))
    assert other.verdict == fewer.verdict == faster.verdict == "does not hold"
    assert other.sentence.startswith("not the same to rounding in gradients")


def test_a_comparison_with_a_nan_or_a_difference_beyond_tolerance_is_not_equal():
    assert comparison(difference=2e-5).equal
    assert not comparison(difference=2.1e-5).equal
    assert not comparison(difference=float("nan")).equal


def test_a_number_that_is_not_finite_is_null_in_json():
    found = comparison(difference=float("nan")).as_json()
    assert [row["max_difference"] for row in found["equality"]] == [0.0, None, 0.0]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
