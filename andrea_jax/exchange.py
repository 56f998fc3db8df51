"""Runs of other people's models, and other people's files of runs.

    run = exchange.import_gpt2("gpt2/", "runs", overrides=["data.corpus=tiny"])
    exchange.export_gpt2(load_run(run.path), "gpt2-again/")

An imported model is an ordinary run directory: config.toml, provenance.json (its "imported" says from which files, with
their sha256), tokenizer.json and one checkpoint. It opens, is scored, viewed and trained on like any other, on
data.corpus tokenized by its own tokenizer (data.tokenizer = "imported").
"""

import dataclasses
import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import optax

from andrea_jax import config_files, runs
from andrea_jax.config import BOS, Data, Experiment, Model
from andrea_jax.conversion import convert
from andrea_jax.data import Tokenizer
from andrea_jax.data.tokenizer import byte_tokenizer
from andrea_jax.errors import UserError
from andrea_jax.interop import MICROGPT, Checkpoint, Layout, bin_file, gpt2, tokenizer_files
from andrea_jax.interop.files import draft_of, sha256
from andrea_jax.loaded import LoadedRun
from andrea_jax.runs import Json, Run
from andrea_jax.training import optimizer
from andrea_jax.training.checkpoints import Checkpoints, State, restore_opt_state

LONGEST_WINDOW = 256  # of an imported GPT-2's data.seq_len, unless told: scoring on a CPU takes minutes, not an hour
_LOG = logging.getLogger("andrea_jax")


def import_gpt2(
    folder: Path | str, root: Path | str = "runs", *, name: str | None = None, overrides: Sequence[str] = ()
) -> Run:
    """A run at step 0 of the GPT-2 in a Hugging Face folder (config.json, safetensors, tokenizer files).

    name: of the run; None: the folder's. overrides: `section.key=value` for everything that the weights leave open:
    data.corpus, data.seq_len (256, or the model's positions where they are fewer), probe, model.projection, compute.
    Raises UserError where the folder is damaged or holds another kind of model.
    """
    folder = Path(folder)
    model, bos = gpt2.read_config(folder)
    data = Data(tokenizer="imported", seq_len=min(model.seq_len, LONGEST_WINDOW))
    experiment = config_files.override(Experiment(model=model, data=data), overrides, str(folder))
    _check_fixed(experiment, model, folder)
    tokenizer = tokenizer_files.read_tokenizer(folder, model.vocab_size, bos)
    read = [folder / gpt2.CONFIG, *gpt2.weight_files(folder), *tokenizer_files.tokenizer_files(folder)]
    params = gpt2.read_params(folder, model, bos)
    _, params = convert(model, params, experiment.model.projection, experiment.model.projection_form)
    source = _source("GPT-2 of Hugging Face", folder, read) | {"bos": bos}
    name = name or folder.resolve().name
    return _create(Path(root), name, experiment, tokenizer, source, Checkpoint(0, params))


def _check_fixed(experiment: Experiment, model: Model, folder: Path) -> None:
    """UserError where an override contradicts the folder."""
    for key, value in vars(model).items():
        found = getattr(experiment.model, key)
        if found != value and key not in ("projection", "projection_form"):
            raise UserError(f"model.{key} = {found}: must be {value}, as in {folder / gpt2.CONFIG}")
    if experiment.data.tokenizer != "imported":
        text = 'must be "imported": the model knows the ids of its own tokenizer only'
        raise UserError(f'data.tokenizer = "{experiment.data.tokenizer}": {text}')


def import_bin(
    file: Path | str,
    experiment: Experiment,
    root: Path | str = "runs",
    *,
    name: str | None = None,
    layout: Layout = MICROGPT,
    tokenizer: Path | None = None,
) -> Run:
    """A run with one checkpoint, that of an ANDREA .bin file, Adam's moments included where optim.name is "adamw".

    experiment: what the file does not say, the model's shape, norm and activation above all. tokenizer: that of the
    model, a run, its tokenizer.json or a Hugging Face folder; without it the run reads no text, unless it reads
    bytes. Raises UserError where the file is damaged or does not fit.
    """
    file, model = Path(file), experiment.model
    found = bin_file.read(file, model, layout)
    if found.step > experiment.train.steps:
        text = f"must be at least {found.step}, the step of {file}"
        raise UserError(f"train.steps = {experiment.train.steps}: {text}")
    known = _tokenizer(experiment, layout, tokenizer)
    if experiment.data.tokenizer != "bytes":
        experiment = dataclasses.replace(experiment, data=dataclasses.replace(experiment.data, tokenizer="imported"))
    if experiment.optim.name != "adamw":
        _LOG.warning('optim.name = "%s" has no place for Adam\'s moments: dropped', experiment.optim.name)
        found = Checkpoint(found.step, found.params)
    source = _source("ANDREA .bin", file.parent, [file])
    source |= {"step": found.step, "moments": found.first is not None, "layout": dataclasses.asdict(layout)}
    return _create(Path(root), name or file.stem, experiment, known, source, found)


def _tokenizer(experiment: Experiment, layout: Layout, path: Path | None) -> Tokenizer | None:
    """The tokenizer at `path`, the bytes' own where the config has bytes, or None."""
    vocab_size = experiment.model.vocab_size
    if path is None:
        return byte_tokenizer() if experiment.data.tokenizer == "bytes" else None
    if (path / "config.toml").is_file():  # a run
        path = path / "tokenizer.json"
    if path.is_dir():
        return tokenizer_files.read_tokenizer(path, vocab_size, layout.bos)
    tokenizer = Tokenizer.load(path)
    if tokenizer.vocab_size != vocab_size:
        raise UserError(f"{path}: has {tokenizer.vocab_size} ids, and model.vocab_size = {vocab_size}")
    return tokenizer


def _source(kind: str, folder: Path, files: list[Path]) -> dict[str, Json]:
    """What provenance.json says of an imported model."""
    return {"kind": kind, "from": str(folder), "sha256": {file.name: sha256(file) for file in files}}


def _create(
    root: Path, name: str, experiment: Experiment, tokenizer: Tokenizer | None, source: Json, found: Checkpoint
) -> Run:
    """The run directory with its one checkpoint, or none where that fails."""
    optimize = optimizer.make(experiment.optim, experiment.train.steps)
    opt_state = optimize.init(found.params)
    if found.first is not None:
        done = jnp.asarray(found.step, jnp.int32)
        opt_state = optax.tree_utils.tree_set(opt_state, count=done, mu=found.first, nu=found.second)
    run = runs.create(root, experiment, re.sub(r"[^\w.-]", "-", name))
    try:
        run.record(imported=source)
        if tokenizer:
            tokenizer.save(run.path / "tokenizer.json")
        with Checkpoints(run) as checkpoints:
            checkpoints.save(State(found.step, found.params, opt_state, []))
    except BaseException:
        shutil.rmtree(run.path)
        raise
    return run


def export_gpt2(loaded: LoadedRun, folder: Path | str) -> None:
    """Writes the loaded parameters and the tokenizer as a Hugging Face folder, which must not be there yet.

    `transformers.GPT2LMHeadModel` computes the same logits from it. Raises UserError for a model that is no GPT-2.
    """
    model, known = loaded.experiment.model, (loaded.run.path / "tokenizer.json").is_file()
    gpt2.refuse(model)
    if not known:
        _LOG.warning("%s: has no tokenizer.json, so the folder gets none", loaded.run.path)
    with draft_of(Path(folder)) as draft:
        draft.mkdir()
        gpt2.write(model, loaded.params, draft, loaded.tokenizer.bos if known else BOS)
        if known:
            tokenizer_files.write_tokenizer(loaded.tokenizer, draft, model.seq_len)


def export_bin(loaded: LoadedRun, file: Path | str, layout: Layout = MICROGPT) -> None:
    """Writes the loaded checkpoint as an ANDREA .bin file, with Adam's moments where AdamW trained it, else zeros.

    Raises UserError where `file` is there already, and for a model with parameters that the format has no place for.
    """
    model, moments = loaded.experiment.model, (None, None)
    bin_file.refuse(model)
    if loaded.saved and loaded.experiment.optim.name == "adamw":
        state = restore_opt_state(loaded.run, loaded.step)
        moments = optax.tree_utils.tree_get(state, "mu"), optax.tree_utils.tree_get(state, "nu")
    else:
        _LOG.warning("%s: AdamW's moments are not known, so the file gets zeros", loaded.run.path)
    bin_file.write(Path(file), model, Checkpoint(loaded.step, loaded.params, *moments), layout)
