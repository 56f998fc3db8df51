"""What the commands share: how one is declared, and the run that most of them open."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from andrea_jax import arguments
from andrea_jax.config import Backend
from andrea_jax.errors import UserError

OVERRIDES = "section.key=value, in TOML syntax: train.steps=100 model.projection=per_head"


def command(
    commands, name: str, function: Callable[[argparse.Namespace], int], what: str, example: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=f"example: {example}"
    )
    parser.set_defaults(command=function)
    return parser


def question(
    questions, name: str, function: Callable[[argparse.Namespace], int], what: str, example: str
) -> argparse.ArgumentParser:
    """A question about the heads of a run; it takes --json after its name as well as before it."""
    parser = command(questions, name, function, what, example)
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print the tables as JSON")
    return parser


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument(
        "--step", type=arguments.step, default="last", metavar="last|best|N", help="which checkpoint (last)"
    )
    names = ", ".join(get_args(Backend))
    parser.add_argument("--backend", metavar="NAME", help=f"attention backend, instead of the run's own: {names}")


def open_run(args: argparse.Namespace):
    from andrea_jax.loaded import load_run

    return load_run(args.run, args.step, args.backend)


def refuse_overrides(args: argparse.Namespace, why: str) -> None:
    if args.overrides:
        raise UserError(f"{args.overrides[0]}: {why}")
