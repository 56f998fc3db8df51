"""Other people's models: import, export."""

import argparse
from pathlib import Path

from andrea_jax import arguments, config_files
from andrea_jax.cli import parts
from andrea_jax.errors import UserError


def add(commands) -> None:
    _add_import(commands)
    _add_export(commands)


def _add_import(commands) -> None:
    what, example = "make a run of a GPT-2 folder or of an ANDREA .bin file", "andrea import gpt2/ data.corpus=tiny"
    parser = parts.command(commands, "import", _import, what, example)
    parser.add_argument("source", type=Path, metavar="FOLDER|FILE.bin", help="a Hugging Face folder, or a .bin file")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help=parts.OVERRIDES)
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs go (runs)")
    parser.add_argument("--name", help="of the run (that of the folder or file)")
    group = _layout_options(parser)
    group.add_argument("--config", type=Path, metavar="CONFIG", help="the model that the file holds; required")
    group.add_argument(
        "--tokenizer", type=Path, metavar="FILE|FOLDER", help="a run, its tokenizer.json, or a GPT-2 folder"
    )


def _add_export(commands) -> None:
    what, example = (
        "write a run as a GPT-2 folder or an ANDREA .bin file",
        "andrea export runs/gpt2-1a2b3c4d --to gpt2/",
    )
    parser = parts.command(commands, "export", _export, what, example)
    parts.add_run(parser)
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER|FILE.bin", help="must not be there yet")
    _layout_options(parser)


def _layout_options(parser: argparse.ArgumentParser):
    about = "What a .bin file does not say, and ANDREA's authors have not published; defaults are the ancestor's."
    group = parser.add_argument_group(".bin files", about)
    group.add_argument(
        "--order", metavar="NAMES", help="wte,wpe,lm_head,attn_wq,attn_wk,attn_wv,attn_wo,mlp_fc1,mlp_fc2"
    )
    group.add_argument("--matrices", choices=("out_in", "in_out"), help="how a matrix lies (out_in)")
    group.add_argument("--stacked", action="store_true", default=None, help="each matrix of all layers together")
    group.add_argument("--bos", type=arguments.token, metavar="ID", help="the id of BOS in the file (0)")
    return group


def _import(args: argparse.Namespace) -> int:
    if args.source.suffix == ".bin":
        run = _import_bin(args)
    else:
        if not args.source.is_dir():
            text = "no such folder" if not args.source.exists() else "is a file"
            raise UserError(f"{args.source}: {text}; expected a GPT-2 folder or an ANDREA .bin file")
        _refuse_options(args, "order", "matrices", "stacked", "bos", "config", "tokenizer")
        from andrea_jax import exchange

        run = exchange.import_gpt2(args.source, args.runs, name=args.name, overrides=args.overrides)
    print(run.path)
    return 0


def _import_bin(args: argparse.Namespace):
    if args.config is None:
        text = "a .bin file does not say which model it holds: --config names its config file"
        raise UserError(f"{args.source}: {text}")
    experiment = config_files.load(args.config, args.overrides)  # before JAX loads
    from andrea_jax import exchange
    from andrea_jax.plots import messages

    messages.show_log()
    settings = {"name": args.name, "layout": _layout(args), "tokenizer": args.tokenizer}
    return exchange.import_bin(args.source, experiment, args.runs, **settings)


def _export(args: argparse.Namespace) -> int:
    from andrea_jax import exchange
    from andrea_jax.plots import messages

    messages.show_log()
    if args.to.suffix == ".bin":
        exchange.export_bin(parts.open_run(args), args.to, _layout(args))
    else:
        _refuse_options(args, "order", "matrices", "stacked", "bos")
        exchange.export_gpt2(parts.open_run(args), args.to)
    print(args.to)
    return 0


def _layout(args: argparse.Namespace):
    from andrea_jax.interop import Layout

    given = {"order": args.order and tuple(args.order.split(",")), "matrices": args.matrices, "stacked": args.stacked}
    return Layout(**{name: value for name, value in (given | {"bos": args.bos}).items() if value is not None})


def _refuse_options(args: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise UserError(f"--{name}: is of .bin files; a folder says this itself")
