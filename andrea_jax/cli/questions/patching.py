"""What goes through a head from one prompt to another: `andrea heads RUN patching`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from andrea_jax import arguments
from andrea_jax.cli import parts
from andrea_jax.cli.questions import answers
from andrea_jax.errors import UserError

if TYPE_CHECKING:
    from andrea_jax.explained import Pair

COLUMNS = ("CLEAN", "CORRUPTED", "ANSWER", "WRONG")


def add(questions) -> None:
    what = "through which heads the difference between two prompts goes"
    example = "andrea heads runs/quickstart-1a2b3c4d patching 'f(a, (b' 'f(a, [b' ')' ']'"
    parser = parts.question(questions, "patching", _patching, what, example)
    text = "CLEAN CORRUPTED ANSWER WRONG: two prompts of as many tokens, and the token that should follow each; or one"
    parser.add_argument("pairs", nargs="+", metavar="TEXT", help=f"{text} file of such lines, tabs between the four")
    choices, text = (
        ("head", "position", "head_position"),
        "what is put from the clean run into the corrupted one (head)",
    )
    parser.add_argument("--by", choices=choices, default="head", help=text)
    text = "instead: what each head does along the paths to the inputs of these heads, or to the logits, alone"
    parser.add_argument("--to", type=_receivers, metavar="L.H,...|logits", help=text)
    parser.add_argument("--inputs", default="q,k,v", metavar="q,k,v", help="which inputs of these heads (all)")


def _receivers(text: str):
    return text if text == "logits" else arguments.heads(text)


def _patching(args: argparse.Namespace) -> int:
    if args.to and args.by != "head":
        raise UserError(f"--by {args.by}: paths (--to) are by head")
    from andrea_jax import explained
    from andrea_jax.plots import messages
    from andrea_jax.plots.patching_figures import patching_table

    loaded, pairs = parts.open_run(args), _pairs(args.pairs)
    settings = {"by": args.by, "receivers": args.to, "inputs": args.inputs.split(",")}
    with messages.progress("patching", quiet=args.json) as tell:
        found = explained.patching(loaded, pairs, **settings, progress=tell)
    table = patching_table(found.table, found.by, found.pieces, found.n)
    as_json = {"clean": found.clean, "corrupted": found.corrupted, "table": found.table}
    return answers.say(args, loaded, "patching", [table], found.figure(), as_json)


def _pairs(words: list[str]) -> "list[Pair]":
    """From four words, or from the lines of a file."""
    from andrea_jax.explained import Pair

    if len(words) == len(COLUMNS):
        return [Pair(*words)]
    path = Path(words[0])
    if len(words) > 1:
        raise UserError(f"patching: expected {' '.join(COLUMNS)}, or one file of them, not {len(words)} texts")
    if not path.is_file():
        raise UserError(f"{path}: is no file; patching takes {' '.join(COLUMNS)}, or one file of them")
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line]
    for number, line in enumerate(lines, start=1):
        if len(line) != len(COLUMNS):
            columns = ", ".join(COLUMNS)
            raise UserError(f"{path}, pair {number}: {len(line)} columns; expected {columns}, with tabs between them")
    if not lines:
        raise UserError(f"{path}: no pair of prompts")
    return [Pair(*line) for line in lines]
