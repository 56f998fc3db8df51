"""Tables for the terminal of what heads are worth: damage, importance, pruning."""

from collections.abc import Mapping

import pandas as pd
from rich.table import Table
from rich.text import Text

from andrea_jax.plots.intervention_figures import measure_words, span
from andrea_jax.plots.tables import new_table
from andrea_jax.plots.words import count, head_name, interval

SHOWN = ("loss", "in_context", "induction", "bracket", "name_again_accuracy")  # measures that have a column
HALVES = "importance measured on one half of the windows, loss on the other"


def damage_tables(table: pd.DataFrame, caption: str) -> list[Table]:
    """One table a kind, a row a head or set: damage in nats with its interval; dim where that holds 0.

    table: columns kind, heads, measure, damage, low, high, n.
    """
    made = []
    for kind, of_kind in table.groupby("kind", sort=False):
        shown = [measure for measure in SHOWN if (of_kind.loc[of_kind["measure"] == measure, "n"] > 0).any()]
        one = new_table(f"Damage: {str(kind).replace('_', ' ')}", caption)
        one.add_column("without", no_wrap=True)
        for measure in shown:
            one.add_column(measure_words(measure).removesuffix(" score"), justify="right")
        cells = {(r["heads"], r["measure"]): _damage(r) for r in of_kind.to_dict("records")}
        for heads in dict.fromkeys(of_kind["heads"]):
            one.add_row(heads, *(cells[heads, measure] for measure in shown))
        made.append(one)
    return made


def _damage(row: Mapping) -> Text:
    return Text(span(row), "dim" if row["low"] <= 0 <= row["high"] else "bold" if row["low"] > 0 else "")


def importance_tables(table: pd.DataFrame, correlations: pd.DataFrame) -> list[Table]:
    """Importance of every head for the loss beside its damage, and the rank correlations of all measures."""
    loss = table.loc[table["measure"] == "loss"].to_dict("records")
    heads = new_table("Importance for the loss (nats)", "E|∂L/∂ξ| by example, beside what removing the head costs")
    heads.add_column("head", no_wrap=True)
    for name in ("importance", "zero-ablation", "mean-ablation"):
        heads.add_column(name, justify="right", no_wrap=True)
    for r in sorted(loss, key=lambda r: -r["importance"]):
        numbers = [f"{r['importance']:.3f} [{r['low']:.3f}, {r['high']:.3f}]"]
        numbers += [f"{r[kind]:.3f} [{r[f'{kind}_low']:.3f}, {r[f'{kind}_high']:.3f}]" for kind in ("zero", "mean")]
        heads.add_row(head_name(r["layer"], r["head"]), *numbers)
    ranks = new_table("Rank correlation of importance and damage", "Spearman's rho with its 95% bootstrap interval")
    for i, name in enumerate(("measure", "ablation", "within layers", "all heads")):
        ranks.add_column(name, justify="left" if i < 2 else "right", no_wrap=True)
    found = {(r["measure"], r["kind"], r["scope"]): r for r in correlations.to_dict("records")}
    for measure, kind in dict.fromkeys(key[:2] for key in found):
        rhos = (found[measure, kind, scope] for scope in ("within layers", "all"))
        ranks.add_row(measure_words(measure), kind, *map(_rho, rhos))
    return [heads, ranks]


def _rho(row: Mapping) -> str:
    return "–" if pd.isna(row["rho"]) else f"{row['rho']:+.2f} {interval(row['low'], row['high'])}"


def pruning_table(curve: pd.DataFrame) -> Table:
    """What each strategy adds to the loss, by the number of heads taken out.

    curve: columns strategy, removed, fraction, loss, damage, low, high.
    """
    made = new_table(f"Pruning: damage to the loss, {curve['loss'].iloc[0]:.3f} nats/token intact", HALVES)
    for name in ("heads", "of all", *dict.fromkeys(curve["strategy"])):
        made.add_column(name, justify="right", no_wrap=True)
    for removed, rows in curve.loc[curve["removed"] > 0].groupby("removed"):
        made.add_row(str(removed), f"{rows['fraction'].iloc[0]:.0%}", *map(span, rows.to_dict("records")))
    return made


def sweep_caption(n_sets: int, tokens: int, heads_per_s: float) -> str:
    """What a sweep did and how fast."""
    what = "each head by itself" if n_sets > 1 else "removed together"
    speed = f"{heads_per_s:.3g} heads/s" if n_sets > 1 else f"{heads_per_s:.3g} sets/s"
    units = "nats (of an accuracy: share lost), [95% bootstrap interval]"
    return f"{what}, on {count(tokens)} tokens; {units}; dim: it holds 0; {speed}"
