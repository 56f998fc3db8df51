"""Looking at the heads of a run: heads, report, view."""

import argparse
import json
from pathlib import Path

from andrea_jax import arguments
from andrea_jax.cli import parts, questions
from andrea_jax.errors import UserError


def add(commands) -> None:
    _add_heads(commands)
    _add_report(commands)
    _add_view(commands)


def _add_heads(commands) -> None:
    example = "andrea heads runs/quickstart-1a2b3c4d"
    parser = parts.command(commands, "heads", _heads, "score every head of a run", example)
    parts.add_run(parser)
    parser.add_argument("--all", action="store_true", help="also every head on every probe")
    parser.add_argument("--json", action="store_true", help="print the tables as JSON")
    if questions.QUESTIONS:
        parser.usage = "andrea heads [-h] [--step last|best|N] [--backend NAME] [--all] [--json] RUN [QUESTION ...]"
        about = "what else to ask of the heads; andrea heads RUN QUESTION --help tells more"
        asked = parser.add_subparsers(title="questions", prog="andrea heads RUN", metavar="QUESTION", help=about)
        for question in questions.QUESTIONS:
            question.add(asked)


def _add_report(commands) -> None:
    example = "andrea report runs/quickstart-1a2b3c4d"
    parser = parts.command(commands, "report", _report, "write a run's report.html", example)
    parts.add_run(parser)
    parser.add_argument("--development", action="store_true", help="also score every kept checkpoint")


def _add_view(commands) -> None:
    example = 'andrea view runs/quickstart-1a2b3c4d "def f(x): return f(x)" --ablate 0.3'
    parser = parts.command(commands, "view", _view, "write the attention viewer of a text, one HTML file", example)
    parts.add_run(parser)
    parser.add_argument("text", metavar="TEXT", help="what to look at")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page (RUN/view.html)")
    parser.add_argument(
        "--against", type=arguments.run_at, metavar="RUN[@STEP]",
        help="another run (at the same --step), or this one at another step, beside it and as a difference",
    )  # fmt: skip
    parser.add_argument(
        "--ablate", type=arguments.head, metavar="L.H", help="the same model without this head, for example 0.3"
    )


def _heads(args: argparse.Namespace) -> int:
    from andrea_jax.plots import all_heads_table, heads_table, messages

    loaded = parts.open_run(args)
    with messages.progress("scoring heads", quiet=args.json) as tell:
        profile = loaded.profile(tell)
    if args.json:
        tables = {name: json.loads(getattr(profile, name).to_json(orient="records")) for name in ("best", "table")}
        print(json.dumps({"run": str(loaded.run.path), "step": loaded.step, **tables}))
    else:
        messages.show(heads_table(profile.best), *([all_heads_table(profile.table)] if args.all else []))
    return 0


def _report(args: argparse.Namespace) -> int:
    from andrea_jax import reporting
    from andrea_jax.plots import messages

    loaded = parts.open_run(args)
    if args.development:
        with messages.progress("scoring checkpoints") as tell:
            loaded.profiles(tell)
    with messages.progress("scoring heads") as tell:
        path = reporting.report(loaded, tell)
    print(path)
    return 0


def _view(args: argparse.Namespace) -> int:
    if args.out and args.out.is_dir():
        raise UserError(f"{args.out}: is a folder; --out names a file")
    loaded = parts.open_run(args)
    against = _open_against(args, loaded.step) if args.against else None
    view = loaded.view(args.text, against=against, ablate=args.ablate)
    print(view.save(args.out or loaded.run.path / "view.html"))
    return 0


def _open_against(args: argparse.Namespace, shown: int):
    from andrea_jax.loaded import load_run

    path, step = args.against
    other = load_run(path, args.step if step is None else step, args.backend)
    if other.step == shown and path.resolve() == args.run.resolve():
        text = f"is this run at the same step, {shown}; name another of its steps, --against {path}@STEP"
        raise UserError(f"--against {path}: {text}")
    return other
