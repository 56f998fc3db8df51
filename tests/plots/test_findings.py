import dataclasses

import numpy as np
import pandas as pd
import plot_data
import pytest

from andrea_jax.config import Data, Experiment, Model, Probe
from andrea_jax.plots import Pattern, findings


def best(*rows: dict) -> pd.DataFrame:
    return pd.DataFrame(rows)


def test_a_head_that_only_keeps_a_distance_is_not_called_an_induction_head():
    positional = plot_data.row("induction", 1, 2, 0.8, 0.01, 0.03) | {"control": 0.7}
    previous = plot_data.row("previous_token", 0, 1, 0.6, 0.01, 0.1)
    assert findings.profile(best(positional, previous)).startswith(
        "Head 0.1 puts 0.60 of its attention on the previous"
    )
    said = " ".join(findings.summary(experiment(), [], best(positional, previous), pd.DataFrame(), None))
    assert "0.70 at the offsets of wrong periods: no more than a fixed offset" in said


def test_induction_is_named_before_a_higher_score_on_another_probe():
    induction = plot_data.row("induction", 1, 2, 0.61, 0.01, 0.03)
    previous = plot_data.row("previous_token", 0, 1, 0.99, 0.005, 0.1)
    assert findings.profile(best(previous, induction)).startswith("Head 1.2 puts 0.61")


def test_nothing_above_the_null_is_said_as_plainly_as_a_find():
    table = best(plot_data.row("induction", 1, 2, 0.05, 0.03, 0.03), plot_data.row("first_token", 0, 0, 0.1, 0.01, 0.2))
    assert findings.profile(table) == "No head lies above its null on any probe"
    said = findings.summary(experiment(), [], table, pd.DataFrame(), None)
    assert "No head rises above uniform attention on: induction and first token." in said


def test_rounding_does_not_lift_an_even_head_above_its_baseline():
    even = plot_data.row("first_token", 0, 1, 0.0600001, 0.0, 0.06)
    assert findings.absent(best(even)) == ["first_token"]
    assert findings.found(best(even)).empty


def test_a_probe_without_targets_is_neither_found_nor_absent():
    undefined = plot_data.row("bracket", 0, 0, 0.0, 0.0, 0.0, undefined=True)
    table = best(undefined, plot_data.row("induction", 1, 2, 0.61, 0.01, 0.03))
    assert list(findings.found(table)["probe"]) == ["induction"]
    assert findings.absent(table) == []
    said = findings.summary(experiment(), [], table, pd.DataFrame(), None)
    assert "Nothing can be said on: bracket (no query has a target)." in said


@pytest.mark.parametrize(("of_openers", "verdict"), [(0.28, "A head finds"), (0.26, "No head finds"), (0.0, "No head")])
def test_a_bracket_head_must_beat_the_best_rule_on_the_hardest_pairs(of_openers, verdict):
    said = findings.brackets(plot_data.brackets(of_openers))  # best rule without a count: 0.24; intervals are ±0.03
    assert said.startswith(verdict)
    assert '("uniform of its type") has 0.24, one that counts ("uniform unclosed") 0.31; only 211 such pairs' in said


def test_without_hardest_pairs_no_verdict_is_given():
    assert "hard enough" in findings.brackets(plot_data.brackets(n_hardest=0))


def test_the_bracket_verdict_ignores_what_was_asked_at_the_closer():
    scores = plot_data.brackets(of_openers=0.1)
    at_closer = scores["probe"] == "bracket_at_closer"
    raised = scores.assign(score=scores["score"].where(~at_closer, 0.99), low=scores["low"].where(~at_closer, 0.98))
    assert findings.brackets(raised) == findings.brackets(scores)


def test_the_loss_title_names_an_earlier_minimum():
    metrics = [{"step": 1, "tokens": 1000, "loss": 5.0}, {"step": 1, "eval_loss": 3.0}, {"step": 3, "eval_loss": 3.25}]
    assert findings.loss(metrics, 257) == (
        "Held-out loss ends at 3.25 nats/token after 3k tokens (chance: 5.55); its minimum, 3.00, lay at 1k"
    )


def test_gradients_compare_the_last_quarter():
    early = [{"step": i, "head_grad_norm": [[9.0, 1.0]]} for i in range(6)]
    late = [{"step": 6, "head_grad_norm": [[1.0, 2.0]]}, {"step": 7, "head_grad_norm": [[1.0, 4.0]]}]
    assert "head 0.1 receives 3.0 times the gradient of head 0.0" in findings.gradients(early + late)
    dead = [{"step": 0, "head_grad_norm": [[0.0, 4.0]]}]
    assert "against none" in findings.gradients(dead)


def test_a_difference_that_is_no_number_is_a_disagreement():
    assert findings.checks(plot_data.checks(scores=float("nan"))) == "Fused and per-head DISAGREE on scores"
    assert findings.checks(plot_data.checks(scores=1e-5)).startswith("Fused and per-head agree within tolerance")


def test_the_share_of_repeating_windows_is_said_whatever_it_is():
    assert findings.repetition(experiment()).startswith("No training window was made to repeat")
    text = findings.repetition(experiment(repeat_share=0.25, repeat_kind="random"))
    assert text.startswith(
        "25% of the training windows repeat their first part (uniform random tokens, periods of 8 to 31"
    )
    assert "own periods, 11 and 17, were never drawn" in text


def experiment(**data) -> Experiment:
    model = Model(vocab_size=4353, seq_len=128, d_model=64, n_layer=2, n_head=4)
    return Experiment(model=model, data=Data(seq_len=128, **data), probe=Probe(periods=(11, 17)))


def test_an_example_is_the_last_token_at_which_a_head_is_nearest_to_its_targets():
    pattern = np.array([[1, 0, 0, 0], [0.1, 0.9, 0, 0], [0, 0.9, 0.1, 0], [0.3, 0.3, 0.2, 0.2]])
    targets = np.zeros((4, 4), bool)
    targets[[1, 2, 3], [0, 1, 1]] = True
    shown = Pattern(1, 2, "induction", 0.8, 0.1, list("abca"), pattern, targets)
    assert findings.examples([shown]) == [
        "Head 1.2, induction: at the end of “abc” it puts 0.90 of its attention on “b”, 1 back."
    ]
    assert findings.examples([dataclasses.replace(shown, targets=np.zeros((4, 4), bool))]) == []
    itself = dataclasses.replace(shown, targets=np.eye(4, dtype=bool))
    assert findings.examples([itself])[0].endswith("1.00 of its attention on that token itself.")
