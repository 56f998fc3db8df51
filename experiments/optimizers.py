"""Do per-head and fused projections train the same, under which optimizer, and where do trajectories part (C2)?

    python experiments/optimizers.py configs/ablations/optimizers.toml

Trains every optimizer of the sweep on both projections, from the same numbers on the same batches. Rounding alone makes
trajectories part in the end, so a third training is the control: fused, its weights moved by one part in ten million.
Writes C2.json to --out.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from andrea_jax import claims, config_files, data, model
from andrea_jax.comparison import largest_difference
from andrea_jax.config import Experiment
from andrea_jax.conversion import convert
from andrea_jax.data import Dataset
from andrea_jax.model import Params
from andrea_jax.training import optimizer
from andrea_jax.training.step import make_step

NUDGE = 1e-7  # the size of float32's rounding
NOISE = 10  # times the control's first update: more is no rounding
APART = 0.01  # nats of training loss: trajectories have parted
SEES = {
    "lamb": "the norm of each stored array",
    "adafactor": "the root mean square of each stored array, and its rows and columns from 128 on",
    "muon": "2-D matrices, and leaves per-head W_Q, W_K, W_V and W_O, which are 3-D, to AdamW",
}


def train(e: Experiment, dataset: Dataset, nudge: float = 0.0) -> tuple[Params, np.ndarray]:
    """(the first step's update of all parameters, as of the fused model; loss of every step)."""
    params = jax.tree.map(lambda x: x * (1 + nudge), model.initialise(e.model, e.train.seed))
    start = jax.tree.map(np.asarray, params)
    step, state, losses, first = make_step(e), optimizer.make(e.optim, e.train.steps).init(params), [], None
    for i in range(e.train.steps):
        params, state, metrics = step(params, state, jnp.asarray(data.batch(dataset, e, i), jnp.int32))
        losses.append(float(metrics["loss"]))
        first = jax.tree.map(lambda a, b: np.asarray(a) - b, params, start) if first is None else first
    assert first is not None  # a config has a step at least
    return convert(e.model, first, "fused")[1], np.array(losses)


def compared(e: Experiment, dataset: Dataset) -> dict:
    """Of one optimizer: how far the per-head training and the control are from the fused one."""
    fused, per_head = (dataclasses.replace(e, model=dataclasses.replace(e.model, projection=name))
                       for name in ("fused", "per_head"))  # fmt: skip
    update, losses = train(fused, dataset)
    found: dict = {"optimizer": e.optim.name, "matrices": e.optim.matrices, "final_loss": losses[-10:].mean()}
    for name, trained in {"per_head": train(per_head, dataset), "nudged": train(fused, dataset, NUDGE)}.items():
        apart = np.abs(trained[1] - losses)
        found[f"{name}_first_update"] = largest_difference(update, trained[0])
        found[f"{name}_largest_loss_gap"] = apart.max()
        found[f"{name}_parts_at_step"] = int(np.argmax(apart > APART)) + 1 if (apart > APART).any() else None
    return found


def rows(e: Experiment, dataset: Dataset) -> list[dict]:
    """Of one optimizer: as it is and, where its first updates differ, with fused matrices."""
    found = [compared(e, dataset)]
    if not same(found[0]):
        optim = dataclasses.replace(e.optim, matrices="fused")
        found.append(compared(dataclasses.replace(e, optim=optim), dataset))
    return found


def same(row: dict) -> bool:
    return row["per_head_first_update"] <= NOISE * row["nudged_first_update"]


def finding(found: Sequence[dict]) -> claims.Finding:
    """Whether it is the same training: a first update that is equal but for rounding."""
    alike, mended = ([row for row in found if same(row) and row["matrices"] == m] for m in ("stored", "fused"))
    apart = [row for row in found if not same(row)]
    parts = []
    if alike:
        parts.append(f"works element by element ({', '.join(row['optimizer'] for row in alike)})")
    if mended:
        parts.append(f"sees the same matrices of both ({', '.join(row['optimizer'] for row in mended)})")
    conditional = f"holds if the optimizer {' or '.join(parts)}" if parts else claims.DOES_NOT
    verdict = conditional if apart else claims.HOLDS
    return claims.Finding("C2", verdict, "; ".join(map(_sentence, found)), {"rows": list(found)})


def _sentence(row: dict) -> str:
    name = f"{row['optimizer']} on fused matrices" if row["matrices"] == "fused" else row["optimizer"]
    sees = f" (sees {SEES.get(row['optimizer'], 'single numbers')})" if row["matrices"] == "stored" else ""
    gaps = f"{row['per_head_largest_loss_gap']:.4f} nats (rounding alone: {row['nudged_largest_loss_gap']:.4f})"
    return f"{name}{sees}: first updates {row['per_head_first_update']:.0e} of the largest apart, losses up to {gaps}"


def main(argv: Sequence[str] | None = None) -> int:
    args = claims.parser(__doc__, "configs/ablations/optimizers.toml").parse_args(argv)
    experiments = [e for e in config_files.expand(args.config, args.overrides) if e.model.projection == "fused"]
    dataset = data.prepare(experiments[0])
    return claims.report([finding([row for e in experiments for row in rows(e, dataset)])], args.out)


if __name__ == "__main__":
    raise SystemExit(main())
