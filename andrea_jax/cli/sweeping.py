"""Many runs: sweep, compare."""

import argparse
import json
from pathlib import Path

from andrea_jax import arguments, config_files
from andrea_jax.cli import parts
from andrea_jax.errors import UserError


def add(commands) -> None:
    _add_sweep(commands)
    _add_compare(commands)


def _add_sweep(commands) -> None:
    example = "andrea sweep configs/ablations/n-head.toml train.steps=200 --workers 2"
    parser = parts.command(
        commands, "sweep", _sweep, "train every run of a config's [sweep], or go on with it", example
    )
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help=parts.OVERRIDES)
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs go (runs)")
    parser.add_argument(
        "--workers", type=arguments.positive, default=1, metavar="N",
        help="runs at a time, each in a process with its share of the GPUs and cores (1: in this process)",
    )  # fmt: skip
    parser.add_argument(
        "--launcher", choices=("local", "ray"), default="local", help="on this machine (local) or a Ray cluster"
    )
    parser.add_argument(
        "--vmap-seeds", action="store_true",
        help="train runs that differ in train.seed alone in one program: for small models on a GPU",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print what became of each run as JSON")


def _sweep(args: argparse.Namespace) -> int:
    config_files.expand(args.config, args.overrides)  # before JAX loads
    from andrea_jax.plots import messages
    from andrea_jax.sweeps import board, runner

    messages.show_log()
    code = 0
    try:
        found = runner.sweep(
            args.config, args.overrides, args.runs, workers=args.workers, launcher=args.launcher,
            vmap_seeds=args.vmap_seeds, progress=not args.json,
        )  # fmt: skip
    except runner.Stopped as stopped:
        found, code = stopped.found, 130
    if args.json:
        print(json.dumps([{"run": str(one.run.path), "state": one.state, "message": one.message} for one in found]))
    else:
        messages.show(*board.result(found))
    return code or int(any(one.state != "finished" for one in found))


def _add_compare(commands) -> None:
    example = "andrea compare configs/ablations/n-head.toml train.steps=200"
    parser = parts.command(commands, "compare", _compare, "compare runs, or the runs of a sweep", example)
    parser.add_argument("what", nargs="+", metavar="RUN|SWEEP", help="run directories, or the config of a sweep")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help=f"of a sweep: {parts.OVERRIDES}")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="where a sweep's runs lie (runs)"
    )
    parser.add_argument(
        "--step", type=arguments.step, default="last", metavar="last|best|N", help="which checkpoint of each (last)"
    )
    parser.add_argument("--backend", metavar="NAME", help="attention backend, instead of the runs' own")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where tables and figures go (results/<name>)")
    parser.add_argument("--json", action="store_true", help="print the tables of runs and differences as JSON")


def _compare(args: argparse.Namespace) -> int:
    words = [*args.what, *args.overrides]
    overrides = [word for word in words if "=" in word and not Path(word).exists()]
    named = [Path(word) for word in words if word not in overrides]
    sweeps = [path for path in named if path.suffix == ".toml"]
    if sweeps and len(named) > 1:
        raise UserError(f"{sweeps[0]}: a sweep is compared by itself, and {len(named) - 1} more were named")
    if overrides and not sweeps:
        raise UserError(f"{overrides[0]}: runs are compared as they were trained; name the config of a sweep")
    out = args.out or Path("results", named[0].stem if sweeps else "compared")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; --out names a folder")
    if sweeps:
        config_files.expand(sweeps[0], overrides)  # before JAX loads
    from andrea_jax.plots import messages
    from andrea_jax.sweeps.comparing import compare_runs

    with messages.progress("measuring runs", quiet=args.json) as tell:
        found = compare_runs(
            sweeps[0] if sweeps else named, overrides, args.runs, step=args.step, backend=args.backend, progress=tell
        )
    written = found.save(out)
    if args.json:
        tables = {name: json.loads(getattr(found, name).to_json(orient="records")) for name in ("runs", "differences")}
        print(json.dumps({"out": str(out), "notes": found.notes, **tables}))
    else:
        messages.show(*found.tables())
        print(*written, sep="\n")
    return 0
