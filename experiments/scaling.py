"""What would training on 8 to 1,024 GPUs send between them, and how much of their speed would be left?

    python experiments/scaling.py

Prints the tables of docs/scaling.md: megabytes a step over each axis of the mesh, and the share of a step in which a
GPU computes, from andrea_jax/training/traffic.py. Rates of one GPU are --rates, tokens/s of each config.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from andrea_jax import config_files
from andrea_jax.config import Experiment
from andrea_jax.config_mesh import Mesh
from andrea_jax.training import traffic

CONFIGS = ("configs/andrea-12m.toml", "configs/andrea-120m.toml", "configs/andrea-480m.toml")
RATES = (3.19e6, 694e3, 168e3)  # torch.compile on one H200; a faster step makes sending the larger part
WINDOWS = (64, 32, 16)  # a GPU, where the batch grows with the GPUs
MESHES = (
    Mesh(data=8), Mesh(fsdp=8), Mesh(data=2, heads=4), Mesh(data=64), Mesh(data=8, fsdp=8), Mesh(data=16, heads=4),
    Mesh(data=1024), Mesh(data=128, fsdp=8), Mesh(data=256, heads=4),
)  # fmt: skip
LINKS = traffic.Links()


def row(name: str, e: Experiment, mesh: Mesh, windows: int, rate: float) -> str:
    """A line of the table: what each axis sends and takes, and the efficiency without and with overlap."""
    seq, itemsize = e.data.seq_len, 2 if e.compute.dtype == "bfloat16" else 4
    over = traffic.sent(e.model, mesh, windows=windows, seq=seq, itemsize=itemsize)
    times = traffic.seconds(over, mesh, LINKS)
    computing = windows * seq / mesh.size / rate
    low, high = traffic.efficiency(computing, times)
    cells = [
        f"{over[axis].bytes / 1e6:,.0f}, {1e3 * times[axis]:.1f} ms" if axis in over else "–" for axis in vars(mesh)
    ]
    about = [name, mesh.shape, f"{windows * seq / 1e6:.2g}M", f"{1e3 * computing:.2f}"]
    return f"| {' | '.join([*about, *cells])} | {low:.0%} – {high:.0%} |"


def table(title: str, rows: Sequence[str]) -> str:
    head = "| model | mesh | tokens a step | computing, ms | data: MB, time | fsdp | heads | efficiency |"
    return "\n".join([f"**{title}**", "", head, "|---|---|---|---|---|---|---|---|", *rows, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", type=Path, default=[Path(path) for path in CONFIGS])
    parser.add_argument("--rates", nargs="+", type=float, default=RATES)
    args = parser.parse_args(arguments)
    models = [(path.stem, config_files.load(path)) for path in args.configs]
    each = list(zip(models, args.rates, WINDOWS, strict=False))
    growing = [row(name, e, mesh, n * mesh.size, rate) for (name, e), rate, n in each for mesh in MESHES]
    fixed = [row(name, e, mesh, 1024, rate) for (name, e), rate, _ in each for mesh in MESHES]
    print(table(f"As many windows on every GPU: {', '.join(map(str, WINDOWS))}", growing))
    print(table("1,024 windows a step, however many GPUs", fixed))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
