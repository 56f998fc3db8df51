"""Circuits of a run: what its weights say of heads, who wrote a logit, why a head attends to a token."""

import argparse

from andrea_jax import arguments
from andrea_jax.cli import parts
from andrea_jax.cli.questions import answers


def add(questions) -> None:
    run = "andrea heads runs/quickstart-1a2b3c4d"
    what = "from the weights: copying, and composition of all pairs of heads"
    parts.question(questions, "circuits", _circuits, what, f"{run} circuits")

    what, example = "who wrote the logit of the next token", f'{run} attribution "def f(x):"'
    parser = parts.question(questions, "attribution", _attribution, what, example)
    parser.add_argument("text", metavar="TEXT", help="what the token follows")
    parser.add_argument("--position", type=int, metavar="N", help="ask what follows token N; BOS is 0 (the last)")
    parser.add_argument("--token", metavar="TOKEN", help="which one (the text's next; at its end, the likeliest)")
    parser.add_argument("--against", metavar="TOKEN", help="its logit less that of this token")

    what, example = "why a head attends from one token to another", f'{run} why "def f(x):" --head 1.2 --query 5'
    parser = parts.question(questions, "why", _why, what, example)
    parser.add_argument("text", metavar="TEXT", help="what to look at")
    parser.add_argument("--head", type=arguments.head, required=True, metavar="L.H", help="for example 1.2")
    parser.add_argument("--query", type=int, metavar="N", help="the token that attends; BOS is 0 (the last)")
    parser.add_argument("--key", type=int, metavar="N", help="the token attended to (where most attention goes)")


def _circuits(args: argparse.Namespace) -> int:
    from andrea_jax import explained
    from andrea_jax.plots import circuit_tables, messages

    loaded = parts.open_run(args)
    with messages.progress("reading weights", quiet=args.json):
        found = explained.circuits(loaded)
    tables = circuit_tables.composition_table(found.composition), circuit_tables.copying_table(found.copying)
    as_json = {"copying": found.copying, "composition": found.composition}
    return answers.say(args, loaded, "circuits", tables, found.figure(), as_json)


def _attribution(args: argparse.Namespace) -> int:
    from andrea_jax import explained
    from andrea_jax.plots import circuit_tables, messages

    loaded = parts.open_run(args)
    with messages.progress("taking a logit apart", quiet=args.json):
        found = explained.attribution(loaded, args.text, args.position, args.token, args.against)
    asked = found.token, found.against, found.logit
    tables = (
        circuit_tables.attribution_table(found.contributions, *asked),
        circuit_tables.lens_table(found.lens, asked[0]),
    )
    as_json = {"token": found.token, "logit": found.logit, "contributions": found.contributions, "lens": found.lens}
    return answers.say(args, loaded, "attribution", tables, found.figure(), as_json)


def _why(args: argparse.Namespace) -> int:
    from andrea_jax import explained
    from andrea_jax.plots import circuit_tables, messages

    loaded = parts.open_run(args)
    with messages.progress("taking a score apart", quiet=args.json):
        found = explained.why(loaded, args.text, args.head, args.query, args.key)
    why = found.why
    table = circuit_tables.why_table(why.pairs, *found.names(), why.attention)
    as_json = {"query": why.query, "key": why.key, "score": why.score, "mean_score": why.mean_score,
               "attention": why.attention, "pairs": why.pairs, "keys": why.keys}  # fmt: skip
    return answers.say(args, loaded, "why", [table], found.figure(), as_json)
