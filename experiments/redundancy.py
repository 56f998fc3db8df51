"""Do redundant heads receive smaller gradients than unique ones (C9)?

    python experiments/redundancy.py configs/ablations/development.toml

Takes the runs of the sweep with two layers or more (trained if need be). Spearman's correlation, within layers, of a
head's gradients with its uniqueness, each in the meanings of `andrea_jax.redundancy`; mean and interval over seeds. On
batches as the next steps of training would have them: on text alone, heads for repeats only do harm.
Twin heads, planted in the trained models, are the positive control. Writes C9.json and C9.png to --out.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from andrea_jax import claims, data, redundancy, seeds
from andrea_jax.loaded import LoadedRun
from andrea_jax.plots.study_figures import correlations
from andrea_jax.redundancy import GRADIENTS, UNIQUENESS
from andrea_jax.training import steps

AT = (64, 256, 1024)  # steps, besides the last
MEANINGS = {"damage": "ablation damage", "js": "distance of patterns", "cka": "1 − CKA", "r2": "1 − R²"}


def measure(loaded: LoadedRun) -> tuple[pd.DataFrame, dict]:
    """The heads of a run at a few steps, and the twins planted in its last."""
    e, kept = loaded.experiment, steps(loaded.run)
    ahead = range(e.train.steps, e.train.steps + -(-e.probe.n_sequences // e.train.batch_size))
    tokens = np.concatenate([data.batch(loaded.dataset, e, step) for step in ahead])
    tables = [redundancy.measure(e.model, loaded.at(step).params, tokens).assign(step=step, seed=e.train.seed)
              for step in kept if step in (*AT, kept[-1])]  # fmt: skip
    return pd.concat(tables, ignore_index=True), control(loaded, tables[-1], tokens)


def control(loaded: LoadedRun, table: pd.DataFrame, tokens: np.ndarray) -> dict:
    """Twins in the last layer: its head with the largest gate gradient, in the place of that with the smallest."""
    layer = loaded.experiment.model.n_layer - 1
    gates = {row["head"]: row["gate"] for row in table.to_dict("records") if row["layer"] == layer}
    a, b = max(gates, key=gates.__getitem__), min(gates, key=gates.__getitem__)
    config, *models = redundancy.twins(loaded.experiment.model, loaded.params, layer, a, b)
    alone, twin = (redundancy.measure(config, params, tokens).set_index(["layer", "head"]).loc[(layer, a)]
                   for params in models)  # fmt: skip
    found = {"damage_alone": alone["damage"], **{name: twin[name] for name in UNIQUENESS}}
    return found | {f"{name}_ratio": twin[name] / alone[name] for name in GRADIENTS}


def over_seeds(table: pd.DataFrame) -> dict[int, dict[str, dict]]:
    """step -> "gate, damage" -> rho, mean and interval over seeds."""
    found = {}
    for step, rows in table.groupby("step"):
        each = [redundancy.correlations(of_seed) for _, of_seed in rows.groupby("seed")]
        found[step] = {f"{g}, {u}": claims.as_numbers(seeds.mean([one[g, u] for one in each])) for g, u in each[0]}
    return found


def finding(table: pd.DataFrame, controls: Sequence[dict]) -> claims.Finding:
    by_step = over_seeds(table)
    last, n = by_step[max(by_step)], table["seed"].nunique()
    true_of = [u for u in UNIQUENESS if all(last[f"{g}, {u}"]["low"] > 0 for g in GRADIENTS)]
    meanings = " or ".join(MEANINGS[name] for name in true_of)
    conditional = f"holds if unique means {meanings}" if true_of else claims.DOES_NOT
    verdict = claims.HOLDS if len(true_of) == len(UNIQUENESS) else conditional
    parts = [f"{MEANINGS[u]} {' and '.join(claims.interval(seeds.Estimate(**last[f'{g}, {u}'])) for g in GRADIENTS)}"
             for u in UNIQUENESS]  # fmt: skip
    opposite = [MEANINGS[u] for u in UNIQUENESS if all(last[f"{g}, {u}"]["high"] < 0 for g in GRADIENTS)]
    mean = {name: float(np.mean([one[name] for one in controls])) for name in controls[0]}
    reverse = f"; the opposite is beyond noise for {' and '.join(opposite)}" if opposite else ""
    sentence = (
        f"Spearman within layers, of gradients (of the head's weights, and of a gate on it) with {'; '.join(parts)} "
        f"({n} seeds, {len(table) // n // len(by_step)} heads each){reverse}. Of two planted twins (1 − R² "
        f"{mean['r2']:.2f}) each gets {mean['gate_ratio']:.2f} of the gate's and {mean['weights_ratio']:.2f} of the "
        f"weights' gradient that the head has alone, and its ablation costs {mean['damage']:.3f} nats instead of "
        f"{mean['damage_alone']:.3f}"
    )
    numbers = {"by_step": by_step, "twins": list(controls), "heads": table.to_dict("records")}
    curves = [{"meaning": MEANINGS[u], "gradient": f"gradient of the head's {g}", "step": step, **each[f"{g}, {u}"]}
              for step, each in by_step.items() for g in GRADIENTS for u in UNIQUENESS]  # fmt: skip
    figure = correlations(pd.DataFrame(curves), claims.title("C9", verdict))
    return claims.Finding("C9", verdict, sentence, numbers, figure=figure)


def main(argv: Sequence[str] | None = None) -> int:
    args = claims.parser(__doc__, "configs/ablations/development.toml").parse_args(argv)
    deep = [loaded for loaded in claims.trained(args) if loaded.experiment.model.n_layer > 1]
    tables, controls = zip(*map(measure, deep), strict=True)
    return claims.report([finding(pd.concat(tables, ignore_index=True), controls)], args.out)


if __name__ == "__main__":
    raise SystemExit(main())
