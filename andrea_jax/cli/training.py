"""Making and using a model: train, params, sample."""

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path

from andrea_jax import arguments, config_files
from andrea_jax.cli import parts
from andrea_jax.errors import UserError
from andrea_jax.runs import Run, open_or_create


def add(commands) -> None:
    _add_train(commands)
    _add_params(commands)
    _add_sample(commands)


def _add_train(commands) -> None:
    example = "andrea train configs/quickstart.toml train.seed=1"
    parser = parts.command(commands, "train", _train, "train a config, or continue a run", example)
    parser.add_argument("config", type=Path, metavar="CONFIG|RUN", help="a config file, or a run directory to continue")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help=parts.OVERRIDES)
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs go (runs)")
    parser.add_argument("--tensorboard", action="store_true", help="write metrics as TensorBoard event files too")
    parser.add_argument("--json", action="store_true", help="print the run's path and last metrics as JSON")
    joined = "train together with other processes, by the same command: HOST:PORT N I, where the first one listens, "
    joined += "how many they are, which this is, from 0; or nothing where the cluster says it"
    parser.add_argument("--hosts", nargs="*", metavar="PLACE", help=joined)


def _add_params(commands) -> None:
    example = "andrea params configs/andrea-120m.toml"
    parser = parts.command(commands, "params", _params, "count parameters by part", example)
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help=parts.OVERRIDES)
    parser.add_argument("--json", action="store_true", help='{"total": ..., "W_Q": ..., ...}')


def _add_sample(commands) -> None:
    example = 'andrea sample runs/quickstart-1a2b3c4d "def f("'
    parser = parts.command(commands, "sample", _sample, "continue a text", example)
    parts.add_run(parser)
    parser.add_argument("text", metavar="TEXT", help="what to continue")
    parser.add_argument("--tokens", type=arguments.positive, default=32, help="how many to add (32)")
    parser.add_argument(
        "--temperature", type=arguments.temperature, default=0.0, help="0 takes the likeliest token (0)"
    )
    parser.add_argument("--seed", type=arguments.seed, default=0, help="of the draws, where temperature is above 0 (0)")
    parser.add_argument("--json", action="store_true", help="print text and token ids as JSON")


def _train(args: argparse.Namespace) -> int:
    if args.hosts is not None:
        return _train_with_others(args)
    return _train_run(_run(args), args)


def _run(args: argparse.Namespace) -> Run:
    if args.config.is_dir():
        return _computed_anew(Run.open(args.config), args.overrides)
    experiment = config_files.load(args.config, args.overrides)  # before JAX loads
    return open_or_create(args.runs, experiment, args.config.stem)


def _train_with_others(args: argparse.Namespace) -> int:
    """The first process makes the run and speaks for all."""
    if len(args.hosts) not in (0, 3) or not all(number.isdecimal() for number in args.hosts[1:]):
        raise UserError(f"--hosts {' '.join(args.hosts)}: must be followed by nothing or by HOST:PORT N I")
    from andrea_jax.training import hosts

    hosts.join(args.hosts)
    if hosts.is_first():
        run = _run(args)
        hosts.meet("run made")
        return _train_run(run, args)
    hosts.meet("run made")
    with open(os.devnull, "w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        return _train_run(_run(args), args)


def _train_run(run: Run, args: argparse.Namespace) -> int:
    if run.provenance.get("finished"):  # there once training began
        print(f"{run.path} is finished: it has done all {run.experiment.train.steps} steps", file=sys.stderr)
    elif not _train_to_the_end(run, args.tensorboard):
        return 130
    losses = [line for line in run.metrics() if "eval_loss" in line]
    if args.json:
        print(json.dumps({"run": str(run.path), **losses[-1]}))
    else:
        print(f"{run.path}: held-out loss {losses[-1]['eval_loss']:.3f} nats/token after step {losses[-1]['step']}")
    return 0


def _computed_anew(run: Run, overrides: list[str]) -> Run:
    """The run with another mesh, remat or backend."""
    experiment = config_files.override(run.experiment, overrides, str(run.path))
    if config_files.run_id(experiment) != config_files.run_id(run.experiment):
        text = "a run continues as it began, but for compute.mesh, .remat and .backend; train its config for a new run"
        raise UserError(f"{' '.join(overrides)}: {text}")
    return Run(run.path, experiment)


def _train_to_the_end(run: Run, tensorboard: bool) -> bool:
    """False where it was stopped; how to go on is then said on stderr."""
    from andrea_jax.allocation import keep_freed_memory

    keep_freed_memory()  # before JAX starts its threads
    from andrea_jax import data, estimate
    from andrea_jax.plots import messages
    from andrea_jax.profiled import profiler
    from andrea_jax.training import Interrupted, events, programs, train

    messages.show_log()
    programs.keep()
    limit = estimate.device_memory()
    if limit is not None:  # said here, before anything is compiled
        estimate.refuse_too_large(run.experiment, estimate.estimate(run.experiment), limit, "this one")
    try:
        dataset = data.prepare(run.experiment, tokenizer=run.path / "tokenizer.json")
        with events.mirrored(run) if tensorboard else contextlib.nullcontext(run) as recorded:
            train(recorded, dataset, profile=profiler(run, dataset))
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        return False
    return True


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


def _sample(args: argparse.Namespace) -> int:
    from andrea_jax.generate import generate

    loaded = parts.open_run(args)
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
