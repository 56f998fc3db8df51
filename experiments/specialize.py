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

from rich.table import Table

from andrea_jax import config_files
from andrea_jax.loaded import train_run
from andrea_jax.plots import messages
from andrea_jax.runs import write_atomically

GOALS = {"previous_token": 0.75, "induction": 0.6}  # at least, with two layers or more
MOST_CONTROL = 0.1  # of induction: at wrong offsets, and with one layer


def outcome(config: Path, overrides: Sequence[str], root: Path) -> dict:
    """Trains (or finds trained) one run and scores its heads."""
    experiment = config_files.load(config, overrides)
    loaded = train_run(experiment, config.stem, root, progress=True)
    found: dict = {"run": loaded.run.name, "seed": experiment.train.seed, "n_layer": experiment.model.n_layer}
    found["heldout_loss"] = float(loaded.metrics["eval_loss"].dropna().iloc[-1])
    for row in loaded.profile().best.to_dict("records"):
        if row["probe"] in ("previous_token", "induction", "bracket"):
            found |= {f"{row['probe']}_{name}": float(row[name]) for name in ("score", "low", "high")}
        if row["probe"] == "induction":
            found["control"] = float(row["control"])
    written = loaded.run.provenance
    return found | {key: written[key] for key in ("tokens_per_s", "repeat_share", "device", "versions", "created")}


def verdict(rows: Sequence[dict]) -> str:
    """How many seeds reach every goal, counting the one-layer control against all of them."""
    deep = [row for row in rows if row["n_layer"] > 1]
    shallow = max((row["induction_score"] for row in rows if row["n_layer"] == 1), default=0.0)
    good = [row["control"] <= MOST_CONTROL and all(row[f"{p}_score"] >= least for p, least in GOALS.items())
            for row in deep]  # fmt: skip
    n_good = sum(good) if shallow <= MOST_CONTROL else 0
    goals = ", ".join(f"{probe} >= {least}" for probe, least in GOALS.items())
    return (f"{n_good} of {len(deep)} seeds: {goals}, at wrong offsets <= {MOST_CONTROL}, "
            f"with one layer <= {MOST_CONTROL} (largest: {shallow:.2f})")  # fmt: skip


def table(rows: Sequence[dict]) -> Table:
    names = ["seed", "n_layer", "heldout_loss", "previous_token_score", "induction_score", "control", "bracket_score"]
    made = Table(*names, title="Heads by seed")
    for row in rows:
        made.add_row(*(f"{row[name]:.2f}" if isinstance(row[name], float) else str(row[name]) for name in names))
    return made


def as_json(rows: Sequence[dict]) -> str:
    """JSON has no nan: what is undefined, such as brackets in a text without any, is null."""
    return json.dumps([{k: None if v != v else v for k, v in row.items()} for row in rows], indent=1, allow_nan=False)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=Path("results", "specialize"))
    args = parser.parse_args(argv)
    settings = [[f"train.seed={seed}", *layer] for seed in args.seeds for layer in ([], ["model.n_layer=1"])]
    rows = [outcome(args.config, [*args.overrides, *setting], args.runs) for setting in settings]
    messages.show(table(rows))
    write_atomically(args.out / "specialize.json", as_json(rows))
    print(verdict(rows), f"written to {args.out}", sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
