"""Figures of training and of the projections: plain data in, a `Figure` out, the finding in its title.

Metrics are the lines of `metrics.jsonl` (`Run.metrics()`); tables are pandas DataFrames with the columns each function
names. Figures of heads are in `head_figures.py`.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from andrea_jax.plots import findings
from andrea_jax.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    KINDS,
    VERMILION,
    Figure,
    figure,
    grid,
    layer_colour,
    log_axis,
    styled,
)
from andrea_jax.plots.words import count

WINDOWS = 40  # a training curve is averaged over one such part of its length


@styled
def loss_curve(metrics: Sequence[dict], vocab_size: int) -> Figure:
    """Training loss (as logged faint, running mean strong) and held-out loss, nats/token, against tokens and steps.

    metrics: rows with step, tokens, loss; rows of evaluations with step, eval_loss. Chance, ln vocab_size, is a line.
    """
    made = figure(8.2, 3.9, findings.loss(metrics, vocab_size))
    ax = made.add_subplot()
    trained, held = findings.logged(metrics, "loss"), findings.logged(metrics, "eval_loss")
    a_step, loss = findings.tokens_a_step(metrics), _column(trained, "loss")
    tokens, strong = a_step * _column(trained, "step"), window(len(loss)) > 1
    look = (0.35, 0.8) if strong else (1.0, 1.6)
    ax.plot(tokens, loss, color=BLUE, alpha=look[0], linewidth=look[1], label="training")
    if strong:
        ax.plot(tokens, smooth(loss), color=BLUE, label="training, running mean")
    held_tokens = a_step * _column(held, "step")
    ax.plot(held_tokens, _column(held, "eval_loss"), "o-", color=VERMILION, markersize=4, label="held-out")
    ax.axhline(math.log(vocab_size), color=GREY, linestyle="--", linewidth=1, label=f"chance, ln {vocab_size}")
    ax.set(ylabel="loss (nats/token)")
    ax.legend(loc="upper right", bbox_to_anchor=(1.0, 0.9))
    grid(ax)
    _token_axes(ax, a_step)
    return made


@styled
def head_gradients(metrics: Sequence[dict]) -> Figure:
    """Gradient norm of every head, log scale, against tokens and steps; one line a head, coloured by layer.

    metrics: rows with step, tokens; rows with step, head_grad_norm [n_layer][n_head]. A norm of 0 is left out.
    """
    made = figure(8.2, 3.9, findings.gradients(metrics))
    ax = made.add_subplot()
    norms, a_step = findings.head_norms(metrics), findings.tokens_a_step(metrics)
    tokens = a_step * _column(findings.logged(metrics, "head_grad_norm"), "step")
    n_layer, n_head = norms.shape[1:]
    marker = "o" if len(tokens) == 1 or (len(tokens) < WINDOWS and n_layer * n_head <= 16) else ""
    for layer in range(n_layer):
        style = {"color": layer_colour(layer, n_layer), "marker": marker, "markersize": 3}
        for head in range(n_head):
            curve = smooth(np.where(norms[:, layer, head] > 0, norms[:, layer, head], np.nan))
            ax.plot(tokens, curve, linewidth=1.1, alpha=0.85, **style)
    ax.set(ylabel="gradient norm of a head")
    log_axis(ax, "y")
    keys = [Line2D([], [], color=layer_colour(layer, n_layer), label=f"layer {layer}") for layer in range(n_layer)]
    ax.legend(handles=keys, loc="center left", bbox_to_anchor=(1.0, 0.5))
    grid(ax)
    _token_axes(ax, a_step)
    return made


@styled
def projection_check(checks: pd.DataFrame) -> Figure:
    """Largest absolute difference between fused and per-head, beside its tolerance, on a log scale.

    checks: columns quantity ("logits", "gradients", "scores"), max_difference, tolerance. A 0 of either has no place on
    such a scale and is said in words.
    """
    made = figure(8.2, 1.5 + 0.38 * len(checks), findings.checks(checks))
    ax = made.add_subplot()
    numbers = checks[["max_difference", "tolerance"]].to_numpy(float)
    shown = numbers[numbers > 0]
    left, right = (shown.min() / 30, shown.max() * 30) if len(shown) else (1e-9, 1.0)
    for row, (difference, tolerance) in enumerate(zip(checks["max_difference"], checks["tolerance"], strict=True)):
        within = difference <= tolerance
        ax.plot([left, max(difference, left)], [row, row], color=FAINT, linewidth=2, zorder=1)
        ax.plot(max(difference, left), row, "o", color=GREEN if within else VERMILION, clip_on=False, zorder=3)
        text = "0, bit-equal" if difference == 0 else f"{difference:.1e}"
        text += "" if tolerance else " (tolerance 0)"
        ax.annotate(text, (max(difference, left), row), (9, 0), textcoords="offset points", va="center", fontsize=8.5)
        if tolerance:
            ax.plot(tolerance, row, "|", color=GREY, markersize=16, markeredgewidth=2)
            ax.annotate(f"tolerance {tolerance:.0e}", (tolerance, row), (7, 0), textcoords="offset points",
                        va="center", fontsize=8, color=GREY)  # fmt: skip
    ax.set(xlim=(left, right), ylim=(len(checks) - 0.5, -0.5), xlabel="largest absolute difference")
    log_axis(ax, "x")
    ax.set_yticks(range(len(checks)), list(checks["quantity"]))
    ax.tick_params(axis="y", length=0)
    return made


@styled
def projection_timing(timing: pd.DataFrame, of: str = "") -> Figure:
    """Time a call of each projection form; the dot is the fastest repeat, the line reaches to the median.

    timing: columns form, passes ("forward", "forward + backward"), min_ms, median_ms. The first form is the measure of
    the ratios. of: what was timed, for the foot of the figure.
    """
    kinds = list(dict.fromkeys(timing["passes"]))
    forms = list(dict.fromkeys(timing["form"]))
    made = figure(8.2, 1.8 + 0.38 * len(forms), findings.timing(timing))
    axes = made.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for ax, kind in zip(axes, kinds, strict=True):
        rows = timing[timing["passes"] == kind].set_index("form").loc[forms]
        for y, (low, median) in enumerate(zip(rows["min_ms"], rows["median_ms"], strict=True)):
            ax.plot([low, median], [y, y], color=KINDS[0], linewidth=2.5, alpha=0.5, solid_capstyle="butt")
            ax.plot(low, y, "o", color=KINDS[0])
            text = f"{low:.3g} ms, ×{low / rows['min_ms'].iloc[0]:.2f}"
            ax.annotate(text, (median, y), (8, 0), textcoords="offset points", va="center", fontsize=8.5)
        ax.set(title=kind, xlim=(0, 1.5 * rows["median_ms"].max()), xlabel="time a call (ms): fastest to median")
        ax.set_yticks(range(len(forms)), forms)
        ax.tick_params(axis="y", length=0)
        grid(ax, "x")
    axes[0].set_ylim(len(forms) - 0.5, -0.5)
    if of:
        made.supxlabel(of, x=0.01, ha="left", fontsize=8.5, color=GREY)
    return made


@styled
def projection_training(curves: Mapping[str, Sequence[float]]) -> Figure:
    """How far two models drift apart in training that differ in their projection only; a curve an optimizer, log scale.

    curves: optimizer -> largest relative difference of the parameters after step 1, 2, ... A difference of 0 is left
    out of the curve.
    """
    made = figure(8.2, 3.6, findings.drift(curves))
    ax = made.add_subplot()
    for i, (name, curve) in enumerate(curves.items()):
        values = np.array([value or np.nan for value in curve])
        ax.plot(range(1, len(curve) + 1), values, marker="osD^"[i % 4], markersize=3, color=KINDS[i], label=name)
    ax.set(xlabel="steps", ylabel="largest relative difference")
    log_axis(ax, "y")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    grid(ax)
    return made


def window(n: int) -> int:
    """An odd number of points, so that the mean is centred."""
    return n // WINDOWS | 1


def smooth(values: np.ndarray) -> np.ndarray:
    """Centred running mean over `window(len(values))` points, fewer at the ends; nan points are left out."""
    kernel, known = np.ones(window(len(values))), np.isfinite(values)
    total = np.convolve(np.where(known, values, 0), kernel, "same")
    weight = np.convolve(known.astype(float), kernel, "same")
    return np.divide(total, weight, out=np.full(len(values), np.nan), where=weight > 0)


def _column(rows: Sequence[dict], key: str) -> np.ndarray:
    return np.array([row[key] for row in rows], np.float64)


def _token_axes(ax: Axes, a_step: float) -> None:
    """Tokens below, steps above."""
    ax.set_xlabel("training tokens")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    top = ax.secondary_xaxis("top", functions=(lambda x: np.divide(x, a_step), lambda x: np.multiply(x, a_step)))
    top.set_xlabel("steps")
    top.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    top.spines["top"].set_visible(True)
