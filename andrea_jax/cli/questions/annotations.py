"""Syntax and semantics: `andrea heads RUN annotated` and `andrea heads RUN brackets`."""

import argparse
from pathlib import Path

from andrea_jax.cli import parts
from andrea_jax.cli.questions import answers

RUN = "runs/quickstart-1a2b3c4d"


def add(questions) -> None:
    what, example = "heads against names, tags and syntax", f"andrea heads {RUN} annotated --conllu text.conllu"
    parser = parts.question(questions, "annotated", _annotated, what, example)
    parser.add_argument("--conllu", type=Path, required=True, metavar="FILE", help="annotated text, in CoNLL-U")
    what = "what closing brackets lose without the bracket head"
    parts.question(questions, "brackets", _brackets, what, f"andrea heads {RUN} brackets")


def _annotated(args: argparse.Namespace) -> int:
    from andrea_jax import annotations
    from andrea_jax.plots import annotation_figures, annotation_tables, messages

    loaded = parts.open_run(args)
    with messages.progress("reading annotated text", quiet=args.json) as tell:
        found = annotations.annotated(loaded, args.conllu, tell)
    tables = [annotation_tables.annotated_table(found.best, found.named_by)]
    as_json = {"best": found.best, "table": found.table, "named_by": found.named_by}
    return answers.say(args, loaded, "annotated", tables, annotation_figures.annotated(found.best), as_json)


def _brackets(args: argparse.Namespace) -> int:
    from andrea_jax import annotations
    from andrea_jax.plots import annotation_figures, annotation_tables, messages

    loaded = parts.open_run(args)
    with messages.progress("closing brackets", quiet=args.json) as tell:
        found = annotations.brackets(loaded, tell)
    tables = [annotation_tables.bracket_scores(found.scores), annotation_tables.bracket_damage(found.damage)]
    as_json = {"head": f"{found.layer}.{found.head}", "scores": found.scores, "damage": found.damage}
    return answers.say(
        args, loaded, "bracket_ablation", tables, annotation_figures.bracket_damage(found.damage), as_json
    )
