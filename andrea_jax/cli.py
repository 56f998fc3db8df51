"""The command line: parse, call, print. Everything it does is a function of the package."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from andrea_jax.errors import UserError

OVERRIDES = "section.key=value, in TOML syntax: train.steps=100 model.projection=per_head"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Exit codes: 0 done, 2 bad input (one message, no traceback), 130 stopped by Ctrl-C."""
    args = _parser().parse_args(arguments)
    try:
        return args.command(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe went away
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="andrea", description="What attention heads become, and how to compute them.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    train = _command(
        commands,
        "train",
        _train,
        "train a config, or continue a run",
        "andrea train configs/quickstart.toml train.seed=1",
    )
    train.add_argument("config", type=Path, metavar="CONFIG|RUN", help="a config file, or a run directory to continue")
    train.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=OVERRIDES)
    train.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where run directories go (runs)")
    train.add_argument("--json", action="store_true", help="print the run's path and last metrics as JSON")

    heads = _command(commands, "heads", _heads, "score every head of a run", "andrea heads runs/quickstart-1a2b3c4d")
    _add_run(heads)
    heads.add_argument("--all", action="store_true", help="also every head on every probe")
    heads.add_argument("--json", action="store_true", help="print the tables as JSON")

    params = _command(commands, "params", _params, "count parameters by part", "andrea params configs/andrea-120m.toml")
    params.add_argument("config", type=Path, metavar="CONFIG")
    params.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=OVERRIDES)
    params.add_argument("--json", action="store_true", help='{"total": ..., "W_Q": ..., ...}')

    report = _command(
        commands, "report", _report, "write a run's report.html", "andrea report runs/quickstart-1a2b3c4d"
    )
    _add_run(report)

    compare = _command(
        commands, "compare-projections", _compare, "fused against per-head: equality, speed, memory",
        "andrea compare-projections configs/quickstart.toml",
    )  # fmt: skip
    compare.add_argument("config", type=Path, metavar="CONFIG|RUN", help="a run is compared with its trained weights")
    compare.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=OVERRIDES)
    compare.add_argument("--repeats", type=_positive, default=20, help="timed repeats of each form (20)")
    compare.add_argument("--out", type=Path, metavar="DIR", help="also write the tables and the figure there")
    compare.add_argument("--json", action="store_true", help="print the tables as JSON")

    sample = _command(commands, "sample", _sample, "continue a text", 'andrea sample runs/quickstart-1a2b3c4d "def f("')
    _add_run(sample)
    sample.add_argument("text")
    sample.add_argument("--tokens", type=_positive, default=32, help="how many to add (32)")
    sample.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest token (0)")
    sample.add_argument("--seed", type=int, default=0)
    sample.add_argument("--json", action="store_true", help="print text and token ids as JSON")
    return parser


def _command(commands, name: str, function, what: str, example: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=f"example: {example}"
    )
    parser.set_defaults(command=function)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--step", type=_step, default="last", metavar="last|best|N", help="which checkpoint (last)")
    parser.add_argument("--backend", metavar="NAME", help="attention backend, instead of the run's own")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return value


def _step(text: str) -> int | str:
    if text in ("last", "best"):
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'must be "last", "best" or a step, not "{text}"') from None


def _open(args: argparse.Namespace):
    from andrea_jax.loaded import load_run

    return load_run(args.run, args.step, args.backend)


def _train(args: argparse.Namespace) -> int:
    from andrea_jax import config_files
    from andrea_jax.runs import Run, create

    if args.config.is_dir():
        if args.overrides:
            raise UserError(f"{args.overrides[0]}: a run continues as it began; train its config for a new run")
        run = Run.open(args.config)
    else:
        experiment = config_files.load(args.config, args.overrides)  # before JAX loads
        path = args.runs / f"{args.config.stem}-{config_files.run_id(experiment)}"
        run = Run.open(path) if path.exists() else create(args.runs, experiment, args.config.stem)
    from andrea_jax import data
    from andrea_jax.plots import messages
    from andrea_jax.training import Interrupted, train

    messages.show_log()
    try:
        train(run, data.prepare(run.experiment))
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        return 130
    losses = [line for line in run.metrics() if "eval_loss" in line]
    if args.json:
        print(json.dumps({"run": str(run.path), **losses[-1]}))
    else:
        print(f"{run.path}: held-out loss {losses[-1]['eval_loss']:.3f} nats/token after step {losses[-1]['step']}")
    return 0


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
    from andrea_jax import config_files

    experiment = config_files.load(args.config, args.overrides)
    from andrea_jax.counting import parameters_by_part
    from andrea_jax.plots import messages, params_table

    parts = parameters_by_part(experiment.model)
    if args.json:
        print(json.dumps({"total": sum(parts.values()), **parts}))
    else:
        messages.show(params_table(parts))
    return 0


def _report(args: argparse.Namespace) -> int:
    from andrea_jax import reporting
    from andrea_jax.plots import messages

    loaded = _open(args)
    with messages.progress("scoring heads") as tell:
        path = reporting.report(loaded, tell)
    print(path)
    return 0


def _compare(args: argparse.Namespace) -> int:
    from andrea_jax import config_files

    experiment = None if args.config.is_dir() else config_files.load(args.config, args.overrides)
    from andrea_jax import reporting
    from andrea_jax.plots import messages

    with messages.progress("timing projections", quiet=args.json) as tell:
        found = reporting.compare_projections(args.config if experiment is None else experiment, args.repeats, tell)
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
    e = loaded.experiment
    tokens = generate(
        e.model, loaded.params, loaded.tokens(args.text), args.tokens, temperature=args.temperature, seed=args.seed,
        dtype=e.compute.dtype, backend=e.compute.backend,
    )[0].tolist()  # fmt: skip
    text = args.text + loaded.tokenizer.decode(tokens)
    print(json.dumps({"text": text, "tokens": tokens}) if args.json else text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
