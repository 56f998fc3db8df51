"""Comparing the two projections: compare-projections."""

import argparse
import json
from pathlib import Path

from andrea_jax import arguments, config_files
from andrea_jax.cli import parts
from andrea_jax.errors import UserError


def add(commands) -> None:
    _add_compare(commands)


def _add_compare(commands) -> None:
    what, example = (
        "fused against per-head: equality, speed, memory",
        "andrea compare-projections configs/quickstart.toml",
    )
    parser = parts.command(commands, "compare-projections", _compare, what, example)
    parser.add_argument("config", type=Path, metavar="CONFIG|RUN", help="a run is compared with its trained weights")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help=parts.OVERRIDES)
    parser.add_argument("--repeats", type=arguments.positive, default=20, help="timed repeats of each form (20)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="also write the tables and the figure there")
    parser.add_argument("--json", action="store_true", help="print the tables as JSON")


def _compare(args: argparse.Namespace) -> int:
    if args.config.is_dir():
        parts.refuse_overrides(args, "a run is compared as it was trained; compare its config for other values")
    source = args.config if args.config.is_dir() else config_files.load(args.config, args.overrides)
    if args.out and args.out.exists() and not args.out.is_dir():
        raise UserError(f"{args.out}: is a file; --out names a folder")
    from andrea_jax.compared import compare_projections
    from andrea_jax.plots import messages

    with messages.progress("timing projections", quiet=args.json) as tell:
        found = compare_projections(source, args.repeats, tell)
    if args.out:
        found.save(args.out)
    if args.json:
        print(json.dumps(found.as_json()))
    else:
        messages.show(*found.tables())
    return 0 if found.equal else 1
