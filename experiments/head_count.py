"""Are several heads better than one wide head of the same size (C10)?

    python experiments/head_count.py configs/ablations/n-head.toml

Trains the sweep over n_head, or takes its runs, and that of --wider at another d_model, and compares each seed by seed
with its first n_head. The number of parameters is that of the width. Speed is that of training steps alone, of which
all take turns: the runs themselves trained one after the other. Writes C10.json and C10.png to --out, and the
comparisons' tables and figures beside them.
"""

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import pandas as pd

from andrea_jax import claims, data, model
from andrea_jax.config import Experiment
from andrea_jax.data import Dataset
from andrea_jax.errors import UserError
from andrea_jax.sweeps.comparing import RunsCompared, compare_runs
from andrea_jax.sweeps.measured import MEASURES
from andrea_jax.training import optimizer
from andrea_jax.training.step import make_step

SAYS = {"heldout_loss": -1, "specialization": 1, "induction": 1}  # in which direction more heads go, by the claim
KEY, TURNS, STEPS = "model.n_head", 4, 25


def speeds(experiments: Sequence[Experiment], dataset: Dataset) -> list[float]:
    """tokens/s of each experiment's training step: the fastest of the turns, in each of which it makes a few steps."""
    trained, fastest = [], [math.inf] * len(experiments)
    for e in experiments:
        params = model.initialise(e.model, e.train.seed)
        trained.append((params, optimizer.make(e.optim, e.train.steps).init(params)))
    for turn in range(1 + TURNS):  # the first compiles
        for i, e in enumerate(experiments):
            (params, state), step, began = trained[i], make_step(e), time.perf_counter()
            tokens = jnp.asarray(data.batch(dataset, e, turn), jnp.int32)
            for _ in range(STEPS):
                params, state, _ = step(params, state, tokens)
            trained[i] = jax.block_until_ready((params, state))
            fastest[i] = min(fastest[i], time.perf_counter() - began) if turn else fastest[i]
    return [STEPS * e.train.batch_size * e.data.seq_len / s for e, s in zip(experiments, fastest, strict=True)]


def together(compared: Mapping[int, RunsCompared]) -> claims.Differences:
    """d_model -> runs: the differences of all, each named by its d_model."""
    every = {width: claims.against(one, SAYS) for width, one in compared.items()}
    return {measure: {f"d_model {width}, {name}": one for width, found in every.items()
                      for name, one in found[measure].items()} for measure in SAYS}  # fmt: skip


def finding(compared: Mapping[int, RunsCompared], rates: Sequence[float]) -> claims.Finding:
    """rates: of `speeds`, in the order of the runs."""
    found = together(compared)
    verdict = claims.judged(found, SAYS)
    runs = pd.concat([one.runs.assign(d_model=width) for width, one in compared.items()], ignore_index=True)
    runs["step_tokens_per_s"] = rates
    sizes = ", ".join(f"{one.runs['n_params'].iloc[0]:,} at d_model {width}" for width, one in compared.items())
    speed = []
    for width in compared:
        steps = {n: runs.loc[(runs["d_model"] == width) & (runs[KEY] == n), "step_tokens_per_s"].to_numpy().mean()
                 for n in dict.fromkeys(compared[width].runs[KEY])}  # fmt: skip
        speed.append(f"d_model {width}: " + ", ".join(f"{n} {rate / 1000:.0f}" for n, rate in steps.items()))
    sentence = (f"parameters, {sizes}; {claims.contrasted(found)}; training steps alone, thousand tokens/s by n_head, "
                f"{'; '.join(speed)}")  # fmt: skip
    columns = {name: MEASURES[name] for name in SAYS} | {"step_tokens_per_s": "training step alone (tokens/s)"}
    runs["n_head × head_dim"] = [f"{n}\n×{width // n}" for n, width in zip(runs[KEY], runs["d_model"], strict=True)]
    title = claims.title("C10", verdict)
    figure = claims.drawn(runs, "n_head × head_dim", columns, title, group="d_model")
    numbers = {**claims.all_numbers(found), "runs": runs.drop(columns="n_head × head_dim").to_dict("records")}
    return claims.Finding("C10", verdict, sentence, numbers, figure=figure)


def main(argv: Sequence[str] | None = None) -> int:
    parser = claims.parser(__doc__, "configs/ablations/n-head.toml")
    parser.add_argument("--wider", type=Path, default=Path("configs/ablations/n-head-64.toml"))
    args = parser.parse_args(argv)
    compared, loaded = {}, []
    for config in (args.config, args.wider):
        trained = claims.trained(argparse.Namespace(**{**vars(args), "config": config}))
        named = {one.run.name: one for one in trained}
        found = compare_runs(config, args.overrides, args.runs)  # in the order of the sweep: the first is the base
        found.save(args.out / "C10" / config.stem)
        loaded += [named[name] for name in found.runs["run"]]
        width = loaded[-1].experiment.model.d_model
        if width in compared:
            raise UserError(f"--wider {config}: must have another model.d_model than {args.config}, not {width} too")
        compared[width] = found
    rates = speeds([one.experiment for one in loaded], loaded[0].dataset)
    return claims.report([finding(compared, rates)], args.out)


if __name__ == "__main__":
    raise SystemExit(main())
