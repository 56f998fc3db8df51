"""Do heads specialize by training alone, and what does a second layer give them (C8)?

    python experiments/development.py configs/ablations/development.toml

Trains the sweep over n_layer with checkpoints at steps 0, 1, 2, 4, ..., or takes its runs, and scores heads at
initialization, at a few steps and at the end. Writes C8.json to --out. Shuffled text is no setting yet: left out.
"""

from collections.abc import Sequence

import numpy as np

from andrea_jax import claims, seeds
from andrea_jax.heads import specialization
from andrea_jax.loaded import LoadedRun
from andrea_jax.seeds import Estimate
from andrea_jax.training import steps

BETWEEN = (64, 256, 512, 1024)  # besides the first and the last
BEST = ("previous_token", "induction")


def score(loaded: LoadedRun) -> dict:
    """specialization (mean over heads), and the best head of each of BEST."""
    profile = loaded.profile()
    best = {row["probe"]: float(row["score"]) for row in profile.best.to_dict("records")}
    mean = float(specialization(profile)["specialization"].to_numpy(np.float64).mean())
    e = loaded.experiment
    about = {"n_layer": e.model.n_layer, "seed": e.train.seed, "step": loaded.step}
    return {**about, "specialization": mean, **{name: best[name] for name in BEST}}


def of(rows: Sequence[dict], measure: str, n_layer: int, step: int) -> dict[int, float]:
    """seed -> value."""
    return {row["seed"]: row[measure] for row in rows if (row["n_layer"], row["step"]) == (n_layer, step)}


def finding(rows: Sequence[dict]) -> claims.Finding:
    deep, shallow = (choose(row["n_layer"] for row in rows) for choose in (max, min))
    last = max(row["step"] for row in rows)
    names = ("specialization", *BEST)
    start, end, one_layer = (
        {name: seeds.mean(list(of(rows, name, *place).values())) for name in names}
        for place in ((deep, 0), (deep, last), (shallow, last))
    )
    gained = {name: seeds.difference(of(rows, name, deep, 0), of(rows, name, deep, last)) for name in names}
    second = {name: seeds.difference(of(rows, name, shallow, last), of(rows, name, deep, last)) for name in names}
    risen = gained["specialization"]
    verdict = claims.HOLDS if risen.verdict == "beyond noise" and risen.value > 0 else claims.DOES_NOT
    parts = [f"{name.replace('_', ' ')} {start[name].value:.2f} at initialization, {end[name].value:.2f} trained "
             f"(difference {claims.interval(gained[name])}), {one_layer[name].value:.2f} with {shallow} layer"
             for name in names]  # fmt: skip
    numbers = {"rows": list(rows), "gained": _numbers(gained), "second_layer": _numbers(second)}
    return claims.Finding("C8", verdict, f"{'; '.join(parts)}; {risen.n} seeds; shuffled text: not measured", numbers)


def _numbers(found: dict[str, Estimate]) -> dict:
    return {name: claims.as_numbers(one) for name, one in found.items()}


def main(argv: Sequence[str] | None = None) -> int:
    args = claims.parser(__doc__, "configs/ablations/development.toml").parse_args(argv)
    rows = []
    for loaded in claims.trained(args):
        kept = steps(loaded.run)
        rows += [score(loaded.at(step)) for step in kept if step in (0, *BETWEEN, kept[-1])]
    return claims.report([finding(rows)], args.out)


if __name__ == "__main__":
    raise SystemExit(main())
