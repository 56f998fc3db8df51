"""Metrics as TensorBoard event files: what is in them, and what is said where the package is missing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from andrea_jax.data import Dataset
from andrea_jax.runs import Run
from andrea_jax.training import events, train
from andrea_jax.training.events import scalars

MakeRun = Callable[..., Run]


def written(run: Run) -> dict[str, dict[int, float]]:
    """name -> step -> value, of all event files; a later session voids what it says it does."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, dict[int, float]] = {}
    for path in sorted((run.path / "tensorboard").iterdir()):
        content, at = path.read_bytes(), 0
        while at < len(content):  # TFRecord: length (8 bytes), its checksum (4), the event, its checksum (4)
            length = int.from_bytes(content[at : at + 8], "little")
            event = Event.FromString(content[at + 12 : at + 12 + length])
            at += 16 + length
            if event.session_log.status:  # START: steps from here on are trained again
                for steps in found.values():
                    for step in [step for step in steps if step >= event.step]:
                        del steps[step]
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def test_numbers_are_named_and_positions_are_left_out():
    line = {
        "step": 8,
        "head_grad_norm": [[0.5, 0.25]],
        "eval_loss": 2.5,
        "eval_n_tokens": 7,
        "eval_in_context_late": [1],
    }
    assert dict(scalars(line)) == {"head_grad_norm/0.0": 0.5, "head_grad_norm/0.1": 0.25, "eval/loss": 2.5}
    assert dict(scalars({"step": 8, "loss": 3.5, "tokens": 9, "tokens_per_s": None})) == {"train/loss": 3.5}


def test_event_files_say_what_metrics_jsonl_says_also_after_a_resume(make_run: MakeRun, dataset: Dataset):
    pytest.importorskip("tensorboardX")
    run = make_run("a")
    train(run, dataset, until=8, progress=False)  # without: the next session writes its lines too
    with events.mirrored(run) as recorded:
        train(recorded, dataset, until=14, progress=False)
    run.append_metrics({"step": 20, "loss": 9.0})  # killed after step 20, and trained again from 14
    with events.mirrored(run) as recorded:
        train(recorded, dataset, progress=False)
    found = written(run)
    for name, key in (("train/loss", "loss"), ("eval/loss", "eval_loss"), ("train/learning_rate", "learning_rate")):
        expected = {line["step"]: line[key] for line in run.metrics() if key in line}
        assert found[name] == pytest.approx(expected, rel=1e-6)
    assert set(found["head_grad_norm/0.1"]) == {7, 14, 21, 23}


def test_without_the_package_training_does_not_begin_and_says_what_to_install(
    andrea: Callable[..., tuple[int, str, str]], tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(events, "find_spec", lambda name: None)
    code, _, err = andrea("train", tiny_config, "--runs", tmp_path, "--tensorboard")
    assert code == 2
    assert "error: --tensorboard: needs the package tensorboardX" in err
    assert "pip install 'andrea-jax[tensorboard]'" in err
    assert not list(tmp_path.rglob("metrics.jsonl"))
