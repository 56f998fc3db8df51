"""Do heads specialize by training alone, from what in the text, and what does a second layer give them (C8)?

    python experiments/development.py configs/ablations/development.toml

Trains the sweep over n_layer with checkpoints at steps 0, 1, 2, 4, ..., or takes its runs, and scores heads at
initialization, at a few steps and at the end; and those of --order, on text in order and on shuffled text, with and
without repeats, at the end. All on held-out text as it is. Writes C8.json to --out, and C8.png: the first of the
deeper runs at every checkpoint.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from andrea_jax import claims, plots, seeds
from andrea_jax.heads import specialization
from andrea_jax.loaded import LoadedRun
from andrea_jax.plots import Figure
from andrea_jax.seeds import Estimate
from andrea_jax.training import steps

BETWEEN = (64, 256, 512, 1024)  # besides the first and the last
BEST = ("previous_token", "induction")
MEASURES = ("specialization", *BEST)


def score(loaded: LoadedRun) -> dict:
    """specialization (mean over heads), and the best head of each of BEST."""
    profile, e = loaded.profile(), loaded.experiment
    best = {row["probe"]: float(row["score"]) for row in profile.best.to_dict("records")}
    mean = float(specialization(profile)["specialization"].to_numpy(np.float64).mean())
    about = {"n_layer": e.model.n_layer, "shuffled": e.data.shuffled, "repeat_share": e.data.repeat_share,
             "seed": e.train.seed, "step": loaded.step}  # fmt: skip
    return {**about, "specialization": mean, **{name: best[name] for name in BEST}}


def of(rows: Sequence[dict], measure: str, **where: object) -> dict[int, float]:
    """seed -> value, of the rows in which everything of `where` is so."""
    return {row["seed"]: row[measure] for row in rows if all(row[name] == value for name, value in where.items())}


def compared(rows: Sequence[dict], a: dict, b: dict) -> tuple[dict[str, Estimate], str]:
    """b − a by measure, and both means with the difference as a sentence."""
    found = {name: seeds.difference(of(rows, name, **a), of(rows, name, **b)) for name in MEASURES}
    means = [{name: seeds.mean(list(of(rows, name, **x).values())).value for name in MEASURES} for x in (a, b)]
    parts = [f"{name.replace('_', ' ')} {means[0][name]:.2f} → {means[1][name]:.2f} ({claims.interval(found[name])})"
             for name in MEASURES]  # fmt: skip
    return found, ", ".join(parts)


def finding(rows: Sequence[dict], order: Sequence[dict], figure: Figure | None = None) -> claims.Finding:
    """rows: of the sweep over n_layer, at several steps · order: of that over the text, each at its last."""
    deep, shallow = (choose(row["n_layer"] for row in rows) for choose in (max, min))
    last = {"step": max(row["step"] for row in rows)}
    plans = {
        "initialization → trained": (rows, {"n_layer": deep, "step": 0}, {"n_layer": deep, **last}),
        f"{shallow} → {deep} layers": (rows, {"n_layer": shallow, **last}, {"n_layer": deep, **last}),
    }
    for share in sorted({row["repeat_share"] for row in order}):
        text = f"shuffled → ordered text, {share:.0%} of the windows repeats"
        where = {"repeat_share": share}
        plans[text] = (order, {"shuffled": True, **where}, {"shuffled": False, **where})
    found, said = {}, []
    for name, (measured, a, b) in plans.items():
        found[name], sentence = compared(measured, a, b)
        said.append(f"{name}: {sentence}")
    risen = found["initialization → trained"]["specialization"]
    verdict = claims.HOLDS if risen.verdict == "beyond noise" and risen.value > 0 else claims.DOES_NOT
    numbers = {"rows": list(rows), "order": list(order)} | {
        name: {measure: claims.as_numbers(one) for measure, one in each.items()} for name, each in found.items()
    }
    return claims.Finding("C8", verdict, f"{'; '.join(said)} ({risen.n} seeds)", numbers, figure=figure)


def main(argv: Sequence[str] | None = None) -> int:
    parser = claims.parser(__doc__, "configs/ablations/development.toml")
    order = Path("configs/ablations/shuffled.toml")
    parser.add_argument("--order", type=Path, default=order, help=f"the sweep over the text ({order})")
    args = parser.parse_args(argv)
    rows, runs = [], claims.trained(args)
    for loaded in runs:
        kept = steps(loaded.run)
        rows += [score(loaded.at(step)) for step in kept if step in (0, *BETWEEN, kept[-1])]
    order = [score(loaded) for loaded in claims.trained(argparse.Namespace(**{**vars(args), "config": args.order}))]
    deep = max(runs, key=lambda loaded: loaded.experiment.model.n_layer)
    return claims.report([finding(rows, order, plots.development(deep.profiles(), deep.run.metrics()))], args.out)


if __name__ == "__main__":
    raise SystemExit(main())
