"""What computing costs: bench attention, projections, layout, head-dim, scoring."""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

from andrea_jax import arguments
from andrea_jax.cli import parts
from andrea_jax.errors import UserError


def add(commands) -> None:
    parser = commands.add_parser("bench", help="what attention and projections cost here", description=_WHAT)
    subjects = parser.add_subparsers(title="subjects", required=True, metavar="SUBJECT")
    for add_one in (
        _add_attention,
        _add_projections,
        _add_layout,
        _add_head_dim,
        _add_scoring,
        _add_train,
        _add_mesh,
        _add_draw,
    ):
        add_one(subjects)


_WHAT = "Times parts of the model on this device, writes every row, a figure and the verdicts on the lesson's claims."


def _add_attention(subjects) -> None:
    what = "every attention backend beside other people's"
    parser = _subject(subjects, "attention", _attention, what, "andrea bench attention --shapes short")
    sets = "short, long, all, small, or batch,seq,n_head,head_dim (on a GPU all, on a CPU small)"
    parser.add_argument("--shapes", nargs="+", type=_shapes, metavar="SET|B,T,H,D", help=sets)
    _add_backends(parser, "every one")
    peers = "jax-xla, jax-cudnn, fa3, tokamax, torch-cudnn, torch-flash, torch-flex (all that are there)"
    parser.add_argument("--peers", nargs="*", metavar="NAME", help=peers)


def _add_projections(subjects) -> None:
    what = "projections to q, k and v in every form (claims C3, C4)"
    parser = _subject(subjects, "projections", _projections, what, "andrea bench projections --tokens 1024")
    parser.add_argument("--widths", nargs="+", type=_numbers("d_model,n_head", 2), metavar="D,H", help="d_model,n_head")
    parser.add_argument("--tokens", nargs="+", type=arguments.positive, metavar="N", help="batch × seq")
    parser.add_argument("--thresholds", nargs="+", type=int, metavar="MIB",
                        help="of XLA's dot merger on a GPU (32 0 1024)")  # fmt: skip


def _add_layout(subjects) -> None:
    what = "heads in place or transposed first; launches by number of heads (C11, C12)"
    parser = _subject(subjects, "layout", _layout, what, "andrea bench layout --n-heads 1 12")
    parser.add_argument("--shapes", nargs="+", type=_shapes, metavar="SET|B,T,H,D", help="as in bench attention")
    _add_backends(parser, "all but reference")
    parser.add_argument("--n-heads", nargs="+", type=arguments.positive, metavar="N", help="for launches (1 … 24)")


def _add_head_dim(subjects) -> None:
    what = "widths of a head at constant d_model: attention and a training step (C13)"
    parser = _subject(subjects, "head-dim", _head_dim, what, "andrea bench head-dim --head-dims 32 64 72")
    parser.add_argument("--head-dims", nargs="+", type=arguments.positive, metavar="N", help="(32 48 64 72 80 96 128)")
    _add_backends(parser, "all but reference")


def _add_scoring(subjects) -> None:
    what = "all head scores beside a forward pass and TransformerLens; ablation of every head"
    parser = _subject(subjects, "scoring", _scoring, what, "andrea bench scoring --seqs 256 1024")
    parser.add_argument("--seqs", nargs="+", type=arguments.positive, metavar="N",
                        help="tokens (on a GPU 1024 4096 16384, on a CPU 256 512 1024)")  # fmt: skip


def _add_train(subjects) -> None:
    what = "training: tokens/s beside torch, and where a step's time goes (C14)"
    parser = _subject(subjects, "train", _train, what, "andrea bench train --models andrea-12m")
    models = "andrea-12m andrea-120m andrea-480m; on a CPU quickstart and two of twice its width (all)"
    parser.add_argument("--models", nargs="+", metavar="NAME", help=models)
    parser.add_argument("--seconds", type=arguments.above_0, metavar="S", help="of timed training a model (4)")


def _add_mesh(subjects) -> None:
    what = "training on the devices of this host: losses, speed, resuming, kernels, beside torch"
    example = "andrea bench mesh configs/andrea-12m.toml --steps 200"
    parser = _subject(subjects, "mesh", _mesh, what, example)
    parser.add_argument("configs", nargs="+", type=Path, metavar="CONFIG", help="what is trained")
    parser.add_argument("--steps", nargs="+", type=arguments.positive, default=[50], metavar="N",
                        help="of the losses, for each config (50)")  # fmt: skip
    parser.add_argument("--parts", nargs="+", metavar="PART", help="losses speed resume kernels torch (all)")


def _add_draw(subjects) -> None:
    what = "the figure and verdicts of a benchmark again, from its JSON file"
    parser = parts.command(subjects, "draw", _draw, what, "andrea bench draw results/bench-layout/layout.json")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="what a benchmark wrote, finished or not")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the rows of several files go, as one")


def _subject(subjects, name: str, function: Callable, what: str, example: str) -> argparse.ArgumentParser:
    parser = parts.command(subjects, name, function, what, example)
    parser.add_argument("--repeats", type=arguments.positive, help="timings of each thing, fewer of slow ones")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"where rows and figure go (results/bench-{name})")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


def _add_backends(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--backends", nargs="+", metavar="NAME", help=f"of andrea_jax.attention ({default})")


def _shapes(text: str) -> str | tuple[int, ...]:
    return (
        text if text in ("short", "long", "all", "small") else _numbers("short, long, all, small or B,T,H,D", 4)(text)
    )


def _numbers(expected: str, n: int) -> Callable[[str], tuple[int, ...]]:
    def read(text: str) -> tuple[int, ...]:
        found = text.split(",")
        if len(found) != n or not all(part.isdecimal() and int(part) for part in found):
            raise argparse.ArgumentTypeError(f"must be {expected}, in whole numbers, not {text}")
        return tuple(map(int, found))

    return read


def _attention(args: argparse.Namespace) -> int:
    return _bench(args, "attention", {**_asked(args, "backends"), **_asked(args, "peers"), **_shapes_asked(args)})


def _projections(args: argparse.Namespace) -> int:
    asked = _asked(args, "tokens") | _asked(args, "thresholds")
    if args.widths:
        _before_jax()
        from andrea_jax.benchmarks.projections import Width

        asked["widths"] = [Width(*width) for width in args.widths]
    return _bench(args, "projections", asked)


def _layout(args: argparse.Namespace) -> int:
    return _bench(args, "layout", {**_asked(args, "backends"), **_asked(args, "n_heads"), **_shapes_asked(args)})


def _head_dim(args: argparse.Namespace) -> int:
    return _bench(args, "head-dim", _asked(args, "head_dims") | _asked(args, "backends"))


def _scoring(args: argparse.Namespace) -> int:
    return _bench(args, "scoring", _asked(args, "seqs"))


def _train(args: argparse.Namespace) -> int:
    from andrea_jax.allocation import keep_freed_memory

    keep_freed_memory()  # as `andrea train` does
    return _bench(args, "train", _asked(args, "models") | _asked(args, "seconds"))


def _mesh(args: argparse.Namespace) -> int:
    from andrea_jax import config_files

    steps = args.steps * (len(args.configs) if len(args.steps) == 1 else 1)
    if len(steps) != len(args.configs):
        raise UserError(f"--steps: must have one number, or one for each of the {len(args.configs)} configs")
    configs = [(path.stem, config_files.load(path)) for path in args.configs]
    return _bench(args, "mesh", {"configs": configs, "steps": steps, **_asked(args, "parts")})


def _draw(args: argparse.Namespace) -> int:
    from andrea_jax.benchmarks.redraw import join, redraw

    if len(args.files) > 1 and args.out is None:
        raise UserError("bench draw: several files become one: --out must say in which folder")
    file = join(args.files, args.out) if args.out else args.files[0]
    print(*redraw(file), f"written to {file.with_suffix('')}.*", sep="\n")
    return 0


def _asked(args: argparse.Namespace, name: str) -> dict:
    """The option, where it was given; benchmarks know their own defaults."""
    value = vars(args)[name]
    return {} if value is None else {name: value}


def _shapes_asked(args: argparse.Namespace) -> dict:
    if args.shapes is None:
        return {}
    _before_jax()
    from andrea_jax.benchmarks.attention import SETS
    from andrea_jax.benchmarks.shapes import Shape

    return {"shapes": [shape for it in args.shapes for shape in (SETS[it] if isinstance(it, str) else [Shape(*it)])]}


def _before_jax() -> None:
    # by default JAX takes three quarters of a GPU's memory at once, and nothing would be left for torch
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _bench(args: argparse.Namespace, name: str, asked: dict) -> int:
    _before_jax()
    from andrea_jax import benchmarks
    from andrea_jax.plots import benchmark_tables, messages

    out = args.out or Path("results", f"bench-{name}")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; --out names a folder")
    messages.show_log()  # which backend "auto" is
    function = getattr(benchmarks, f"bench_{name.replace('-', '_')}")
    with messages.progress(f"bench {name}", quiet=args.json) as tell:
        results = function(out, tell=tell, **asked, **_asked(args, "repeats"))
    if args.json:
        print(json.dumps(results.as_json()))
        return 0
    messages.show(*benchmark_tables.TABLES[name](results.rows))
    print(results.of, *results.verdicts, f"written to {results.path.with_suffix('')}.*", sep="\n")
    return 0
