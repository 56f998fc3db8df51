"""What heads are worth: `andrea heads RUN ablation`, `importance`, `pruning`."""

import argparse
import json
from pathlib import Path

from andrea_jax import arguments
from andrea_jax.cli import parts
from andrea_jax.cli.questions import answers
from andrea_jax.errors import UserError
from andrea_jax.runs import Run

RUN = "runs/quickstart-1a2b3c4d"


def add(questions) -> None:
    what, example = "what is lost without each head", f"andrea heads {RUN} ablation --kind mean,resample"
    parser = parts.question(questions, "ablation", _ablation, what, example)
    kinds = "zero, mean, resample, redirect_to_bos, pattern_preserving; several with commas"
    parser.add_argument("--kind", default="zero,mean", metavar="KIND", help=f"{kinds} (zero,mean)")
    text = "remove these together and keep no table, for example 0.3,1.2 (each head by itself)"
    parser.add_argument("--heads", type=arguments.heads, metavar="L.H,...", help=text)

    text = "also what names lose, in annotated text (CoNLL-U)"
    parser.add_argument("--conllu", type=Path, metavar="FILE", help=text)

    what, example = "gradient importance beside exact damage", f"andrea heads {RUN} importance"
    parts.question(questions, "importance", _importance, what, example)

    what, example = "how many heads can go", f"andrea heads {RUN} pruning --fraction 0.25 --out runs"
    parser = parts.question(questions, "pruning", _pruning, what, example)
    text = "write a run without this share of the heads, the least important, into --out"
    parser.add_argument("--fraction", type=arguments.share, metavar="SHARE", help=text)
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder of runs it goes to")


def _ablation(args: argparse.Namespace) -> int:
    from andrea_jax import ablated, kept
    from andrea_jax.plots import messages
    from andrea_jax.plots.intervention_figures import damage_map
    from andrea_jax.plots.intervention_tables import damage_tables, sweep_caption

    loaded, sets = parts.open_run(args), [args.heads] if args.heads else None
    with messages.progress("removing heads", quiet=args.json) as tell:
        found = ablated.ablation(loaded, kinds=args.kind.split(","), sets=sets, conllu=args.conllu, progress=tell)
    table = None if sets else kept.kept(loaded.run, "ablation", loaded.step)
    figure = None if table is None else damage_map(table)
    n_sets = 1 if sets else sum(loaded.experiment.model.layer_heads)
    tables = damage_tables(found.table, sweep_caption(n_sets, found.tokens, found.heads_per_s))
    as_json = {"table": found.table, "heads_per_s": found.heads_per_s, "tokens": found.tokens}
    return answers.say(args, loaded, "ablation", tables, figure, as_json)


def _importance(args: argparse.Namespace) -> int:
    from andrea_jax import ablated
    from andrea_jax.plots import messages
    from andrea_jax.plots.intervention_figures import importance_scatter
    from andrea_jax.plots.intervention_tables import importance_tables

    loaded = parts.open_run(args)
    with messages.progress("removing heads", quiet=args.json) as tell:
        found = ablated.importance(loaded, tell)
    figure = importance_scatter(found.table, found.correlations)
    tables = importance_tables(found.table, found.correlations)
    as_json = {"table": found.table, "correlations": found.correlations}
    return answers.say(args, loaded, "importance", tables, figure, as_json)


def _pruning(args: argparse.Namespace) -> int:
    if (args.fraction is None) != (args.out is None):
        raise UserError("pruning: --fraction and --out go together: how many heads, and where the smaller run goes")
    from andrea_jax import ablated
    from andrea_jax.plots import messages
    from andrea_jax.plots.intervention_figures import pruning_curve
    from andrea_jax.plots.intervention_tables import pruning_table

    loaded = parts.open_run(args)
    with messages.progress("pruning", quiet=args.json) as tell:
        if args.out:
            return _print_pruned(args, ablated.prune_run(loaded, args.fraction, args.out, tell))
        curve = ablated.pruning(loaded, tell)
    return answers.say(args, loaded, "pruning", [pruning_table(curve)], pruning_curve(curve), {"table": curve})


def _print_pruned(args: argparse.Namespace, run: Run) -> int:
    found = {"run": str(run.path), **run.metrics()[-1], **run.provenance["pruned"]}
    heads = " ".join(f"{layer}.{head}" for layer, head in found["heads"])
    text = f"{run.path}: held-out loss {found['eval_loss']:.3f} nats/token without {heads}"
    print(json.dumps(found) if args.json else text)
    return 0
