"""The command line: parse, call, print. Everything it does is a function of the package."""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence

import andrea_jax
from andrea_jax.cli import benching, comparing, estimating, interop, looking, parts, sweeping, training
from andrea_jax.errors import UserError

MODULES = (training, estimating, sweeping, looking, comparing, interop, benching)  # each adds its commands


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Exit codes: 0 done, 1 the projections differ (compare-projections), 2 bad input (one message,
    no traceback), 130 stopped by Ctrl-C."""
    warnings.showwarning = _say
    args = _parse(argv)
    try:
        code = args.command(args)
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe went away; Python flushes stdout once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # no room, no permission, a folder in place of a file
        said = f"{error.filename}: {error.strerror}" if error.filename else error
        print(f"error: {said}", file=sys.stderr)
        return 2


def _say(message: object, *where: object) -> None:
    """A warning is one line: where in the code it was raised is nothing to a user."""
    print(f"warning: {message}", file=sys.stderr)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """argparse takes overrides only where they follow the config at once; here they may follow an option as well."""
    args, left = _parser().parse_known_args(argv)
    if left and ("overrides" not in args or any(argument.startswith("-") for argument in left)):
        args.parser.refuse(left, takes_keys="overrides" in args)
    if left:
        args.overrides += left
    return args


def _parser() -> parts.Parser:
    about = "What attention heads become, and how to compute them."
    first = "example: andrea train configs/quickstart.toml; andrea COMMAND --help has one of each command"
    parser = parts.Parser(prog="andrea", description=about, epilog=first)
    parser.add_argument("--version", action="version", version=f"andrea_jax {andrea_jax.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in MODULES:
        module.add(commands)
    return parser
