"""Do heads specialize on real text in every seed, and does one layer do without an induction head (C8, a first look)?

    python experiments/specialize.py configs/quickstart.toml

Trains the config with --seeds, and each seed again with one layer (the control: an induction head needs a head of an
earlier layer to compose with). Figures are those of the head chosen on one half of the sequences, from the other half.
Writes specialize.json to --out.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.table import Table

from andrea_jax import config_files, data, runs
from andrea_jax.loaded import load_run
from andrea_jax.plots import messages
from andrea_jax.training import train

GOALS = {"previous_token": 0.75, "induction": 0.6}  # at least, with two layers or more
MOST_CONTROL = 0.1  # of induction: at wrong offsets, and with one layer


def outcome(config: Path, overrides: Sequence[str], seed: int, n_layer: int | None, root: Path) -> dict:
    """Trains (or finds trained) one run and scores its heads."""
    keys = [*overrides, f"train.seed={seed}", *([] if n_layer is None else [f"model.n_layer={n_layer}"])]
    experiment = config_files.load(config, keys)
    path = root / f"{config.stem}-{config_files.run_id(experiment)}"
    run = runs.Run.open(path) if path.exists() else runs.create(root, experiment, config.stem)
    if not run.provenance.get("finished"):
        train(run, data.prepare(experiment))
    loaded = load_run(run.path)
    best = loaded.profile().best.set_index("probe")
    losses = [line["eval_loss"] for line in run.metrics() if "eval_loss" in line]
    found = {"run": str(run.path), "seed": seed, "n_layer": experiment.model.n_layer, "heldout_loss": losses[-1]}
    for probe in ("previous_token", "induction", "bracket"):
        found |= {f"{probe}_{name}": best.at[probe, name] for name in ("layer", "head", "score", "low", "high")}
    written = run.provenance
    return found | {"control": best.at["induction", "control"], "tokens_per_s": written["tokens_per_s"],
                    "repeat_share": experiment.data.repeat_share, "device": written["device"],
                    "versions": written["versions"], "created": written["created"]}  # fmt: skip


def verdict(rows: pd.DataFrame) -> str:
    deep, shallow = rows[rows["n_layer"] > 1], rows[rows["n_layer"] == 1]
    good = (deep["control"] <= MOST_CONTROL) & (shallow["induction_score"].max() <= MOST_CONTROL)
    for probe, least in GOALS.items():
        good &= deep[f"{probe}_score"] >= least
    goals = ", ".join(f"{probe} >= {least}" for probe, least in GOALS.items())
    return (f"{good.sum()} of {len(deep)} seeds: {goals}, at wrong offsets <= {MOST_CONTROL}, "
            f"with one layer <= {MOST_CONTROL} (largest: {shallow['induction_score'].max():.2f})")  # fmt: skip


def table(rows: pd.DataFrame) -> Table:
    names = ["seed", "n_layer", "heldout_loss", "previous_token_score", "induction_score", "control", "bracket_score"]
    made = Table(*names, title="Heads by seed")
    for row in rows[names].to_dict("records"):
        made.add_row(*(f"{row[name]:.2f}" if isinstance(row[name], float) else str(row[name]) for name in names))
    return made


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=Path("results", "specialize"))
    args = parser.parse_args(argv)
    settings = [(seed, n_layer) for seed in args.seeds for n_layer in (None, 1)]
    found = [outcome(args.config, args.overrides, *setting, args.runs) for setting in settings]
    rows = pd.DataFrame(found)
    messages.show(table(rows))
    runs.write_atomically(
        args.out / "specialize.json", json.dumps(json.loads(rows.to_json(orient="records")), indent=1)
    )
    print(verdict(rows), f"written to {args.out}", sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
