"""Findings about the claims, their page, and every study of them on a tiny setting."""

import importlib.util
import json
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from andrea_jax import claims, seeds

REPOSITORY = Path(__file__).parent.parent
KEPT = REPOSITORY / "docs" / "results" / "claims"


def script(name: str):
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "experiments" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_finding_is_about_a_claim_and_has_one_of_the_verdicts():
    claims.Finding("C7", "holds if W_O is free", "so it is", {})
    with pytest.raises(ValueError, match="C15: is none of C1, C2"):
        claims.Finding("C15", "holds", "", {})
    with pytest.raises(ValueError, match="must be"):
        claims.Finding("C1", "true", "", {})


def test_what_nobody_measured_is_said_to_be_not_measured(tmp_path: Path):
    claims.write(claims.Finding("C6", "holds", "0 of |x|", {"x": math.nan}), tmp_path)
    lines = claims.page(tmp_path).splitlines()
    rows = [line for line in lines if "not measured here |" in line]
    assert len(rows) == len(claims.CLAIMS) - 1
    (measured,) = [line for line in lines if "**holds**" in line]
    assert "0 of ∣x∣" in measured and "(claims/C6.json)" in measured


def test_what_was_found_on_a_gpu_stands_beside_what_was_found_on_a_cpu(tmp_path: Path):
    origin = {"date": "2026-01-02T03:04:05", "command": "-m andrea_jax.cli bench projections", "versions": {"jax": "1"},
              "cpu_count": 16, "device": {"platform": "gpu", "kind": "a GPU", "count": 1}}  # fmt: skip
    claims.write(claims.Finding("C4", "does not hold", "", {}), tmp_path)
    claims.write(claims.Finding("C4", "holds", "", {}, origin), tmp_path)
    cpu, gpu = [line for line in claims.page(tmp_path).splitlines() if line.startswith("| [C4]")]
    assert "(claims/C4.json)" in cpu and "**does not hold**" in cpu and "CPU" in cpu
    assert "(claims/C4-gpu.json)" in gpu and "**holds**" in gpu
    assert "`python -m andrea_jax.cli bench projections`, 2026-01-02, a GPU (16 cores), jax 1" in gpu


def test_the_json_of_a_finding_says_when_by_what_and_on_what_and_has_no_nan(tmp_path: Path):
    path = claims.write(claims.Finding("C6", "holds", "", {"x": [1.5, math.inf], "by_step": {3: math.nan}}), tmp_path)
    found = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert found["numbers"] == {"x": [1.5, None], "by_step": {"3": None}}
    assert {"date", "device", "command", "versions", "commit", "cpu_count"} <= found.keys()


def test_the_page_of_claims_is_that_of_the_findings_kept_beside_it():
    """After copying findings: python experiments/write_claims.py"""
    assert (KEPT.parent / "claims.md").read_text(encoding="utf-8") == claims.page(KEPT)


def test_an_interval_is_left_out_where_seeds_are_too_few():
    assert claims.interval(seeds.mean([0.25])) == "+0.25"
    assert claims.interval(seeds.Estimate(0.25, -0.5, 1.0, 3)) == "+0.25 [-0.50, +1.00]"


def optimizer_row(name: str, first_update: float, matrices: str = "stored") -> dict:
    return {"optimizer": name, "matrices": matrices, "per_head_first_update": first_update,
            "per_head_largest_loss_gap": 0.5, "nudged_first_update": 1e-5,
            "nudged_largest_loss_gap": 0.01}  # fmt: skip


def test_c2_holds_for_the_optimizers_whose_first_updates_agree():
    finding = script("optimizers").finding
    assert finding([optimizer_row("sgd", 1e-6)]).verdict == "holds"
    assert finding([optimizer_row("muon", 0.7)]).verdict == "does not hold"
    rows = [optimizer_row("sgd", 1e-6), optimizer_row("muon", 0.7), optimizer_row("muon", 0.0, "fused")]
    works, sees = "works element by element (sgd)", "sees the same matrices of both (muon)"
    assert finding(rows).verdict == f"holds if the optimizer {works} or {sees}"


def correlated(damage: float) -> pd.DataFrame:
    """Three seeds of four heads of one layer, whose gradients rank as `damage` times their damage does; the rest is
    the same for all heads or, r2, ranks the other way."""
    rows = [{"layer": 0, "head": head, "seed": seed, "step": 9, "weights": head, "gate": head, "damage": damage * head,
             "js": head % 2 if seed else 1 - head % 2, "cka": 1.0, "r2": -head} for seed in range(3)
            for head in range(4)]  # fmt: skip
    return pd.DataFrame(rows)


def test_c9_holds_in_the_meanings_of_unique_that_agree_in_every_seed():
    finding = script("redundancy").finding
    twin = {"r2": 0.0, "gate_ratio": 0.5, "weights_ratio": 0.7, "damage": 0.1, "damage_alone": 0.4}
    assert finding(correlated(1.0), [twin]).verdict == "holds if unique means ablation damage"
    found = finding(correlated(-1.0), [twin])
    assert found.verdict == "does not hold"
    assert "3 seeds, 4 heads each" in found.sentence


def swept(config: Path, folder: Path, values: Sequence[str]) -> Path:
    lines = [f'extends = "{config}"', "[sweep]", *values]
    path = folder / "study.toml"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.slow
def test_the_studies_of_trained_heads_give_their_findings(tiny_config, tmp_path):
    log_spaced = tmp_path / "log-spaced.toml"
    log_spaced.write_text(f'extends = "{tiny_config}"\n[train]\nlog_spaced_checkpoints = true\n')
    study = swept(log_spaced, tmp_path, ['"model.n_layer" = [2, 1]', '"train.seed" = [0, 1]'])
    where = [str(study), "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    order = tmp_path / "order.toml"
    values = '[sweep]\n"data.shuffled" = [false, true]\n"train.seed" = [0, 1]\n'
    order.write_text(f'extends = "{tiny_config}"\n{values}')
    for name, (claim, more) in {"development": ("C8", ["--order", str(order)]), "redundancy": ("C9", [])}.items():
        assert script(name).main([*where, *more]) == 0
        found = json.loads((tmp_path / f"{claim}.json").read_text())
        assert found["verdict"] in ("holds", "does not hold") or found["verdict"].startswith("holds if ")
    twins = json.loads((tmp_path / "C9.json").read_text())["numbers"]["twins"]
    assert len(twins) == 2
    for twin in twins:
        assert twin["js"] == pytest.approx(0, abs=1e-3)
        assert twin["cka"] == pytest.approx(0, abs=1e-3)
        assert twin["gate_ratio"] == pytest.approx(0.5, rel=1e-3)


@pytest.mark.slow
def test_the_studies_of_swept_keys_give_their_findings(tiny_config, tmp_path):
    keys = {"mixing": ("C7", '"model.w_o" = ["free", "identity"]'), "head_count": ("C10", '"model.n_head" = [1, 3]')}
    for name, (claim, key) in keys.items():
        study = swept(tiny_config, tmp_path, [key, '"train.seed" = [0]'])
        assert script(name).main([str(study), "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]) == 0
        found = json.loads((tmp_path / f"{claim}.json").read_text())
        assert found["verdict"] == "does not hold"  # one seed says nothing
        assert len(found["numbers"]["runs"]) == 2
        assert list((tmp_path / claim).glob("*.png"))
    assert json.loads((tmp_path / "C7.json").read_text())["numbers"]["sum_of_heads"] < 1e-5


@pytest.mark.slow
def test_muon_trains_both_projections_alike_where_it_sees_fused_matrices(tiny_config, tmp_path):
    study = swept(
        tiny_config, tmp_path, ['"optim.name" = ["sgd", "muon"]', '"model.projection" = ["fused", "per_head"]']
    )
    assert script("optimizers").main([str(study), "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "C2.json").read_text())["numbers"]["rows"]
    assert [(row["optimizer"], row["matrices"]) for row in rows] == [
        ("sgd", "stored"), ("muon", "stored"), ("muon", "fused"),
    ]  # fmt: skip
    first, nudged = ([row[f"{name}_first_update"] for row in rows] for name in ("per_head", "nudged"))
    assert [a > 10 * b for a, b in zip(first, nudged, strict=True)] == [False, True, False]


@pytest.mark.slow
def test_the_program_of_a_small_model_has_its_steps_by_name(tiny_config, tmp_path):
    assert script("five_steps").main([str(tiny_config), "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "C14.json").read_text())["numbers"]
    assert found["three"] == {"W_Q": 2, "W_K": 2, "W_V": 2, "attention": 4, "W_O": 2}


def test_c5_is_counted_from_the_family(tmp_path):
    where = ["--configs", str(REPOSITORY / "configs"), "--out", str(tmp_path)]
    assert script("parameters").main(where) == 0
    assert script("write_claims").main(["--claims", str(tmp_path), "--out", str(tmp_path / "claims.md")]) == 0
    assert "2,359,296 a layer, 28,311,552 in all, 28.7% of 98,698,752" in (tmp_path / "claims.md").read_text()
