"""What a run's heads are worth, from the command line to files; and the smaller run that pruning leaves."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import andrea_jax
from andrea_jax import ablated, cli, reporting, runs
from andrea_jax.config_files import run_id
from andrea_jax.interventions import Damage
from andrea_jax.kept import keep, kept
from andrea_jax.training import evaluate
from andrea_jax.training.evaluation import heldout_set


@pytest.fixture
def copy(tiny_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_run, tmp_path / tiny_run.name))


def andrea(capsys, *words: object) -> str:
    capsys.readouterr()
    assert cli.main([str(word) for word in words]) == 0
    return capsys.readouterr().out


@pytest.fixture
def damage(monkeypatch) -> list[dict]:
    """Stands in for the sweep: a row a kind, and what it was asked."""
    asked: list[dict] = []

    def ablate(config, params, tasks, **settings):
        asked.append(settings)
        return Damage(pd.DataFrame({"kind": settings["kinds"], "call": len(asked)}), 1.0, 1)

    monkeypatch.setattr(ablated.interventions, "ablate", ablate)
    monkeypatch.setattr(ablated, "tasks", lambda loaded: [])
    return asked


def test_zero_comes_with_the_mean_and_kinds_already_known_are_kept(copy, damage):
    run = andrea_jax.load_run(copy)
    ablated.ablation(run, kinds=["zero"])
    assert damage[0]["kinds"] == ["zero", "mean"]
    ablated.ablation(run, kinds=["resample", "mean"])
    table = kept(run.run, "ablation", run.step)
    assert table is not None
    assert dict(zip(table["kind"], table["call"], strict=True)) == {"zero": 1, "resample": 2, "mean": 2}
    assert pd.read_csv(copy / "heads" / "ablation-5.csv").equals(table)


def test_a_set_of_heads_and_a_converted_model_leave_no_table(copy, damage):
    run = andrea_jax.load_run(copy)
    ablated.ablation(run, sets=[[(0, 1), (1, 2)]])
    ablated.ablation(run.converted("per_head"))
    assert len(damage) == 2 and kept(run.run, "ablation", run.step) is None


def test_annotated_text_adds_its_names_to_what_is_asked(copy, tmp_path, monkeypatch):
    row = "{}\t{}\t_\t{}\t_\t_\t0\troot\t_\t_\n"
    page = tmp_path / "page.conllu"
    page.write_text("".join(row.format(i, *word) for i, word in enumerate([("Ann", "PROPN"), ("ran", "VERB")], 1)))
    asked = []
    monkeypatch.setattr(ablated.interventions, "ablate", lambda *args, **_: asked.append(args[2]) or Damage(None, 0, 0))
    monkeypatch.setattr(ablated, "tasks", lambda loaded: [])
    ablated.ablation(andrea_jax.load_run(copy), sets=[[(0, 0)]], conllu=page)
    ((task,),) = asked
    assert task.asked["name"].sum() == 3 and task.inputs.shape[1] == 31  # three bytes


def test_the_report_shows_what_was_asked_before_and_says_what_was_not(copy):
    run = andrea_jax.load_run(copy)
    assert [question.figure for question in reporting.asked(run)] == [None] * 3
    rows = [{"strategy": strategy, "removed": n, "fraction": n / 6, "loss": 2 + n, "damage": n, "low": n, "high": n}
            for strategy in ("importance", "re-estimated", "random") for n in (0, 2, 4)]  # fmt: skip
    keep(run.run, "pruning", run.step, pd.DataFrame(rows))
    found = {question.section: question for question in reporting.asked(run)}
    assert found["Pruning"].figure is not None and found["Importance"].figure is None
    assert found["Importance"].command == f"andrea heads {copy} importance --step 5"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pruning", "--fraction", "0.5"), "--fraction and --out go together"),
        (("ablation", "--kind", "zero,maen"), 'did you mean "mean"'),
        (("ablation", "--heads", "0.1,2.0"), "head 2.0: there is none in a model of 2 layers × 3 heads"),
        (("pruning", "--fraction", "0.9", "--out", "x"), "must take one, and at most 0.67 of them"),
    ],
    ids=str,
)
def test_wrong_arguments_are_answered_before_anything_is_computed(tiny_run, capsys, monkeypatch, words, said):
    monkeypatch.setattr("andrea_jax.interventions.damage.sweep", lambda *a, **k: pytest.fail("computed"))
    assert cli.main(["heads", str(tiny_run), *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_ablation_prints_keeps_and_draws(copy, capsys):
    found = json.loads(andrea(capsys, "heads", copy, "ablation", "--kind", "mean", "--json"))
    assert found["step"] == 5 and found["heads_per_s"] > 0
    assert len(found["table"]) == 6 * 4  # heads, and measures: loss, in_context, induction and its accuracy; no Python
    table = pd.read_parquet(copy / "heads" / "ablation-5.parquet")
    np.testing.assert_allclose(table["damage"], [row["damage"] for row in found["table"]], rtol=1e-5, atol=1e-8)
    out = andrea(capsys, "heads", copy, "ablation", "--heads", "0.1,1.2")
    assert "0.1 1.2" in out and "removed together" in out
    out = andrea(capsys, "heads", copy, "importance")
    assert out.rstrip().endswith("importance.png") and "Rank correlation" in out
    out = andrea(capsys, "heads", copy, "pruning")
    assert (copy / "figures" / "pruning.svg").exists() and (copy / "heads" / "pruning-5.csv").exists()
    assert all(question.figure is not None for question in reporting.asked(andrea_jax.load_run(copy)))


@pytest.mark.slow
def test_a_pruned_run_opens_scores_and_is_looked_at_like_any_other(copy, capsys, tmp_path):
    out = json.loads(
        andrea(capsys, "heads", copy, "pruning", "--fraction", 0.34, "--out", tmp_path / "small", "--json")
    )
    run = andrea_jax.load_run(out["run"])
    model = run.experiment.model
    assert sum(model.layer_heads) == 4 and model.n_head == 3 and len(out["heads"]) == 2
    assert run.run.name == f"tiny-pruned-{run_id(run.experiment)}" and run.step == 5
    assert run.run.provenance["pruned"]["from"] == str(copy)
    loaded = andrea_jax.load_run(copy)
    windows = heldout_set(run.dataset, 31)
    measured = evaluate(model, run.params, windows, run.tokenizer, compute=run.experiment.compute, batch_size=7)
    assert out["eval_loss"] == pytest.approx(measured["loss"], rel=1e-6)
    heads = run.profile().table[["layer", "head"]].drop_duplicates()
    assert [tuple(row) for row in heads.to_numpy()] == [
        (i, h) for i, n in enumerate(model.layer_heads) for h in range(n)
    ]
    assert "⟨bos⟩" in run.view("x = (a)").html
    assert cli.main(["train", out["run"]]) == 0 and "is finished" in capsys.readouterr().err
    with pytest.raises(andrea_jax.errors.UserError, match="exists already"):
        ablated.prune_run(loaded, 0.34, tmp_path / "small")
    assert runs.Run.open(out["run"]).metrics()[-1]["eval_loss"] == out["eval_loss"]
