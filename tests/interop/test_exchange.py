"""Imported models are ordinary runs, and runs leave as files that hold the same numbers."""

import dataclasses
import hashlib
import re
from pathlib import Path

import jax
import numpy as np
import numpy_gpt2  # pyright: ignore[reportMissingImports]
import pytest
from hugging_face import (  # pyright: ignore[reportMissingImports]
    BOS,
    HEADS,
    VOCAB,
    random_tensors,
    write_folder,
)  # fmt: skip
from safetensors.numpy import load_file

from andrea_jax import cli, config_files, exchange, load_run, runs
from andrea_jax.errors import UserError
from andrea_jax.interop import Layout, exchanged

SMALL = ["probe.periods=[5, 7]", "probe.n_sequences=4", "compute.backend=reference", "train.steps=3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("from") / "gpt2 tiny")


@pytest.fixture(scope="module")
def imported(folder: Path, tiny_config: Path, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    overrides = [*SMALL, f"data.corpus={tiny_config.parent / 'corpus'}", "data.seq_len=31"]
    return exchange.import_gpt2(folder, tmp_path_factory.mktemp("runs"), overrides=overrides)


def test_an_imported_gpt2_is_a_run_that_computes_the_same_logits_of_a_text(imported: runs.Run):
    run, text = load_run(imported.path), "def f(a, [b]):"
    assert run.step == 0 and run.run.name.startswith("gpt2-tiny-")
    tokens = run.tokens(text)
    place = exchanged(VOCAB, BOS)
    ids = place[tokens[0]]
    assert ids[0] == BOS and run.tokenizer.decode(tokens[0].tolist()) == text
    expected = numpy_gpt2.forward(random_tensors(), HEADS, ids)
    found = np.asarray(jax.jit(lambda tokens: run.model(tokens))(tokens))[0][:, place]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_its_provenance_says_from_which_files_it_came(imported: runs.Run, folder: Path):
    said = imported.provenance["imported"]
    assert (said["kind"], said["from"], said["bos"]) == ("GPT-2 of Hugging Face", str(folder), BOS)
    assert set(said["sha256"]) == {"config.json", "model.safetensors", "tokenizer.json"}
    weights = (folder / "model.safetensors").read_bytes()
    assert said["sha256"]["model.safetensors"] == hashlib.sha256(weights).hexdigest()


def test_its_corpus_is_tokenized_by_its_own_tokenizer_and_recorded(imported: runs.Run):
    run = load_run(imported.path)
    text = run.dataset.heldout.document_text(0)
    assert run.dataset.heldout.document(0).tolist() == run.tokenizer.encode(text)
    assert run.dataset.summary["tokenizer"] == "imported" and run.dataset.tokenizer.bos == BOS
    assert run.run.provenance["data_hash"] == run.dataset.hash
    assert load_run(imported.path).dataset.hash == run.dataset.hash


def test_the_other_projection_can_be_asked_for(folder: Path, imported: runs.Run, tmp_path: Path):
    run = exchange.import_gpt2(folder, tmp_path, name="by-head", overrides=[*SMALL, "model.projection=per_head"])
    here, there = (load_run(path).converted("fused").params for path in (run.path, imported.path))
    assert jax.tree.all(jax.tree.map(np.array_equal, here, there))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.n_layer=3", "model.n_layer = 3: must be 2, as in "),
        ("model.norm=rms", "model.norm = rms: must be layer, as in "),
        ("data.tokenizer=bpe", 'data.tokenizer = "bpe": must be "imported"'),
        ("data.corpsu=tiny", 'unknown key (did you mean "data.corpus"?)'),
        ("data.seq_len=38", "data.seq_len = 38: must be at most model.seq_len = 37"),
    ],
)
def test_what_the_weights_decide_cannot_be_overridden(folder: Path, tmp_path: Path, override: str, expected: str):
    with pytest.raises(UserError, match=re.escape(expected)):
        exchange.import_gpt2(folder, tmp_path, overrides=[*SMALL, override])
    assert not list(tmp_path.iterdir())


def test_a_vocabulary_of_more_than_16_bits_is_refused(tmp_path: Path):
    folder = write_folder(tmp_path / "large", vocab_size=65537)
    with pytest.raises(
        UserError, match=r"model\.vocab_size = 65537: must be at most 65536 where data\.tokenizer = \"imp"
    ):
        exchange.import_gpt2(folder, tmp_path / "runs", overrides=SMALL)


def test_a_training_config_cannot_ask_for_an_imported_tokenizer(tiny_config: Path, tmp_path: Path, capsys):
    assert cli.main(["train", str(tiny_config), "data.tokenizer=imported", "--runs", str(tmp_path)]) == 2
    assert 'a model trained here has "bpe" or "bytes"' in capsys.readouterr().err


def test_an_import_that_fails_leaves_no_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def no_room(*_) -> None:
        raise OSError("no room")

    monkeypatch.setattr(exchange.Checkpoints, "save", no_room)
    with pytest.raises(OSError, match="no room"):
        exchange.import_gpt2(folder, tmp_path, overrides=SMALL)
    assert not list(tmp_path.iterdir())


def test_a_gpt2_that_came_and_goes_has_its_tensors_and_ids_again(imported: runs.Run, tmp_path: Path):
    exchange.export_gpt2(load_run(imported.path), tmp_path / "again")
    written = load_file(tmp_path / "again" / "model.safetensors")
    expected = {f"transformer.{name}": tensor for name, tensor in random_tensors().items()}
    assert written.keys() == expected.keys()
    assert all(np.array_equal(written[name], expected[name]) for name in expected)
    back = exchange.import_gpt2(tmp_path / "again", tmp_path / "runs", overrides=SMALL)
    assert load_run(back.path).tokenizer.to_json() == load_run(imported.path).tokenizer.to_json()
    with pytest.raises(UserError, match="again: exists already; choose another name"):
        exchange.export_gpt2(load_run(imported.path), tmp_path / "again")


def test_a_run_that_is_no_gpt2_is_not_exported_as_one(tiny_run: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r'model\.norm = "rms": must be "layer", in the GPT-2 format'):
        exchange.export_gpt2(load_run(tiny_run), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_bin_file_takes_a_trained_run_with_its_moments_there_and_back(
    tiny_run: Path, tiny_config: Path, tmp_path: Path
):
    layout = Layout(matrices="in_out", stacked=True, bos=256)
    exchange.export_bin(load_run(tiny_run), tmp_path / "a.bin", layout)
    experiment = config_files.load(tiny_config)
    back = exchange.import_bin(tmp_path / "a.bin", experiment, tmp_path, layout=layout)
    first, again = load_run(tiny_run), load_run(back.path)
    assert again.step == first.step == 5
    assert jax.tree.all(jax.tree.map(np.array_equal, again.params, first.params))
    states = [exchange.restore_opt_state(run.run, 5) for run in (first, again)]
    assert jax.tree.all(jax.tree.map(np.array_equal, *states))  # m, v and both counts
    assert again.run.experiment == experiment and again.tokenizer.name == "bytes"
    assert again.run.provenance["imported"]["layout"]["stacked"] is True
    exchange.export_bin(again, tmp_path / "b.bin", layout)
    assert (tmp_path / "a.bin").read_bytes() == (tmp_path / "b.bin").read_bytes()


def test_moments_without_a_place_are_dropped_or_written_as_zeros_and_that_is_said(
    tiny_run: Path, tiny_config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch
):
    exchange.export_bin(load_run(tiny_run), tmp_path / "a.bin")
    sgd = config_files.load(tiny_config, ["optim.name=sgd"])
    run = load_run(exchange.import_bin(tmp_path / "a.bin", sgd, tmp_path, name="sgd").path)
    assert 'optim.name = "sgd" has no place for Adam\'s moments: dropped' in caplog.text
    exchange.export_bin(run, tmp_path / "b.bin")
    assert "AdamW's moments are not known, so the file gets zeros" in caplog.text
    n = sum(leaf.size for leaf in jax.tree.leaves(run.params))
    assert not any((tmp_path / "b.bin").read_bytes()[8 + 4 * n :])


def test_a_bin_file_from_a_later_step_than_the_config_has_is_refused(tiny_run: Path, tiny_config: Path, tmp_path: Path):
    exchange.export_bin(load_run(tiny_run), tmp_path / "a.bin")
    with pytest.raises(UserError, match=r"train\.steps = 4: must be at least 5, the step of .*a\.bin"):
        exchange.import_bin(tmp_path / "a.bin", config_files.load(tiny_config, ["train.steps=4"]), tmp_path)


def test_a_bin_file_knows_no_tokenizer_unless_one_is_named(tiny_run: Path, tiny_config: Path, tmp_path: Path):
    exchange.export_bin(load_run(tiny_run), tmp_path / "a.bin")
    experiment = config_files.load(tiny_config)
    unknown = dataclasses.replace(experiment, data=dataclasses.replace(experiment.data, tokenizer="imported"))
    run = load_run(exchange.import_bin(tmp_path / "a.bin", unknown, tmp_path, name="mute").path)
    with pytest.raises(UserError, match="without its tokenizer a run can neither read nor write text"):
        run.tokens("x")
    with pytest.raises(UserError, match=r'data\.tokenizer = "imported": there is no .*tokenizer\.json'):
        run.dataset  # noqa: B018
    for name, path in (("file", tiny_run / "tokenizer.json"), ("run", tiny_run)):
        named = exchange.import_bin(tmp_path / "a.bin", unknown, tmp_path, name=name, tokenizer=path)
        assert load_run(named.path).tokens("x").tolist() == [[0, 1 + ord("x")]]
    with pytest.raises(UserError, match=r"has no tokenizer; expected tokenizer\.json"):
        exchange.import_bin(tmp_path / "a.bin", unknown, tmp_path, name="none", tokenizer=tmp_path)


def test_the_command_line_refuses_options_of_the_other_format(folder: Path, tmp_path: Path, capsys):
    assert cli.main(["import", str(folder), "--bos", "3"]) == 2
    assert "error: --bos: is of .bin files; a folder says this itself" in capsys.readouterr().err
    assert cli.main(["import", str(tmp_path / "a.bin")]) == 2
    assert "a .bin file does not say which model it holds: --config names its config file" in capsys.readouterr().err
    assert cli.main(["import", str(tmp_path / "none")]) == 2
    assert "none: no such folder; expected a GPT-2 folder or an ANDREA .bin file" in capsys.readouterr().err


@pytest.mark.slow
def test_the_commands_import_score_view_sample_train_and_export(
    folder: Path, tiny_config: Path, tmp_path: Path, capsys
):
    corpus, root = f"data.corpus={tiny_config.parent / 'corpus'}", str(tmp_path / "runs")

    def said(*arguments: str) -> str:
        assert cli.main(arguments) == 0
        return capsys.readouterr().out.strip()

    run = said("import", str(folder), "--runs", root, "--name", "other", *SMALL, corpus, "data.seq_len=31")
    assert Path(run).name.startswith("other-")
    assert "previous token" in said("heads", run)
    assert said("sample", run, "def f(", "--tokens", "3").startswith("def f(")
    assert Path(said("view", run, "def f(x): return (x)")).stat().st_size > 10_000
    assert said("export", run, "--to", str(tmp_path / "out")) == str(tmp_path / "out")
    assert "after step 3" in said("train", run)
    assert Path(said("report", run)).exists()
    said("export", run, "--step", "3", "--to", str(tmp_path / "trained"))
    first, trained = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "trained"))
    assert all(not np.array_equal(first[name], trained[name]) for name in first if not name.endswith("wpe.weight"))
