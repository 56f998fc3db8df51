"""Every study of a claim: its verdict from numbers by hand, and all of it on a tiny setting."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scripts import script

from andrea_jax.sweeps.comparing import RunsCompared

REPOSITORY = Path(__file__).parent.parent
UP, DOWN, NOISE = (0.1, 0.3), (-0.3, -0.1), (-0.1, 0.3)  # intervals


def swept_runs(key: str, values: Sequence, **intervals: tuple) -> RunsCompared:
    """Two values of a key, three seeds each; of each measure the interval of the second against the first."""
    rows = [{key: value, "train.seed": seed, "n_params": 41, "heldout_loss": 2.0 + seed, "specialization": 0.5,
             "induction": 0.1} for value in values for seed in range(3)]  # fmt: skip
    text = f"{key.partition('.')[2]} {values[1]} against {values[0]}"
    found = [{"contrast": text, "measure": name, "difference": (low + high) / 2, "low": low, "high": high, "n": 3}
             for name, (low, high) in intervals.items()]  # fmt: skip
    nothing = pd.DataFrame()
    return RunsCompared(keys=(key,), notes=(), runs=pd.DataFrame(rows), differences=pd.DataFrame(found), heads=nothing,
                        matches=nothing, development=nothing, measured=())  # fmt: skip


def test_c10_is_judged_from_the_runs_of_both_widths_and_drawn_with_a_point_a_run():
    noise = {"heldout_loss": NOISE, "specialization": NOISE, "induction": NOISE}
    narrow = swept_runs("model.n_head", [1, 6], **{**noise, "specialization": UP})
    wide = swept_runs("model.n_head", [1, 7], **noise)
    rates = [9e4, 8e4, 9e4, 5e4, 6e4, 7e4]
    found = script("head_count").finding({48: narrow, 56: wide}, [*rates, *(2 * rate for rate in rates)])
    assert found.verdict.startswith(
        "holds if specialization (d_model 48, n_head 6) is meant; the loss and the best induction score differ"
    )
    assert found.sentence.startswith("parameters, 41 at d_model 48, 41 at d_model 56; d_model 48, n_head 6 against 1: ")
    assert found.sentence.endswith("by n_head, d_model 48: 1 87, 6 60; d_model 56: 1 173, 7 120")
    *_, speed = found.figure.axes
    points = [float(y) for line in speed.lines if line.get_linestyle() == "None" for y in line.get_ydata()]
    assert sorted(y for y in points if y == y) == [5e4, 6e4, 7e4, 8e4, 9e4, 9e4, 1e5, 1.2e5, 1.4e5, 1.6e5, 1.8e5, 1.8e5]
    labels = [text.get_text() for text in speed.get_xticklabels()]
    assert labels == ["1\n×48", "6\n×8", " ", "1\n×56", "7\n×8"]


def test_c7_holds_in_no_meaning_where_the_heads_do_not_add_up():
    runs = swept_runs("model.w_o", ["free", "identity"], heldout_loss=UP, specialization=DOWN, induction=DOWN)
    finding = script("mixing").finding
    assert finding(runs, 1e-7).verdict == "holds"
    assert finding(runs, 1e-4).verdict == "does not hold"


def optimizer_rows(name: str, first_update: float, matrices: str = "stored", gap: float = 0.5) -> list[dict]:
    """Three seeds, whose losses are up to gap + 0, 0.01, 0.02 apart, and by rounding up to 0.01."""
    gaps = {"per_head": np.array([0.0, gap]), "nudged": np.array([0.0, 0.01])}
    return [{"optimizer": name, "matrices": matrices, "seed": seed, "gaps": gaps, "per_head_first_update": first_update,
             "per_head_largest_loss_gap": gap + 0.01 * seed, "nudged_first_update": 1e-5,
             "nudged_largest_loss_gap": 0.01, "parts_at_step": None if seed else 2} for seed in range(3)]  # fmt: skip


def test_c2_holds_for_the_optimizers_whose_first_updates_agree_in_every_seed():
    finding = script("optimizers").finding
    assert finding([optimizer_rows("sgd", 1e-6)]).verdict == "holds"
    assert finding([optimizer_rows("muon", 0.7)]).verdict == "does not hold"
    once = optimizer_rows("sgd", 1e-6)
    once[1]["per_head_first_update"] = 0.7
    assert finding([once]).verdict == "does not hold"
    found = finding([optimizer_rows("sgd", 1e-6), optimizer_rows("muon", 0.7), optimizer_rows("muon", 0.0, "fused")])
    works, sees = "works element by element (sgd)", "sees the same matrices of both (muon)"
    assert found.verdict == f"holds if the optimizer {works} or {sees}"
    assert "gaps" not in found.numbers["rows"][0] and len(found.numbers["rows"]) == 9


def test_c2_says_whether_losses_part_by_more_than_rounding_makes_them():
    sentence = script("optimizers").sentence
    # means 0.51 − 0.01; t(2)·s/√3 = 4.3027·0.01/1.7321 = 0.0248
    assert sentence(optimizer_rows("muon", 0.7, "fused")) == (
        "muon on fused matrices: first updates 7e-01 of the largest apart, losses part at step 2 in 1 of 3 seeds, up "
        "to 0.5200 nats (rounding alone: 0.0100; on average +0.5000 [+0.4752, +0.5248], beyond noise)"
    )
    assert "within noise" in sentence(optimizer_rows("sgd", 1e-6, gap=0.0))


def test_losses_part_where_they_are_ten_times_further_apart_than_rounding_has_made_them():
    parting = script("optimizers").parting
    nudged = np.array([0, 1e-4, 1e-7, 1e-7])
    assert parting(np.array([9e-6, 9e-4, 9e-4, 2e-3]), nudged) == 4
    assert parting(np.array([2e-5, 0, 0, 0]), nudged) == 1
    assert parting(np.array([9e-6, 9e-4, 9e-4, 9e-4]), nudged) is None


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
        assert (tmp_path / f"{claim}.png").exists()
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
        wide = tmp_path / "wide.toml"
        wide.write_text(study.read_text().replace("[sweep]", "model.d_model = 48\n[sweep]"))
        wider = ["--wider", str(wide)] if claim == "C10" else []
        assert script(name).main([str(study), "--runs", str(tmp_path / "runs"), "--out", str(tmp_path), *wider]) == 0
        found = json.loads((tmp_path / f"{claim}.json").read_text())
        assert found["verdict"] == "not measured here"  # one seed says nothing
        assert (tmp_path / f"{claim}.png").exists()
        assert len(found["numbers"]["runs"]) == 2 * (1 + (claim == "C10"))
        assert list((tmp_path / claim).rglob("*.png"))
    assert json.loads((tmp_path / "C7.json").read_text())["numbers"]["sum_of_heads"] < 1e-5


@pytest.mark.slow
def test_muon_trains_both_projections_alike_where_it_sees_fused_matrices(tiny_config, tmp_path):
    values = ['"optim.name" = ["sgd", "muon"]', '"model.projection" = ["fused", "per_head"]', '"train.seed" = [0, 1]']
    study = swept(tiny_config, tmp_path, values)
    assert script("optimizers").main([str(study), "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "C2.json").read_text())["numbers"]["rows"]
    assert [(row["optimizer"], row["matrices"], row["seed"]) for row in rows] == [
        ("sgd", "stored", 0), ("sgd", "stored", 1), ("muon", "stored", 0), ("muon", "stored", 1),
        ("muon", "fused", 0), ("muon", "fused", 1),
    ]  # fmt: skip
    first, nudged = ([row[f"{name}_first_update"] for row in rows] for name in ("per_head", "nudged"))
    assert [a > 10 * b for a, b in zip(first, nudged, strict=True)] == [False, False, True, True, False, False]
    assert (tmp_path / "C2.png").exists()


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
