"""One benchmark of several files."""

import json
from pathlib import Path

import pandas as pd
import pytest

from andrea_jax.benchmarks.redraw import join, redraw
from andrea_jax.errors import UserError

ONE = {"part": "speed", "model": "m", "projection": "fused", "steps": 7, "mesh": "one device", "devices": 1, "batch": 3,
       "us": 2e3, "tokens_per_s": 1e4, "efficiency": 1.0, "reason": None}  # fmt: skip
TWO = {**ONE, "mesh": "data 2", "devices": 2, "tokens_per_s": 1.8e4, "efficiency": 0.9}


def written(path: Path, some: list[dict], **changed) -> Path:
    about = {
        "benchmark": "mesh", "date": f"2026-11-{len(some):02d}", "finished": None, "command": f"of {path.stem}",
        "commit": "c", "ceiling_tflops": 7.0, "smallest_us": 5.0, "device": {"kind": "a card"}, "verdicts": [],
        "settings": {"dtype": "float32"}, "versions": {"jax": "1"},
    }  # fmt: skip
    path.write_text(json.dumps({**about, **changed, "rows": some}))
    return path


def test_a_benchmark_run_in_pieces_becomes_one_that_says_when_and_how_each_was_measured(tmp_path: Path):
    first, last = [ONE], [TWO, {**TWO, "mesh": "fsdp 2"}]
    file = join([written(tmp_path / "a", first), written(tmp_path / "b", last)], tmp_path / "both")
    found = json.loads(file.read_text())
    assert found["rows"] == first + last
    told = [(part["date"], part["command"]) for part in found["parts"]]
    assert told == [("2026-11-01", "of a"), ("2026-11-02", "of b")]
    assert len(pd.read_parquet(file.with_suffix(".parquet"))) == len(pd.read_csv(file.with_suffix(".csv"))) == 3
    assert redraw(file) == [
        "m, tokens/s on 2 devices (efficiency against one of the same kind): andrea data 2 18,000 (90%), "
        "andrea fsdp 2 18,000 (90%)"
    ]
    assert file.with_suffix(".png").exists()


@pytest.mark.parametrize(("changed", "said"), [
    ({"benchmark": "train"}, "benchmark must be as in"),
    ({"device": {"kind": "another"}}, "device must be as in .*, a card, not another"),
    ({"versions": {"jax": "2"}}, "jax must be as in .*, 1, not 2"),
])  # fmt: skip
def test_what_was_not_measured_alike_is_not_joined(tmp_path: Path, changed: dict, said: str):
    one, other = written(tmp_path / "a", [ONE]), written(tmp_path / "b", [ONE], **changed)
    with pytest.raises(UserError, match=f"b: {said}"):
        join([one, other], tmp_path / "both")
    assert not (tmp_path / "both").exists()
