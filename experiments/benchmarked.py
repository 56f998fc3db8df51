"""What does the attention benchmark say of one kernel for all heads (C12), and of head_dim 32, 64 and 72 (C13)?

    python experiments/benchmarked.py docs/results/attention/attention.json

Reads what `andrea bench attention` wrote on a GPU. Writes C12.json and C13.json to --out, with the benchmark's own
date, device and command.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from andrea_jax import claims

ORIGIN = ("date", "device", "command", "commit", "dirty", "versions", "platform", "cpu_count")
SEQ = 1024  # of the widths that are compared
WIDTHS = (32, 64, 72)


def one_kernel(found: dict) -> claims.Finding:
    """C12, from the launches in the compiled programs of the project's own kernels."""
    rows = [row for row in found["rows"] if row["contender"] in ("mosaic", "triton") and row["passes"] == "forward"
            and row["launches"] is not None]  # fmt: skip
    counts: dict[str, list[int]] = {}
    for row in rows:
        counts.setdefault(row["contender"], []).append(row["launches"])
    least, most = (choose(row["batch"] * row["n_head"] for row in rows) for choose in (min, max))
    shown = "; ".join(f"{name} {min(n)} to {max(n)}" for name, n in counts.items())
    single = [name for name, n in counts.items() if min(n) == 1]
    verdict = claims.HOLDS if set(single) == set(counts) else claims.DOES_NOT
    sentence = f"launches forward, for {least} to {most} pairs of sequence and head: {shown}. Grids: not timed"
    return claims.Finding("C12", verdict, sentence, {"launches": counts}, _origin(found))


def widths(found: dict) -> claims.Finding:
    """C13, from the rates forward."""
    rates: dict[str, dict[int, float]] = {}
    for row in found["rows"]:
        if row["passes"] == "forward" and row["seq"] == SEQ and row["head_dim"] in WIDTHS and row["tflops"]:
            rates.setdefault(row["contender"], {})[row["head_dim"]] = row["tflops"]
    share = {name: {width: of[width] / of[64] for width in of if width != 64} for name, of in rates.items() if 64 in of}
    underuses, slower = (all(of[width] < 1 for of in share.values() if width in of) for width in (32, 72))
    falls_back = [name for name, of in share.items() if 72 not in of]
    batch = {row["head_dim"]: row["batch"] for row in found["rows"] if row["seq"] == SEQ}
    if underuses and slower and not falls_back:
        verdict = "holds if a lower rate is meant; 72 needs no fallback"
    else:
        verdict = claims.HOLDS if underuses and falls_back else claims.DOES_NOT
    each = "; ".join(f"{name} {', '.join(f'{w} {part:.0%}' for w, part in of.items())}" for name, of in share.items())
    sizes = ", ".join(f"{width}: {n}" for width, n in batch.items())
    sentence = f"attention forward, T {SEQ:,}, rate over that of head_dim 64: {each} (sequences by head_dim: {sizes})"
    numbers = {name: {str(width): rate for width, rate in of.items()} for name, of in rates.items()}
    return claims.Finding("C13", verdict, sentence, {"tflops": numbers}, _origin(found))


def _origin(found: dict) -> dict:
    return {name: found[name] for name in ORIGIN} | {
        "command": f"-m andrea_jax.cli {found['command'].split(' ', 1)[1]}"
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results", "claims"))
    args = parser.parse_args(argv)
    found = json.loads(args.results.read_text(encoding="utf-8"))
    return claims.report([one_kernel(found), widths(found)], args.out)


if __name__ == "__main__":
    raise SystemExit(main())
