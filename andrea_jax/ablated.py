"""A run without some of its heads: what each one is worth, how many can go, and the smaller run that is left.

    ablated.ablation(run).table                        damage of every head, zero beside mean
    ablated.importance(run).correlations               gradient importance against damage
    ablated.pruning(run)                               loss by fraction pruned, against random pruning
    ablated.prune_run(run, 0.5, "runs")                a run directory with half of the heads

Tables of a saved run are kept in its heads/ folder.
"""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pandas as pd

from andrea_jax import interventions, runs
from andrea_jax.data import annotated
from andrea_jax.data.annotated_windows import windows
from andrea_jax.heads.statistics import CHOOSE
from andrea_jax.interventions import Damage, Head, Importance, Task
from andrea_jax.interventions.edits import Compute, Progress
from andrea_jax.kept import keep, kept
from andrea_jax.loaded import LoadedRun
from andrea_jax.runs import Run
from andrea_jax.training import evaluate
from andrea_jax.training.checkpoints import Checkpoints, State
from andrea_jax.training.evaluation import heldout_set
from andrea_jax.training.optimizer import make


def ablation(
    loaded: LoadedRun,
    *,
    kinds: Sequence[str] = ("zero", "mean"),
    sets: Sequence[Sequence[Head]] | None = None,
    conllu: Path | str | None = None,
    progress: Progress | None = None,
) -> Damage:
    """`interventions.ablate` on the run's held-out text, repeats and brackets; zero always beside mean.

    sets: heads to remove together (None: every head by itself, which is kept as the table "ablation", with the kinds
    that it has already). conllu: a CoNLL-U file, on whose names the model is asked as well (`interventions.names`), in
    probe.n_sequences windows.
    """
    e, wanted = loaded.experiment, list(dict.fromkeys(kinds))
    if "zero" in wanted and "mean" not in wanted:
        wanted.append("mean")
    settings, asked = {"kinds": wanted, "sets": sets, "progress": progress}, tasks(loaded)
    if conllu is not None:
        text = windows(annotated.read(conllu), loaded.tokenizer, e.data.seq_len + 1, e.probe.n_sequences)
        asked.append(interventions.names(text))
    found = interventions.ablate(e.model, loaded.params, asked, **settings, **_compute(loaded))
    if sets is None and loaded.saved:
        before = kept(loaded.run, "ablation", loaded.step)
        others = [] if before is None else [before.loc[~before["kind"].isin(wanted)]]
        keep(loaded.run, "ablation", loaded.step, pd.concat([*others, found.table], ignore_index=True))
    return found


def importance(loaded: LoadedRun, progress: Progress | None = None) -> Importance:
    """`interventions.importance` on the same sequences; kept as the tables "importance" and "correlations"."""
    e = loaded.experiment
    found = interventions.importance(e.model, loaded.params, tasks(loaded), progress=progress, **_compute(loaded))
    if loaded.saved:
        keep(loaded.run, "importance", loaded.step, found.table)
        keep(loaded.run, "correlations", loaded.step, found.correlations)
    return found


def pruning(loaded: LoadedRun, progress: Progress | None = None) -> pd.DataFrame:
    """`interventions.curve` on the run's held-out text; kept as the table "pruning"."""
    e = loaded.experiment
    found = interventions.curve(e.model, loaded.params, _text(loaded), progress=progress, **_compute(loaded))
    if loaded.saved:
        keep(loaded.run, "pruning", loaded.step, found)
    return found


def prune_run(loaded: LoadedRun, fraction: float, root: Path | str, progress: Progress | None = None) -> Run:
    """A run directory in `root` without a fraction of the heads, chosen by `interventions.cheapest`.

    An ordinary run, `<name>-pruned-<id>`, with one checkpoint of the same step: smaller weights, fresh optimizer
    moments, the held-out loss in its metrics. Its provenance has `pruned`: from which run and step, and which heads
    went, in their order. UserError where a layer would keep none, and where the run exists.
    """
    e, root = loaded.experiment, Path(root)
    n = interventions.count(e.model, fraction)
    settings = _compute(loaded)
    text = _text(loaded).on(CHOOSE)
    removed = interventions.cheapest(e.model, loaded.params, text, n, progress=progress, **settings)
    model, params = interventions.prune(e.model, loaded.params, removed)
    written = loaded.run.provenance
    run = runs.create(root, dataclasses.replace(e, model=model), f"{written['name']}-pruned")
    try:
        _fill(run, loaded, params, {key: written[key] for key in ("data_hash", "data") if key in written})
        heads = [list(head) for head in removed]
        run.record(pruned={"from": str(loaded.run.path), "step": loaded.step, "heads": heads})
    except BaseException:
        shutil.rmtree(run.path)
        raise
    return run


def _fill(run: Run, loaded: LoadedRun, params: dict, written: dict) -> None:
    """Everything that training would have left in the directory."""
    e, step = run.experiment, loaded.step
    loaded.tokenizer.save(run.path / "tokenizer.json")
    n_params = sum(leaf.size for leaf in jax.tree.leaves(params))
    run.record(**written, n_params=n_params, repeat_share=e.data.repeat_share, finished=step == e.train.steps)
    windows = heldout_set(loaded.dataset, e.data.seq_len)
    settings = {"compute": e.compute, "batch_size": e.train.batch_size}
    measured = evaluate(e.model, params, windows, loaded.tokenizer, **settings)
    run.append_metrics({"step": step, **{f"eval_{name}": value for name, value in measured.items()}})
    with Checkpoints(run) as checkpoints:
        fresh = make(e.optim, e.train.steps).init(params)
        opt_state = optax.tree_utils.tree_set(fresh, count=jnp.asarray(step, jnp.int32))  # the schedule goes on
        checkpoints.save(State(step, params, opt_state, []))


def tasks(loaded: LoadedRun) -> list[Task]:
    """What the run's heads are asked to do without: held-out text, repeats and brackets of its own data."""
    e = loaded.experiment
    return interventions.tasks(loaded.dataset, e.probe, e.data.seq_len)


def _text(loaded: LoadedRun) -> Task:
    e = loaded.experiment
    return interventions.text(loaded.dataset, e.data.seq_len, e.probe.n_sequences, 0)


def _compute(loaded: LoadedRun) -> Compute:
    return {"dtype": loaded.experiment.compute.dtype, "backend": loaded.experiment.compute.backend}
