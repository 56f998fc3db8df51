"""What knowing every head costs: all probes beside a plain forward pass, all-head ablation, and TransformerLens.

The sequences are BOS and a block of distinct tokens, four times: every probe has targets there, about 40 pairs a query
with the 33 distances of the offset profile. (Text, where tokens have more earlier copies, has more pairs.)
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from andrea_jax import data, interventions, model
from andrea_jax.benchmarks import lens
from andrea_jax.benchmarks.programs import JaxCall, Row
from andrea_jax.benchmarks.results import Results, relative
from andrea_jax.benchmarks.shapes import dtype_here
from andrea_jax.benchmarks.timing import Job, Tell, run
from andrea_jax.config import Model
from andrea_jax.heads import scores, streams, targets
from andrea_jax.heads.targets import Targets
from andrea_jax.interventions.tasks import Task
from andrea_jax.plots import scoring_figures
from andrea_jax.plots.scoring_figures import ABLATION, BOTH, FORWARD, LENS, SCORES

SHAPE = Model(vocab_size=8449, seq_len=1024, d_model=768, n_layer=12, n_head=12, positions="rotary")
FOR_CPU = dataclasses.replace(SHAPE, vocab_size=2305, d_model=384, n_layer=6)
SWEPT_ON_CPU = dataclasses.replace(SHAPE, vocab_size=257, d_model=192)  # 12 × 12 heads as well, but narrow


@dataclasses.dataclass(frozen=True)
class Sizes:
    """scored, ablated: the models · tokens: of one call, so that short sequences are several, as in `heads.measure` ·
    seqs: their lengths · ablation: sequences, length."""

    scored: Model = SHAPE
    ablated: Model = SHAPE
    tokens: int = scores.TOKENS_A_BATCH
    seqs: Sequence[int] = (1024, 4096, 16384)
    ablation: tuple[int, int] = (8, 1024)


SMALL = Sizes(FOR_CPU, SWEPT_ON_CPU, tokens=1, seqs=(256, 512, 1024), ablation=(2, 64))


def bench_scoring(
    out: Path,
    seqs: Sequence[int] | None = None,
    sizes: Sizes | None = None,
    peer: bool = True,
    repeats: int = 7,
    tell: Tell = lambda done, total: None,
) -> Results:
    """Rows of a forward pass, of all scores, and of both in one program, at each length; one of all-head ablation; and,
    where torch and transformer_lens can be imported, one a length of the same scores by TransformerLens. Written to
    `out`/scoring.*.

    None: what suits the device. Columns: contender · batch, seq, n_layer, n_head, d_model · us, fastest_us,
    slowest_us · ratio: to the forward pass of that length · temp_mib: besides arguments and results, by the compiled
    program; of TransformerLens, on a CPU, by how much its process grew · off_by: the largest difference of a score of
    TransformerLens from ours · heads_per_s · reason.
    """
    sizes = sizes or (SMALL if jax.default_backend() == "cpu" else Sizes())
    seqs, dtype = list(seqs or sizes.seqs), dtype_here()
    absent = lens.absent() if peer else "not asked for"
    settings = {"seqs": seqs, "tokens": sizes.tokens, "ablation": list(sizes.ablation), "absent": absent}
    results = Results(out, "scoring", settings, dtype, repeats)
    run([_jobs(sizes, seq, dtype) for seq in seqs], repeats, lambda rows: results.add(_relative(rows)), tell)
    for seq in seqs:
        forward = [row for row in results.rows if row["seq"] == seq]
        results.add(_relative([*forward, _of_lens(sizes, seq, repeats, absent)])[-1:])
    results.add([{**_ablation(sizes, dtype), "ratio": None}])
    results.finish(scoring_figures.verdicts(results.rows), lambda: scoring_figures.scoring(results.rows, results.of))
    return results


def _relative(rows: Sequence[Row]) -> list[Row]:
    return relative(rows, {"contender": FORWARD}, ("seq",))


def _row(config: Model, contender: str, batch: int, seq: int) -> Row:
    shape = {"n_layer": config.n_layer, "n_head": config.n_head, "d_model": config.d_model}
    return {"contender": contender, "batch": batch, "seq": seq, **shape}


def _jobs(sizes: Sizes, seq: int, dtype: str) -> list[Job]:
    config, tokens = _scored(sizes, seq)
    distances, arrays = _arrays(tokens, probes(tokens))
    draw = partial(_drawn, config, arrays)
    calls = {FORWARD: _forward, SCORES: _scores, BOTH: _both}
    return [
        Job(_row(config, name, len(tokens), seq), partial(JaxCall, partial(call, config, dtype, distances), draw))
        for name, call in calls.items()
    ]


def _scored(sizes: Sizes, seq: int) -> tuple[Model, np.ndarray]:
    """The model with room for seq positions and ids, and tokens int32 [batch, seq]."""
    period = (seq - 1) // streams.COPIES
    config = dataclasses.replace(sizes.scored, seq_len=seq, vocab_size=max(sizes.scored.vocab_size, period + 2))
    ids = np.arange(1, config.vocab_size)
    return config, data.repeated_blocks(ids, period, streams.COPIES + 1, max(1, sizes.tokens // seq), 0)[:, :seq]


def probes(tokens: np.ndarray) -> dict[str, Targets]:
    """Every probe that needs no text."""
    names = ("previous_token", "current_token", "first_token", "duplicate_token", "induction", "induction_all")
    by_offset = {streams.offset_name(d): targets.fixed_offset(tokens, d) for d in streams.offsets(tokens.shape[1])}
    return {name: getattr(targets, name)(tokens) for name in names} | by_offset


def _arrays(tokens: np.ndarray, asked: dict[str, Targets]) -> tuple[scores.Distances, tuple[np.ndarray, ...]]:
    """What `scores.forward` takes: distances; tokens, pairs, counted, and no pair listed singly."""
    n, length = tokens.shape
    counted = np.stack([found.counted(n, length) for found in asked.values()], axis=1)
    distances = scores.by_distance(list(asked.values()), n, length)
    pairs = scores.Pairs.of(list(asked.values()), n, distances).padded
    return distances, (tokens, pairs, counted, scores.Pairs.of([scores.NO_TARGETS], n).padded)


def _drawn(config: Model, arrays: tuple[np.ndarray, ...]) -> tuple:
    return *(jnp.asarray(x) for x in arrays), model.initialise(config, 0)


def _forward(config: Model, dtype: str, _: scores.Distances, tokens: Array, *rest) -> Array:
    return model.bind(config, rest[-1], dtype=dtype)(tokens)


def _both(config: Model, dtype: str, distances: scores.Distances, *arrays):
    *inputs, params = arrays
    return scores.forward(config, dtype, "auto", True, distances, params, *inputs)


def _scores(*arguments):
    """What `heads.measure` runs: nothing that only the logits need."""
    return _both(*arguments)[1]


def _of_lens(sizes: Sizes, seq: int, repeats: int, absent: str | None) -> Row:
    """TransformerLens on the weights and tokens of that length, and how far its scores are from ours."""
    config, tokens = _scored(sizes, seq)
    asked = {name: found for name, found in probes(tokens).items() if name in lens.SCORES}
    params = model.initialise(config, 0)
    row = _row(config, LENS, len(tokens), seq)
    try:
        if absent is not None:
            raise lens.Failed(absent)
        found = lens.measure(config, params, tokens, asked, repeats)
    except lens.Failed as error:
        return {**row, "us": None, "reason": str(error)}
    ours = scores.measure(config, params, tokens, asked).probes
    off = [np.abs(ours[name].mass.sum(0) / ours[name].n.sum() - found["scores"][name]).max() for name in asked]
    seconds = sorted(found["seconds"])
    times = {"us": 1e6 * seconds[len(seconds) // 2], "fastest_us": 1e6 * seconds[0], "slowest_us": 1e6 * seconds[-1]}
    return {**row, **times, "temp_mib": found["grown_mib"], "off_by": float(max(off)), "reason": None}


def _ablation(sizes: Sizes, dtype: str) -> Row:
    """Every head of the model, zeroed one by one in a sweep of one program; compiled before the time that counts."""
    config, (n, length) = sizes.ablated, sizes.ablation
    tokens = data.random_tokens(np.arange(1, config.vocab_size), length + 1, n, 0)
    task = Task(tokens, {"loss": np.ones((n, length), bool)})
    found = interventions.ablate(config, model.initialise(config, 0), [task], kinds=("zero", "zero"), dtype=dtype)
    us = 1e6 / found.heads_per_s
    return {**_row(config, ABLATION, n, length), "us": us, "heads_per_s": found.heads_per_s, "reason": None}
