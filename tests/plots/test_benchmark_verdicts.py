"""Findings about the claims of cost follow the rows of a benchmark, whichever way they point."""

import json
from pathlib import Path

import benchmark_data as data
import pytest

from andrea_jax.benchmarks import verdicts
from andrea_jax.errors import UserError

MADE = {"date": "2026-01-02", "command": "andrea bench layout --n-heads 1", "commit": "", "dirty": False,
        "versions": {}, "platform": "", "cpu_count": 16,
        "device": {"platform": "gpu", "kind": "a GPU", "count": 1}}  # fmt: skip


def test_c3_and_c4_hold_of_the_loop_that_is_not_merged_and_slow_and_not_of_the_einsum():
    found = verdicts.projections(data.projections(loop=2.0, thresholds=(0, None)))
    assert found["C3"][0] == found["C4"][0] == "holds if per-head is computed as loop"
    assert "loop 36 to 72" in found["C3"][1] and "underuse the hardware is true of per-head, loop" in found["C4"][1]
    as_fast = verdicts.projections(data.projections(loop=1.0, thresholds=(None,)))
    assert as_fast["C4"][0] == "does not hold"


def test_c3_holds_on_a_condition_where_xlas_own_threshold_merges_what_is_written_and_else_not():
    merged = verdicts.projections(data.projections())  # at fewer tokens
    assert merged["C3"][0] == "holds if XLA merges no products and per-head is computed as loop"
    always = [row for row in data.projections() if row["threshold_mb"] != 0]
    assert verdicts.projections(always)["C3"][0] == "does not hold"


def test_c11_holds_where_transposing_first_is_faster_and_c12_where_launches_do_not_grow_with_the_heads():
    found = verdicts.layout(data.layout(transposed=1.45))
    assert found["C11"][0] == "does not hold" and found["C12"][0] == "holds"
    assert "takes 1.45 times as long as reading heads in place" in found["C11"][1]
    assert verdicts.layout(data.layout(transposed=0.9))["C11"][0] == "holds"
    rows = data.layout()
    growing = [row | {"launches": row["n_head"]} if row["backend"] == "triton" else row for row in rows]
    assert verdicts.layout(growing)["C12"][0] == "holds if the kernel is chunked, cudnn and mosaic"


def test_c13_holds_where_32_is_slower_and_72_is_refused():
    assert verdicts.head_dim(data.head_dim(odd=None))["C13"][0] == "holds"
    assert verdicts.head_dim(data.head_dim(odd=0.9))["C13"][0] == verdicts.LOWER
    assert verdicts.head_dim(data.head_dim(narrow=1.0, odd=0.9))["C13"][0] == "does not hold"
    assert verdicts.head_dim([row for row in data.head_dim() if row["head_dim"] != 72]) == {}


def test_the_benchmark_of_attention_says_c12_of_the_projects_own_kernels():
    verdict, sentence = verdicts.attention(data.attention())["C12"]
    assert verdict == "holds" and "mosaic 1 to 1; triton 1 to 1" in sentence


def trained(spent: dict[str, float]) -> list[dict]:
    step = {"model": "tiny", "contender": "its step alone", "us": 7.0, "shares": spent, "reason": None}
    return [step, step | {"contender": "torch", "shares": None}]


def test_c14_holds_where_a_profile_names_five_steps_and_says_what_takes_the_time():
    five = {"W_Q": 0.05, "W_K": 0.05, "W_V": 0.05, "attention": 0.2, "W_O": 0.05, "mlp": 0.6, "embed": 0.0001}
    verdict, sentence = verdicts.train(trained(five))["C14"]
    assert verdict == "holds"
    assert (
        "the steps take 40% (W_Q 5.0%, W_K 5.0%, W_V 5.0%, attention 20.0%, W_O 5.0%), the others mlp 60.0%" in sentence
    )
    assert "embed" not in sentence
    assert verdicts.train(trained({"W_QKV": 0.2, "attention": 0.5, "W_O": 0.3}))["C14"][0] == verdicts.SIDE_BY_SIDE
    assert verdicts.train(trained({"rest": 1.0}))["C14"][0] == "does not hold"
    assert verdicts.train(trained({})) == {}


def test_a_finding_has_the_benchmarks_date_device_and_command(tmp_path: Path):
    path = tmp_path / "layout.json"
    path.write_text(json.dumps({"benchmark": "layout", "settings": {"n_heads": [1]}, "rows": data.layout(), **MADE}))
    transposing, kernels = verdicts.findings(path)
    assert (transposing.claim, kernels.claim) == ("C11", "C12")
    assert transposing.origin is not None
    assert transposing.origin["command"] == "-m andrea_jax.cli bench layout --n-heads 1"
    assert transposing.numbers == {"file": "layout.json", "settings": {"n_heads": [1]}}


@pytest.mark.parametrize("text", ["", "{}", '{"benchmark": "scoring", "rows": []}', "[]"])
def test_what_is_no_benchmark_of_a_claim_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"other\.json: is no result of andrea bench attention, layout"):
        verdicts.findings(path)
