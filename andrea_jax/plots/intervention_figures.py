"""Figures of what heads are worth: damage by head, importance against damage, loss by fraction pruned.

Tables are those of `interventions`: `Damage.table`, `Importance.table` and `.correlations`, `pruning.curve`. Every
figure's title is computed from its data.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.ticker import FuncFormatter, PercentFormatter

from andrea_jax.plots.style import (
    BLUE,
    EXCESS,
    GREEN,
    GREY,
    NULL,
    VERMILION,
    Figure,
    figure,
    grid,
    ink,
    layer_colour,
    log_axis,
    styled,
)
from andrea_jax.plots.words import head_name, interval

READING = {
    "ablation": "How much worse the model gets, in nats, when one head's output is replaced: by zero, or by its mean "
    "at that position over other sequences. Blue: worse, orange: better, grey: the 95% bootstrap interval holds 0. "
    "Zero-ablation also removes what the head adds to every sequence alike, which in layer 0 can be most of its "
    "effect: read it beside the mean. The largest of many numbers flatters itself a little.",
    "importance": "Across: the mean size of the loss's gradient with respect to a gate on the head, example by "
    "example (Michel et al. 2019). Up: the damage when the head is replaced by zero (above) or its mean (below). Were "
    "gradients a good guide, the points would rise from left to right. Bars: 95% bootstrap intervals.",
    "pruning": "Heads are taken out for good, the least important by gradients first, measured once or again after "
    "each one; grey: in random order. Importance is measured on one half of the windows, the loss on the other.",
}
SHOWN = ("loss", "induction", "bracket", "name_again")  # measures that have a row of panels
WORDS = {
    "loss": "loss on held-out text",
    "in_context": "in-context score",
    "induction": "loss on second copies",
    "bracket": "loss on closing brackets",
    "bracket_hard": "loss on hard closing brackets",
    "bracket_hardest": "loss on the hardest closing brackets",
    "name": "loss on names",
    "name_again": "loss on names seen before",
}
KINDS = {"zero": "zero-ablation", "mean": "mean-ablation"}
SMALL = 48  # heads; of more, cells have no room for intervals
NAMED = 24  # heads; more are not named in a scatter
STRATEGIES = {"random": (GREY, "s"), "importance": (VERMILION, "D"), "re-estimated": (BLUE, "o")}


def drawn(tables: Mapping[str, pd.DataFrame | None]) -> dict[str, Figure | None]:
    """The figures "ablation", "importance" and "pruning", from the tables of these names and "correlations"; None where
    one was not computed."""
    damage, scores, ranks, curve = (tables[name] for name in ("ablation", "importance", "correlations", "pruning"))
    return {
        "ablation": None if damage is None else damage_map(damage),
        "importance": None if scores is None or ranks is None else importance_scatter(scores, ranks),
        "pruning": None if curve is None else pruning_curve(curve),
    }


def measure_words(measure: str) -> str:
    """What a measure is called: "loss on second copies", or the share of right guesses there."""
    name = measure.removesuffix("_accuracy")
    words = WORDS.get(name, f"loss on {name}")
    return words if name == measure else words.replace("loss", "accuracy", 1)


def number(x: float) -> str:
    """Two decimals, without a sign on 0."""
    return f"{x:.2f}".replace("-0.00", "0.00")


def span(row: Mapping) -> str:
    """ "1.05 [1.01, 1.10]", of a row's damage."""
    return f"{number(row['damage'])} [{number(row['low'])}, {number(row['high'])}]"


def damage_finding(table: pd.DataFrame) -> str:
    """Which head costs most without it, mean-ablated where that was done, and for which measure."""
    kind = "mean" if "mean" in set(table["kind"]) else str(table["kind"].iloc[0])
    said = []
    for measure in _measures(table):
        rows = table.loc[(table["measure"] == measure) & (table["kind"] == kind)]
        worst = rows.sort_values(by="damage", ascending=False).to_dict("records")[0]
        if worst["low"] > 0:
            said.append(f"{worst['heads']} for the {measure_words(measure)}, {span(worst)}")
    if not said:
        return f"No head's absence ({kind}) raises a loss beyond its interval"
    return f"The head most missed ({KINDS.get(kind, kind)}, nats): {'; '.join(said)}"


@styled
def damage_map(table: pd.DataFrame) -> Figure:
    """Damage of each head, layer × head, a row of panels a measure, zero beside mean; grey: the interval holds 0.

    table: columns kind, layer, head, measure, damage, low, high (nats). Colour is damage over the largest of the row.
    """
    table = table.loc[table["layer"].notna()]
    measures, kinds = _measures(table), [kind for kind in KINDS if kind in set(table["kind"])]
    layers, heads = (1 + int(table[name].to_numpy(int).max()) for name in ("layer", "head"))
    small = layers * heads <= SMALL
    wide, high = (0.86, 0.5) if small else (0.46, 0.3)
    size = (max(1.6 + len(kinds) * (heads * wide + 0.7), 6.8), 1.4 + len(measures) * (layers * high + 0.75))
    made = figure(*size, damage_finding(table))
    axes = made.subplots(len(measures), len(kinds), squeeze=False)
    for row, measure in zip(axes, measures, strict=True):
        of_measure = table.loc[(table["measure"] == measure) & table["kind"].isin(kinds)]
        scale = Normalize(-of_measure["damage"].abs().max(), of_measure["damage"].abs().max())
        for ax, kind in zip(row, kinds, strict=True):
            _damage_panel(ax, of_measure.loc[of_measure["kind"] == kind], (layers, heads), scale, small)
            ax.set_title(f"{measure_words(measure)}, {KINDS[kind]}", fontsize=9.5)
        bar = made.colorbar(ScalarMappable(scale, EXCESS), ax=list(row), aspect=12, pad=0.02)
        bar.set_label("damage (nats)")
    for ax in axes[-1]:
        ax.set_xlabel("head")
    for ax in axes[:, 0]:
        ax.set_ylabel("layer")
    return made


def _damage_panel(ax: Axes, rows: pd.DataFrame, shape: tuple[int, int], scale: Normalize, small: bool) -> None:
    colours = np.ones((*shape, 3))
    for r in rows.to_dict("records"):
        at = (int(r["layer"]), int(r["head"]))
        nothing = r["low"] <= 0 <= r["high"]
        colours[at] = to_rgb(NULL if nothing else EXCESS(scale(r["damage"])))
        (text, ends), colour = span(r).split(" ", 1), GREY if nothing else ink(colours[at])
        ax.text(at[1], at[0] - (0.13 if small else 0), text, ha="center", va="center", color=colour,
                fontsize=8.5 if small else 6.5)  # fmt: skip
        if small:
            ax.text(at[1], at[0] + 0.22, ends, ha="center", va="center", color=colour, fontsize=6)
    if rows.empty:
        ax.text(0.5, 0.5, "not asked", transform=ax.transAxes, ha="center", va="center", color=GREY)
    ax.imshow(colours, aspect="auto", interpolation="nearest")
    ax.hlines(np.arange(0.5, shape[0] - 1), -0.5, shape[1] - 0.5, colors="white", linewidth=1)
    ax.vlines(np.arange(0.5, shape[1] - 1), -0.5, shape[0] - 0.5, colors="white", linewidth=1)
    ax.set(xlim=(-0.5, shape[1] - 0.5), ylim=(shape[0] - 0.5, -0.5))
    ax.set_xticks(range(shape[1]))
    ax.set_yticks(range(shape[0]))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def _measures(table: pd.DataFrame) -> list[str]:
    counted = table.loc[table["damage"].notna(), "measure"]
    return [measure for measure in SHOWN if (counted == measure).any()]


def importance_finding(correlations: pd.DataFrame) -> str:
    """How well the ranking by gradients agrees with that by damage, for the loss on text."""
    rows = correlations.loc[correlations["measure"] == "loss"].to_dict("records")
    for scope, where in (("within layers", "Within a layer"), ("all", "Over all heads")):
        found = [r for r in rows if r["scope"] == scope and pd.notna(r["rho"])]
        if found:
            rhos = [f"{r['rho']:+.2f} {interval(r['low'], r['high'])} ({KINDS[r['kind']]})" for r in found]
            verdict = "ranks heads as damage does" if all(r["low"] > 0 for r in found) else "says little about damage"
            return f"{where} gradient importance {verdict}: Spearman's rho {', '.join(rhos)}"
    return "Too few heads to compare importance with damage"


@styled
def importance_scatter(table: pd.DataFrame, correlations: pd.DataFrame) -> Figure:
    """E|∂L/∂ξ| of each head against its damage, a column of panels a measure, a row zero- and mean-ablation, by layer.

    table: columns measure, layer, head, importance, low, high, and zero, mean with their _low, _high; correlations:
    columns measure, kind, scope, rho. Importance on a log scale, damage linear up to 0.01 nats and log beyond.
    """
    measures = [measure for measure in SHOWN if measure in set(table["measure"])]
    made = figure(1.2 + 3.4 * len(measures), 6.6, importance_finding(correlations))
    axes = made.subplots(2, len(measures), squeeze=False)
    n_layer = 1 + int(table["layer"].to_numpy(int).max())
    for column, measure in zip(axes.T, measures, strict=True):
        rows = table.loc[table["measure"] == measure]
        for ax, kind in zip(column, KINDS, strict=True):
            _scatter_panel(ax, rows, kind, n_layer)
            rho = correlations.query("measure == @measure and kind == @kind and scope == 'all'")["rho"].iloc[0]
            ax.set_title(f"{measure_words(measure)}\n{KINDS[kind]}, all heads: rho {rho:+.2f}", fontsize=9)
        column[-1].set_xlabel("importance (nats)")
    for ax in axes[:, 0]:
        ax.set_ylabel("damage (nats)")
    axes[0, -1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return made


def _scatter_panel(ax: Axes, rows: pd.DataFrame, kind: str, n_layer: int) -> None:
    ax.set_yscale("symlog", linthresh=0.01)
    rows = rows.loc[rows["importance"] > 0]  # what does not reach the loss has no place on a log scale
    for layer, of_layer in rows.groupby("layer"):
        x, y = of_layer["importance"].to_numpy(), of_layer[kind].to_numpy()
        x_error = np.array([x - of_layer["low"], of_layer["high"] - x]).clip(0)
        y_error = np.array([y - of_layer[f"{kind}_low"], of_layer[f"{kind}_high"] - y]).clip(0)
        colour = layer_colour(int(str(layer)), n_layer)
        ax.errorbar(x, y, xerr=x_error, yerr=y_error, fmt="o", markersize=4, color=colour, elinewidth=0.8,
                    label=f"layer {layer}")  # fmt: skip
    ax.margins(0.12)
    log_axis(ax, "x")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # the default needs mathtext
    ax.axhline(0, color=GREY, linewidth=0.8)
    if len(rows) <= NAMED:
        for r in rows.to_dict("records"):
            ax.annotate(head_name(r["layer"], r["head"]), (r["importance"], r[kind]), (4, 3),
                        textcoords="offset points", fontsize=7, color=GREY)  # fmt: skip
    grid(ax)


def pruning_finding(curve: pd.DataFrame) -> str:
    """What it costs to take out half of the heads, or nearly: the least important, and at random."""
    pruned = curve.loc[curve["removed"] > 0].to_dict("records")
    removed = min(
        (r["removed"] for r in pruned), key=lambda n: abs(n / pruned[0]["removed"] * pruned[0]["fraction"] - 0.5)
    )
    at = {r["strategy"]: r for r in pruned if r["removed"] == removed}
    names = {"importance": "least important first", "re-estimated": "re-estimated after each", "random": "at random"}
    costs = ", ".join(f"{span(at[strategy])} {words}" for strategy, words in names.items())
    return f"Taking out {at['random']['fraction']:.0%} of the heads costs {costs} (nats/token)"


@styled
def pruning_curve(curve: pd.DataFrame) -> Figure:
    """Held-out loss against the fraction of heads pruned, by strategy.

    curve: columns strategy, removed, fraction, loss, damage, low, high. Bands: 95%, over
    sequences, of random over orders.
    """
    made = figure(8.2, 4.2, pruning_finding(curve))
    ax = made.add_subplot()
    labels = {"random": "at random (95% of the orders)", "importance": "least important first, measured once",
              "re-estimated": "least important first, measured again after each"}  # fmt: skip
    for strategy, (colour, marker) in STRATEGIES.items():
        rows = curve.loc[curve["strategy"] == strategy].sort_values("fraction")
        intact = rows["loss"].iloc[0]
        ax.plot(rows["fraction"], rows["loss"], marker=marker, markersize=4, color=colour, label=labels[strategy])
        ax.fill_between(rows["fraction"], intact + rows["low"], intact + rows["high"], color=colour, alpha=0.18,
                        linewidth=0)  # fmt: skip
    ax.axhline(curve["loss"].iloc[0], color=GREEN, linestyle="--", linewidth=1, label="intact")
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.set(xlabel="heads pruned (each layer keeps one)", ylabel="held-out loss (nats/token)")
    ax.legend(loc="upper left")
    grid(ax)
    return made
