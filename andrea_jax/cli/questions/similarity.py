"""Which heads of a run are alike: `andrea heads RUN similarity`."""

import argparse

from andrea_jax.cli import parts
from andrea_jax.cli.questions import answers


def add(questions) -> None:
    example = "andrea heads runs/quickstart-1a2b3c4d similarity"
    parts.question(questions, "similarity", _similarity, "which heads attend alike, and write alike", example)


def _similarity(args: argparse.Namespace) -> int:
    from andrea_jax import explained
    from andrea_jax.plots import circuit_tables, messages, similarity_figures

    loaded = parts.open_run(args)
    with messages.progress("comparing heads", quiet=args.json) as tell:
        found = explained.similarity(loaded, tell)
    figure = similarity_figures.similarity(found.heads, found.pairs)
    tables = [circuit_tables.similarity_table(found.heads)]
    return answers.say(args, loaded, "similarity", tables, figure, {"heads": found.heads, "pairs": found.pairs})
