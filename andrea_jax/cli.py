"""The command line: parse, call, print. Everything it does is a function of the package."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from andrea_jax import arguments, config_files
from andrea_jax.config import Backend
from andrea_jax.errors import UserError
from andrea_jax.runs import Run, open_or_create

OVERRIDES = "section.key=value, in TOML syntax: train.steps=100 model.projection=per_head"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Exit codes: 0 done, 1 the projections differ (compare-projections), 2 bad input (one message,
    no traceback), 130 stopped by Ctrl-C."""
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


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """argparse takes overrides only where they follow the config at once; here they may follow an option as well."""
    parser = _parser()
    args, left = parser.parse_known_args(argv)
    if left and ("overrides" not in args or any(argument.startswith("-") for argument in left)):
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    if left:
        args.overrides += left
    return args


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="andrea", description="What attention heads become, and how to compute them.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (_add_train, _add_heads, _add_params, _add_report, _add_compare, _add_sample, _add_view):
        add(commands)
    return parser


def _add_train(commands) -> None:
    example = "andrea train configs/quickstart.toml train.seed=1"
    parser = _command(commands, "train", _train, "train a config, or continue a run", example)
    parser.add_argument("config", type=Path, metavar="CONFIG|RUN", help="a config file, or a run directory to continue")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=OVERRIDES)
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs go (runs)")
    parser.add_argument("--json", action="store_true", help="print the run's path and last metrics as JSON")


def _add_heads(commands) -> None:
    example = "andrea heads runs/quickstart-1a2b3c4d"
    parser = _command(commands, "heads", _heads, "score every head of a run", example)
    _add_run(parser)
    parser.add_argument("--all", action="store_true", help="also every head on every probe")
    parser.add_argument("--json", action="store_true", help="print the tables as JSON")


def _add_params(commands) -> None:
    example = "andrea params configs/andrea-120m.toml"
    parser = _command(commands, "params", _params, "count parameters by part", example)
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=OVERRIDES)
    parser.add_argument("--json", action="store_true", help='{"total": ..., "W_Q": ..., ...}')


def _add_report(commands) -> None:
    example = "andrea report runs/quickstart-1a2b3c4d"
    parser = _command(commands, "report", _report, "write a run's report.html", example)
    _add_run(parser)
    parser.add_argument("--development", action="store_true", help="also score every kept checkpoint")


def _add_compare(commands) -> None:
    what, example = (
        "fused against per-head: equality, speed, memory",
        "andrea compare-projections configs/quickstart.toml",
    )
    parser = _command(commands, "compare-projections", _compare, what, example)
    parser.add_argument("config", type=Path, metavar="CONFIG|RUN", help="a run is compared with its trained weights")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=OVERRIDES)
    parser.add_argument("--repeats", type=arguments.positive, default=20, help="timed repeats of each form (20)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="also write the tables and the figure there")
    parser.add_argument("--json", action="store_true", help="print the tables as JSON")


def _add_sample(commands) -> None:
    example = 'andrea sample runs/quickstart-1a2b3c4d "def f("'
    parser = _command(commands, "sample", _sample, "continue a text", example)
    _add_run(parser)
    parser.add_argument("text", metavar="TEXT", help="what to continue")
    parser.add_argument("--tokens", type=arguments.positive, default=32, help="how many to add (32)")
    parser.add_argument(
        "--temperature", type=arguments.temperature, default=0.0, help="0 takes the likeliest token (0)"
    )
    parser.add_argument("--seed", type=arguments.seed, default=0, help="of the draws, where temperature is above 0 (0)")
    parser.add_argument("--json", action="store_true", help="print text and token ids as JSON")


def _add_view(commands) -> None:
    example = 'andrea view runs/quickstart-1a2b3c4d "def f(x): return f(x)" --ablate 0.3'
    parser = _command(commands, "view", _view, "write the attention viewer of a text, one HTML file", example)
    _add_run(parser)
    parser.add_argument("text", metavar="TEXT", help="what to look at")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page (RUN/view.html)")
    parser.add_argument(
        "--against", type=arguments.run_at, metavar="RUN[@STEP]",
        help="another run (at the same --step), or this one at another step, beside it and as a difference",
    )  # fmt: skip
    parser.add_argument(
        "--ablate", type=arguments.head, metavar="L.H", help="the same model without this head, for example 0.3"
    )


def _command(commands, name: str, function, what: str, example: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=f"example: {example}"
    )
    parser.set_defaults(command=function)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument(
        "--step", type=arguments.step, default="last", metavar="last|best|N", help="which checkpoint (last)"
    )
    names = ", ".join(get_args(Backend))
    parser.add_argument("--backend", metavar="NAME", help=f"attention backend, instead of the run's own: {names}")


def _open(args: argparse.Namespace):
    from andrea_jax.loaded import load_run

    return load_run(args.run, args.step, args.backend)


def _train(args: argparse.Namespace) -> int:
    if args.config.is_dir():
        _refuse_overrides(args, "a run continues as it began; train its config for a new run")
        run = Run.open(args.config)
    else:
        experiment = config_files.load(args.config, args.overrides)  # before JAX loads
        run = open_or_create(args.runs, experiment, args.config.stem)
    if run.provenance.get("finished"):  # there once training began
        print(f"{run.path} is finished: it has done all {run.experiment.train.steps} steps", file=sys.stderr)
    elif not _train_to_the_end(run):
        return 130
    losses = [line for line in run.metrics() if "eval_loss" in line]
    if args.json:
        print(json.dumps({"run": str(run.path), **losses[-1]}))
    else:
        print(f"{run.path}: held-out loss {losses[-1]['eval_loss']:.3f} nats/token after step {losses[-1]['step']}")
    return 0


def _train_to_the_end(run: Run) -> bool:
    """False where it was stopped; how to go on is then said on stderr."""
    from andrea_jax import data
    from andrea_jax.plots import messages
    from andrea_jax.training import Interrupted, train

    messages.show_log()
    try:
        train(run, data.prepare(run.experiment))
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        return False
    return True


def _refuse_overrides(args: argparse.Namespace, why: str) -> None:
    if args.overrides:
        raise UserError(f"{args.overrides[0]}: {why}")


def _heads(args: argparse.Namespace) -> int:
    from andrea_jax.plots import all_heads_table, heads_table, messages

    loaded = _open(args)
    with messages.progress("scoring heads", quiet=args.json) as tell:
        profile = loaded.profile(tell)
    if args.json:
        tables = {name: json.loads(getattr(profile, name).to_json(orient="records")) for name in ("best", "table")}
        print(json.dumps({"run": str(loaded.run.path), "step": loaded.step, **tables}))
    else:
        messages.show(heads_table(profile.best), *([all_heads_table(profile.table)] if args.all else []))
    return 0


def _params(args: argparse.Namespace) -> int:
    experiment = config_files.load(args.config, args.overrides)
    from andrea_jax import counting
    from andrea_jax.plots import messages, params_table

    parts = counting.parameters_by_part(experiment.model)
    if args.json:
        print(json.dumps({"total": sum(parts.values()), **parts}))
    else:
        messages.show(params_table(parts, counting.attention_share(parts, experiment.model.n_layer)))
    return 0


def _report(args: argparse.Namespace) -> int:
    from andrea_jax import reporting
    from andrea_jax.plots import messages

    loaded = _open(args)
    if args.development:
        with messages.progress("scoring checkpoints") as tell:
            loaded.profiles(tell)
    with messages.progress("scoring heads") as tell:
        path = reporting.report(loaded, tell)
    print(path)
    return 0


def _compare(args: argparse.Namespace) -> int:
    if args.config.is_dir():
        _refuse_overrides(args, "a run is compared as it was trained; compare its config for other values")
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


def _sample(args: argparse.Namespace) -> int:
    from andrea_jax.generate import generate

    loaded = _open(args)
    e, prompt = loaded.experiment, loaded.tokens(args.text)
    left = e.model.seq_len - prompt.shape[1]
    if args.tokens > left:
        text = f"the text has {prompt.shape[1]} tokens with BOS, and the model has {e.model.seq_len} positions"
        raise UserError(f"--tokens {args.tokens}: must be at most {left}, since {text}")
    tokens = generate(
        e.model, loaded.params, prompt, args.tokens, temperature=args.temperature, seed=args.seed,
        dtype=e.compute.dtype, backend=e.compute.backend,
    )[0].tolist()  # fmt: skip
    text = args.text + loaded.tokenizer.decode(tokens)
    print(json.dumps({"text": text, "tokens": tokens}) if args.json else text)
    return 0


def _view(args: argparse.Namespace) -> int:
    if args.out and args.out.is_dir():
        raise UserError(f"{args.out}: is a folder; --out names a file")
    loaded = _open(args)
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


if __name__ == "__main__":
    sys.exit(main())
