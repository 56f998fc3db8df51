"""What has been found about each claim of the lesson?

    python experiments/write_claims.py

Makes docs/results/claims.md of the findings in docs/results/claims, where the other scripts' JSON files are kept: copy
them there from results/claims.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from andrea_jax import claims
from andrea_jax.runs import write_atomically


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claims", type=Path, default=Path("docs", "results", "claims"), help="where findings lie")
    parser.add_argument("--out", type=Path, default=Path("docs", "results", "claims.md"))
    args = parser.parse_args(argv)
    print(f"written to {write_atomically(args.out, claims.page(args.claims))}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
