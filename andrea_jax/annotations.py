"""Syntax and semantics of a run's heads: against annotated text, and what closing brackets lose without their head.

    annotations.annotated(run, "en_ewt-ud-test.conllu").best        names, tags and syntax, head by head
    annotations.brackets(run).damage                                the bracket head ablated, beside its layer

Tables of a saved run are kept in its heads/ folder.
"""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from andrea_jax import interventions
from andrea_jax.data import annotated as conllu
from andrea_jax.data.annotated_windows import windows
from andrea_jax.errors import UserError
from andrea_jax.heads import Progress, measure, tables
from andrea_jax.heads import annotated as heads
from andrea_jax.heads import brackets as bracket_probes
from andrea_jax.heads.annotated import Annotated
from andrea_jax.heads.statistics import REPORT
from andrea_jax.interventions.edits import Compute
from andrea_jax.kept import keep
from andrea_jax.loaded import LoadedRun

KINDS = ("zero", "mean")


@dataclass(frozen=True)
class Brackets:
    """layer, head: the best bracket head, chosen on one half of the windows · scores: `heads.brackets.table` · damage:
    `interventions.Damage.table`, of every head of its layer by itself, on the other half, with a column is_best."""

    layer: int
    head: int
    scores: pd.DataFrame
    damage: pd.DataFrame


def annotated(loaded: LoadedRun, path: Path | str, progress: Progress | None = None) -> Annotated:
    """`heads.annotated.profile` on a CoNLL-U file, in probe.n_sequences windows of at most data.seq_len tokens.

    Kept as the tables "annotated" and "annotated_best". UserError for what is no such file.
    """
    e = loaded.experiment
    found = windows(conllu.read(path), loaded.tokenizer, e.data.seq_len, e.probe.n_sequences)
    settings = {"dtype": e.compute.dtype, "backend": e.compute.backend, "progress": progress}
    result = heads.profile(e.model, loaded.params, found, **settings)
    if loaded.saved:
        keep(loaded.run, "annotated", loaded.step, result.table)
        keep(loaded.run, "annotated_best", loaded.step, result.best)
    return result


def brackets(loaded: LoadedRun, progress: Progress | None = None) -> Brackets:
    """The head that looks most at the matching opener, and the loss on closers without it: zero- and mean-ablation.

    The windows are those of the head profile. Kept as the table "bracket_ablation". UserError where there are none.
    """
    e = loaded.experiment
    stream = bracket_probes.stream(loaded.dataset, e.data.seq_len, e.probe.n_sequences, 0)
    if stream.windows.n == 0:
        raise UserError(f"brackets: {stream.windows.reason}")
    compute: Compute = {"dtype": e.compute.dtype, "backend": e.compute.backend}
    listed = bracket_probes.openers(stream.windows)
    measured = measure(e.model, loaded.params, stream.tokens, stream.targets, listed=listed, **compute)
    best = tables.best("bracket", tables.Result(measured.probes["bracket"])).iloc[0]
    if pd.isna(best["head"]):
        raise UserError("brackets: one half of the windows has no pair to ask; raise probe.n_sequences")
    layer, head = int(best["layer"]), int(best["head"])
    sets = [[(layer, other)] for other in range(e.model.layer_heads[layer])]
    task = interventions.closers(stream.windows).on(REPORT)
    found = interventions.ablate(e.model, loaded.params, [task], kinds=KINDS, sets=sets, progress=progress, **compute)
    damage = found.table.assign(is_best=(found.table["head"] == head).astype(bool))
    if loaded.saved:
        keep(loaded.run, "bracket_ablation", loaded.step, damage)
    return Brackets(layer, head, bracket_probes.table(stream.windows, measured), damage)
