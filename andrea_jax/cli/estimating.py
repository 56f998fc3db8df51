"""What training would take, without starting it: estimate."""

import argparse
import json
from pathlib import Path

from andrea_jax import arguments, config_files
from andrea_jax.cli import parts


def add(commands) -> None:
    example = "andrea estimate configs/andrea-120m.toml --memory 24GB --tokens-per-s 300000"
    what = "what training takes: memory by part, FLOPs, time; refuses what cannot fit"
    parser = parts.command(commands, "estimate", _estimate, what, example)
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help=parts.OVERRIDES)
    parser.add_argument(
        "--memory", type=arguments.memory, metavar="SIZE", help="of a GPU, for example 24GB (this machine's, if it has)"
    )
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument("--tokens-per-s", type=arguments.above_0, metavar="N", help="how fast it trains")
    speed.add_argument("--tflops", type=arguments.above_0, metavar="N", help="the same in 10^12 FLOPs/s of the model")
    parser.add_argument("--json", action="store_true", help="print everything as JSON, in bytes and seconds")


def _estimate(args: argparse.Namespace) -> int:
    experiment = config_files.load(args.config, args.overrides)
    from andrea_jax import estimate
    from andrea_jax.plots import memory_table, messages, params_table, work_table
    from andrea_jax.training.progress import duration

    found = estimate.estimate(experiment)
    limit = estimate.usable(args.memory) if args.memory else estimate.device_memory()
    where = f"one of {estimate.in_gb(args.memory)}" if args.memory else "this one"
    if limit is not None:
        estimate.refuse_too_large(experiment, found, limit, where)
    seconds = found.seconds(tokens_per_s=args.tokens_per_s, tflops=args.tflops)
    if args.json:
        work = {"forward": found.forward, "forward_backward": found.step}
        numbers = {
            "parameters": {"total": sum(found.parameters.values()), **found.parameters},
            "memory_bytes": {"total": found.total, **found.memory}, "usable_bytes": limit,
            "flops_a_token": work, "tokens": found.tokens, "seconds": seconds,
        }  # fmt: skip
        print(json.dumps(numbers))
        return 0
    fits = f"fits: {where}\nhas {estimate.in_gb(limit)} to use" if limit else "at least; on each device"
    work = {
        "FLOPs a token, forward": f"{found.forward:.4g}",
        "FLOPs a token, forward and backward": f"{found.step:.4g}",
        "tokens": f"{found.tokens:,}",
        "FLOPs in all": f"{found.step * found.tokens:.3g}",
    }
    if seconds is not None:
        work["time"] = duration(seconds)
    messages.show(params_table(found.parameters), memory_table(found.memory, fits), work_table(work))
    return 0
