"""What the commands share: how one is declared, and the run that most of them open."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, get_args

from andrea_jax import arguments
from andrea_jax.config import Backend
from andrea_jax.config_keys import nearest_key
from andrea_jax.errors import UserError, did_you_mean, nearest

OVERRIDES = "section.key=value, in TOML syntax: train.steps=100 model.projection=per_head"


class Parser(argparse.ArgumentParser):
    """Says in one sentence what is wrong, with the nearest right word, and where the rest is told."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            text = f'must be one of {", ".join(names)}, not "{value}"{did_you_mean(str(value), names)}'
            raise argparse.ArgumentError(action, text)

    def refuse(self, unknown: Sequence[str], *, takes_keys: bool) -> NoReturn:
        """Arguments that nobody asked for; takes_keys: whether config keys can follow, as key=value."""
        word = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0].lstrip("-")
        options = [option.lstrip("-") for action in self._actions for option in action.option_strings]
        close, key = nearest(word, options), nearest_key(word.replace("-", "_")) if takes_keys else None
        meant = f"--{close}" if close else f"{key}=..." if key else None
        hint = f' (did you mean "{meant}"?)' if meant else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def command(
    commands, name: str, function: Callable[[argparse.Namespace], int], what: str, example: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=f"example: {example}"
    )
    parser.set_defaults(command=function, parser=parser)
    return parser


def question(
    questions, name: str, function: Callable[[argparse.Namespace], int], what: str, example: str
) -> argparse.ArgumentParser:
    """A question about the heads of a run; --step, --backend and --json may stand after its name too."""
    parser = command(questions, name, function, what, example)
    _add_checkpoint(parser, step=argparse.SUPPRESS, backend=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print the tables as JSON")
    return parser


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    _add_checkpoint(parser, step="last", backend=None)


def _add_checkpoint(parser: argparse.ArgumentParser, *, step: str, backend: str | None) -> None:
    which = "which checkpoint (last)"
    parser.add_argument("--step", type=arguments.step, default=step, metavar="last|best|N", help=which)
    text = f"attention backend, instead of the run's own: {', '.join(get_args(Backend))}"
    parser.add_argument("--backend", default=backend, metavar="NAME", help=text)


def open_run(args: argparse.Namespace):
    from andrea_jax.loaded import load_run

    return load_run(args.run, args.step, args.backend)


def refuse_overrides(args: argparse.Namespace, why: str) -> None:
    if args.overrides:
        raise UserError(f"{args.overrides[0]}: {why}")
