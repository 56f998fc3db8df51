"""Figures of studies of the lesson's claims, from plain tables; a study gives the title, from its verdict."""

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullLocator

from andrea_jax.plots.style import BLUE, FAINT, GREY, KINDS, VERMILION, Figure, figure, grid, log_axis, styled

FLOOR = 1e-7  # nats: smaller gaps are drawn here, and so are none


@styled
def trajectories(table: pd.DataFrame, title: str) -> Figure:
    """How far training losses are from those of the same training on fused weights, a panel an optimizer, both axes
    logarithmic; a line a seed, of the largest gap in five steps.

    table: columns optimizer, kind (the colour, in the order of the table), seed, step (from 1), gap (nats a token; of
    each step, however small).
    """
    optimizers, kinds = (list(dict.fromkeys(table[name])) for name in ("optimizer", "kind"))
    colours = dict(zip(kinds, KINDS, strict=False))
    across = min(len(optimizers) + 1, 3)
    down = -(-(len(optimizers) + 1) // across)
    made = figure(9.4, 1.1 + 2.3 * down, title)
    axes = made.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    for ax, optimizer in zip(axes, optimizers, strict=False):
        of_optimizer = table.loc[table["optimizer"] == optimizer]
        for (kind, _), curve in of_optimizer.groupby(["kind", "seed"], sort=False):
            gap = curve["gap"].clip(lower=FLOOR).rolling(5, min_periods=1).max()
            ax.plot(curve["step"], gap, color=colours[str(kind)], linewidth=1, alpha=0.8)
        ax.set_title(optimizer)
        ax.tick_params(labelbottom=True)
        log_axis(ax, "x")
        ax.set(yscale="log", xlabel="step")
        grid(ax)
    axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
    axes[0].yaxis.set_minor_locator(NullLocator())
    for ax in axes[::across]:
        ax.set_ylabel("loss apart (nats)")
    for ax in axes[len(optimizers) :]:
        ax.set_axis_off()
    keys = [Line2D([], [], color=colours[kind], label=kind) for kind in kinds]
    axes[len(optimizers)].legend(
        handles=keys, loc="upper left", title="a line a seed, largest of 5 steps;\nless than 1e-7 is drawn there"
    )
    return made


@styled
def correlations(table: pd.DataFrame, title: str) -> Figure:
    """Rank correlations through training, a panel a meaning: lines are means over seeds, bars their 95% intervals.

    table: columns meaning (the panel), gradient (the colour; one or two), step (evenly spaced), value, low, high.
    """
    meanings, gradients = (list(dict.fromkeys(table[name])) for name in ("meaning", "gradient"))
    steps = sorted(set(table["step"]))
    made = figure(9.4, 3.4, title)
    axes = made.subplots(1, len(meanings), sharey=True, squeeze=False).ravel()
    for ax, meaning in zip(axes, meanings, strict=True):
        for gradient, colour, beside in zip(gradients, (BLUE, VERMILION), (-0.07, 0.07), strict=False):
            curve = table.loc[(table["meaning"] == meaning) & (table["gradient"] == gradient)]
            x = [steps.index(step) + beside for step in curve["step"]]
            ax.plot(x, curve["value"], "o-", color=colour, markersize=4.5, linewidth=1.2, label=gradient)
            ax.vlines(x, curve["low"], curve["high"], color=colour, alpha=0.3, linewidth=4, zorder=0)
        ax.axhline(0, color=GREY, linewidth=1, linestyle="--")
        ax.set(title=meaning, ylim=(-1.05, 1.05), xlim=(-0.5, len(steps) - 0.5), xlabel="training step")
        ax.set_xticks(range(len(steps)), [f"{step:,}" for step in steps])
        grid(ax)
    axes[0].set_ylabel("Spearman's correlation\nwith the gradient, within layers")
    handles, labels = axes[0].get_legend_handles_labels()
    made.legend([*handles, Patch(color=FAINT)], [*labels, "95% over seeds"], loc="outside lower center", ncols=3)
    return made
