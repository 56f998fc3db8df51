"""Do per-head and fused projections train the same, under which optimizer, and where do trajectories part (C2)?

    python experiments/optimizers.py configs/ablations/optimizers.toml

Trains every optimizer of the sweep on both projections, seed by seed, from the same numbers on the same batches. Where
the first updates differ, it does so again with optim.matrices = "fused", the partition that shows an optimizer the same
matrices of both. Rounding alone makes trajectories part in the end, so another training is the control: fused, its
weights moved by one part in ten million. Writes C2.json and C2.png to --out.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from andrea_jax import claims, config_files, data, seeds
from andrea_jax.comparison import largest_difference, trajectory
from andrea_jax.config import Experiment
from andrea_jax.data import Dataset
from andrea_jax.plots.study_figures import trajectories

NUDGE = 1e-7  # the size of float32's rounding
NOISE = 10  # times the control's: more is no rounding
LEAST = 1e-6  # nats: a loss is not more exact than that
KINDS = {("per_head", "stored"): "per head", ("per_head", "fused"): "per head, optimizer sees fused matrices",
         ("nudged", "stored"): "fused, moved by 1e-7 (rounding)"}  # fmt: skip
SEES = {
    "lamb": "the norm of each stored array",
    "adafactor": "the root mean square of each stored array, and its rows and columns from 128 on",
    "muon": "2-D matrices, and leaves per-head W_Q, W_K, W_V and W_O, which are 3-D, to AdamW",
}


def compared(e: Experiment, dataset: Dataset) -> dict:
    """Of one optimizer and seed: how far the per-head training and the control are from the fused one."""
    fused, per_head = (dataclasses.replace(e, model=dataclasses.replace(e.model, projection=name))
                       for name in ("fused", "per_head"))  # fmt: skip
    update, losses = trajectory(fused, dataset)
    found: dict = {"optimizer": e.optim.name, "matrices": e.optim.matrices, "seed": e.train.seed, "gaps": {},
                   "final_loss": losses[-10:].mean()}  # fmt: skip
    for name, (other, nudge) in {"per_head": (per_head, 0.0), "nudged": (fused, NUDGE)}.items():
        first, others = trajectory(other, dataset, nudge)
        found["gaps"][name] = np.abs(others - losses)
        found[f"{name}_first_update"] = largest_difference(update, first)
        found[f"{name}_largest_loss_gap"] = found["gaps"][name].max()
    return found | {"parts_at_step": parting(**found["gaps"])}


def parting(per_head: np.ndarray, nudged: np.ndarray) -> int | None:
    """The first step whose loss is further apart than NOISE times what rounding has made so far; None where none is."""
    apart = per_head > NOISE * np.maximum.accumulate(np.maximum(nudged, LEAST))
    return int(np.argmax(apart)) + 1 if apart.any() else None


def groups(experiments: Sequence[Experiment], dataset: Dataset) -> list[list[dict]]:
    """The seeds of every optimizer: as it is and, where its first updates differ, with fused matrices."""
    found = []
    for name in dict.fromkeys(e.optim.name for e in experiments):
        mine = [e for e in experiments if e.optim.name == name]
        found.append([compared(e, dataset) for e in mine])
        if not same(found[-1]):
            mended = [dataclasses.replace(e, optim=dataclasses.replace(e.optim, matrices="fused")) for e in mine]
            found.append([compared(e, dataset) for e in mended])
    return found


def same(rows: Sequence[dict]) -> bool:
    """Whether it is the same training, in every seed: a first update that is equal but for rounding."""
    return all(row["per_head_first_update"] <= NOISE * row["nudged_first_update"] for row in rows)


def finding(found: Sequence[Sequence[dict]]) -> claims.Finding:
    alike, mended = ([rows[0]["optimizer"] for rows in found if same(rows) and rows[0]["matrices"] == matrices]
                     for matrices in ("stored", "fused"))  # fmt: skip
    parts = [f"works element by element ({', '.join(alike)})"] if alike else []
    parts += [f"sees the same matrices of both ({', '.join(mended)})"] if mended else []
    conditional = f"holds if the optimizer {' or '.join(parts)}" if parts else claims.DOES_NOT
    verdict = claims.HOLDS if all(map(same, found)) else conditional
    every = [row for rows in found for row in rows]
    gaps = [pd.DataFrame({"optimizer": row["optimizer"], "kind": kind, "seed": row["seed"],
                          "step": np.arange(1, len(row["gaps"][name]) + 1), "gap": row["gaps"][name]})
            for (name, matrices), kind in KINDS.items() for row in every if row["matrices"] == matrices]  # fmt: skip
    figure = trajectories(pd.concat(gaps), claims.title("C2", verdict))
    numbers = {"rows": [{name: value for name, value in row.items() if name != "gaps"} for row in every]}
    return claims.Finding("C2", verdict, "; ".join(map(sentence, found)), numbers, figure=figure)


def sentence(rows: Sequence[dict]) -> str:
    name, seen = rows[0]["optimizer"], rows[0]["matrices"]
    which = f"{name} on fused matrices" if seen == "fused" else f"{name} (sees {SEES.get(name, 'single numbers')})"
    rounding, gaps = ({row["seed"]: row[f"{kind}_largest_loss_gap"] for row in rows} for kind in ("nudged", "per_head"))
    first, more = max(row["per_head_first_update"] for row in rows), seeds.difference(rounding, gaps)
    at = [row["parts_at_step"] for row in rows if row["parts_at_step"]]
    when = f"part at step {' or '.join(map(str, sorted(set(at))))} in {len(at)}" if at else "part beyond rounding in 0"
    return (f"{which}: first updates {first:.0e} of the largest apart, losses {when} of {len(rows)} seeds, up to "
            f"{max(gaps.values()):.4f} nats (rounding alone: {max(rounding.values()):.4f}; on average "
            f"{claims.interval(more, 4)}, {more.verdict})")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    args = claims.parser(__doc__, "configs/ablations/optimizers.toml").parse_args(argv)
    experiments = [e for e in config_files.expand(args.config, args.overrides) if e.model.projection == "fused"]
    return claims.report([finding(groups(experiments, data.prepare(experiments[0])))], args.out)


if __name__ == "__main__":
    raise SystemExit(main())
