"""What do the benchmarks of a GPU say about the claims of cost: C3, C4, C11 to C14?

    python experiments/benchmarked.py results/bench-layout/layout.json results/bench-head-dim/head-dim.json

Reads what `andrea bench attention`, `projections`, `layout`, `head-dim` and `train` wrote, finished or not. Writes a
JSON file a claim to --out, with the benchmark's own date, device and command; of two files on one claim the later
counts.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from andrea_jax import claims
from andrea_jax.benchmarks import verdicts


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("results", "claims"))
    args = parser.parse_args(argv)
    last = {one.claim: one for path in args.results for one in verdicts.findings(path)}
    return claims.report(list(last.values()), args.out)


if __name__ == "__main__":
    raise SystemExit(main())
