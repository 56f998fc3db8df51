"""Do seeds of one config that train together, by `vmap`, take less time than one after the other on this device?

    python experiments/vmapped_seeds.py configs/quickstart.toml

Times the training step as it is and that of several seeds at once, as `andrea sweep --vmap-seeds` makes it, by turns;
on random tokens, so no data is needed. Prints a line a config and a number of seeds, and writes vmapped-seeds.json to
--out.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from andrea_jax import config_files, model
from andrea_jax.config import Experiment
from andrea_jax.runs import circumstances, now, write_atomically
from andrea_jax.training import device, optimizer
from andrea_jax.training.step import make_step, make_steps

TURNS = 5


def training(e: Experiment, n: int) -> Callable[[], float]:
    """A call makes some steps of n seeds together, of one seed as a run does, and returns seconds a step; this one
    compiles it."""
    params = jax.vmap(lambda seed: model.initialise(e.model, seed))(jnp.arange(n))
    state = jax.vmap(optimizer.make(e.optim, e.train.steps).init)(params)
    shape = (n, e.train.batch_size, e.data.seq_len + 1)
    tokens = jax.random.randint(jax.random.key(0), shape, 1, e.model.vocab_size)
    if n == 1:
        params, state, tokens = jax.tree.map(lambda x: x[0], (params, state, tokens))
    step = make_step(e) if n == 1 else make_steps(e)

    def steps(count: int) -> float:
        nonlocal params, state
        began = time.perf_counter()
        for _ in range(count):
            params, state, _ = step(params, state, tokens)
        jax.block_until_ready((params, state))
        return (time.perf_counter() - began) / count

    steps(3)  # the first compiles
    count = max(3, round(0.3 / steps(5)))
    return lambda: steps(count)


def measure(e: Experiment, several: Sequence[int]) -> list[dict]:
    """A row a number of seeds: ms a step, that over one seed's, and tokens/s of all seeds together."""
    calls = {n: training(e, n) for n in dict.fromkeys([1, *several])}
    best = dict.fromkeys(calls, math.inf)
    for _ in range(TURNS):
        best = {n: min(best[n], call()) for n, call in calls.items()}
    a_step = e.train.batch_size * e.data.seq_len
    return [{"seeds": n, "ms": 1e3 * s, "times_one": s / best[1], "tokens_per_s": n * a_step / s}
            for n, s in best.items()]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", type=Path, nargs="+")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of every config")
    parser.add_argument("--seeds", type=int, nargs="+", default=[3], help="how many train together (3)")
    parser.add_argument("--out", type=Path, default=Path("results", "vmapped-seeds"))
    args = parser.parse_args(argv)
    rows = []
    for path in args.configs:
        rows += [{"config": path.stem, **row} for row in measure(config_files.load(path, args.set), args.seeds)]
    for row in rows:
        print(f"{row['config']}: {row['seeds']} seeds {row['ms']:.2f} ms a step, {row['times_one']:.2f} times one "
              f"seed's, {row['tokens_per_s']:,.0f} tokens/s")  # fmt: skip
    found = {"date": now(), "device": device(), **circumstances(), "rows": rows}
    print(f"written to {write_atomically(args.out / 'vmapped-seeds.json', json.dumps(found, indent=1))}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
