"""Heads through training: when each behaviour appears, beside the in-context score and the entropy of the patterns.

`profiles` maps the step of a checkpoint to its `heads.Profile`; `metrics` are the lines of `metrics.jsonl`.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import matplotlib.axes
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, SymmetricalLogLocator

from andrea_jax.plots import findings
from andrea_jax.plots.style import BLUE, FAINT, GREEN, GREY, Figure, figure, grid, layer_colour, styled
from andrea_jax.plots.words import PROBES, count, head_name

FEWEST = 3  # checkpoints that make a development
FOLLOWED = ("previous_token", "induction", "duplicate_token", "bracket", "current_token", "first_token")


class Scored(Protocol):
    """What is needed of `heads.Profile`."""

    @property
    def table(self) -> pd.DataFrame: ...
    @property
    def best(self) -> pd.DataFrame: ...


def appearances(profiles: Mapping[int, Scored], tokens_a_step: float) -> pd.DataFrame:
    """When the last checkpoint's best heads took up what they do; a row a probe that beats its baseline there.

    Columns probe, layer, head · score, baseline: of that head at the last checkpoint, on all sequences · after, by:
    training tokens of the checkpoints between which it last passes half way from its baseline to its last score. A
    checkpoint counts as below half way where its whole interval is; `after` is null where none does: then the behaviour
    is older than the first checkpoint, or, where that one's interval is not above its baseline, too faint to say since
    when, and `by` is null too.
    """
    steps, table, rows = sorted(profiles), _long(profiles), []
    for best in findings.found(profiles[steps[-1]].best).to_dict("records"):
        if best["probe"] not in FOLLOWED:
            continue
        curve = _curve(table, best["probe"], best["layer"], best["head"])
        score, baseline = curve["score"].iloc[-1], curve["baseline"].iloc[-1]
        below = np.flatnonzero(curve["high"] < (score + baseline) / 2)
        after = tokens_a_step * steps[below[-1]] if len(below) else np.nan
        by = tokens_a_step * steps[below[-1] + 1 if len(below) else 0]
        if not len(below) and not curve["low"].iloc[0] > curve["baseline"].iloc[0]:
            by = np.nan
        rows.append((best["probe"], int(best["layer"]), int(best["head"]), score, baseline, after, by))
    return pd.DataFrame(rows, columns=["probe", "layer", "head", "score", "baseline", "after", "by"])


def finding(found: pd.DataFrame, n_checkpoints: int) -> str:
    """When induction appears, and the previous-token head that it needs; else the clearest behaviour; or nothing."""
    if found.empty:
        return f"No head lies above its null at the last of {n_checkpoints} checkpoints"
    named = {row["probe"]: row for row in found.to_dict("records")}
    if "induction" not in named:
        return _appears(max(named.values(), key=lambda row: row["score"] - row["baseline"]))
    if "previous_token" not in named:
        return _appears(named["induction"])
    return f"{_appears(named['induction'])}; {_appears(named['previous_token'], again=True)}"


def _appears(row: Mapping, again: bool = False) -> str:
    label, name = PROBES[row["probe"]].label, head_name(row["layer"], row["head"])
    when = "is too faint to say since when" if np.isnan(row["by"]) else "is there from the first checkpoint on"
    if not np.isnan(row["after"]):
        when = f"{'' if again else 'appears '}between {count(row['after'])} and {count(row['by'])} tokens"
    start = label if again else label.capitalize()
    return f"{start} (head {name}: {row['score']:.2f}, uniform {row['baseline']:.2f}) {when}"


@styled
def development(profiles: Mapping[int, Scored], metrics: Sequence[dict]) -> Figure:
    """Head scores, in-context score (nats) and mean entropy (nats) against training tokens, log scale from 0 on.

    profiles: checkpoints, three or more. A panel a behaviour: the best head of the last checkpoint through training,
    with its 95% interval, the other heads faint; the band spans the checkpoints between which it appears. All
    sequences are used, so the last point is chosen to be large; the points before it are not. Without evaluations in
    metrics there is no in-context panel. Raises ValueError for fewer than three checkpoints.
    """
    if len(profiles) < FEWEST:
        raise ValueError(f"a development needs {FEWEST} checkpoints or more, not {len(profiles)}")
    a_step, last, table = findings.tokens_a_step(metrics), profiles[max(profiles)], _long(profiles)
    found = appearances(profiles, a_step)
    best = {row["probe"]: row for row in last.best.to_dict("records") if row["n"] > 0}
    probes = [probe for probe in FOLLOWED if probe in best]
    scored = findings.logged(metrics, "eval_in_context")
    n_panel = len(probes) + (2 if scored else 1)
    rows = -(-n_panel // 2)
    made = figure(9.4, 0.9 + 2.05 * rows, finding(found, len(profiles)))
    axes = made.subplots(rows, 2, sharex=True, squeeze=False).ravel()
    for ax, probe in zip(axes, probes, strict=False):
        _scores(ax, table, a_step, best[probe], found.loc[found["probe"] == probe])
    if scored:
        _in_context(axes[len(probes)], scored, a_step)
    _entropy(axes[n_panel - 1], table, a_step)
    for ax in axes[n_panel:]:
        ax.set_visible(False)
    for ax in axes[:n_panel]:
        token_axis(ax, sorted(profiles), a_step)
        ax.tick_params(labelbottom=True)
        grid(ax)
    for ax in axes[n_panel - 2 : n_panel]:
        ax.set_xlabel("training tokens (log scale; 0: initialization)")
    return made


def _long(profiles: Mapping[int, Scored]) -> pd.DataFrame:
    """The tables of all checkpoints below each other, ascending, with their step."""
    return pd.concat([profiles[step].table.assign(step=step) for step in sorted(profiles)], ignore_index=True)


def _curve(table: pd.DataFrame, probe: str, layer: int, head: int) -> pd.DataFrame:
    """One head's rows of one probe, step by step."""
    return table[(table["probe"] == probe) & (table["layer"] == layer) & (table["head"] == head)].reset_index()


def _every(table: pd.DataFrame, probe: str) -> pd.DataFrame:
    """The scores of all heads on one probe: rows steps, columns (layer, head)."""
    return table[table["probe"] == probe].pivot(index="step", columns=["layer", "head"], values="score")


def _scores(ax: matplotlib.axes.Axes, table: pd.DataFrame, a_step: float, best: Mapping, found: pd.DataFrame) -> None:
    probe, name = best["probe"], head_name(best["layer"], best["head"])
    every, curve = _every(table, probe), _curve(table, probe, best["layer"], best["head"])
    tokens = a_step * every.index.to_numpy()
    ax.plot(tokens, every.to_numpy(), color=FAINT, linewidth=1)
    ax.fill_between(tokens, curve["low"], curve["high"], color=BLUE, alpha=0.2, linewidth=0)
    ax.plot(tokens, curve["score"], "o-", color=BLUE, markersize=3.5)
    ax.plot(tokens, curve["baseline"], "--", color=GREY, linewidth=1)
    for after, by in zip(found["after"], found["by"], strict=True):
        if not np.isnan(after):
            ax.axvspan(after, by, color=GREEN, alpha=0.14, linewidth=0)
    null = "" if len(found) else ", within the null"
    ax.set_title(f"{PROBES[probe].label}: head {name}{null}", fontsize=9.5)
    ax.set(ylabel="share of attention", ylim=(0, max(1.05 * ax.get_ylim()[1], 0.2)))


def _in_context(ax: matplotlib.axes.Axes, scored: Sequence[dict], a_step: float) -> None:
    ax.plot([a_step * row["step"] for row in scored], [row["eval_in_context"] for row in scored], "o-", color=BLUE,
            markersize=3.5)  # fmt: skip
    ax.axhline(0, color=GREY, linestyle="--", linewidth=1)
    (late, early) = ("–".join(str(p - i) for i, p in enumerate(scored[-1][f"eval_in_context_{band}"]))
                     for band in ("late", "early"))  # fmt: skip
    ax.set_title(f"in-context score: loss at positions {late} − at {early}", fontsize=9.5)
    ax.set_ylabel("nats/token")


def _entropy(ax: matplotlib.axes.Axes, table: pd.DataFrame, a_step: float) -> None:
    every = _every(table, "entropy")
    tokens, layers = a_step * every.index.to_numpy(), every.columns.get_level_values("layer")
    n_layer = len(set(layers))
    for layer, scores in zip(layers, every.to_numpy().T, strict=True):
        ax.plot(tokens, scores, color=layer_colour(layer, n_layer), linewidth=1.2, alpha=0.85)
    ax.axhline(table.loc[table["probe"] == "entropy", "baseline"].iloc[-1], linestyle="--", color=GREY, linewidth=1)
    ax.set_title("mean entropy of every head's pattern", fontsize=9.5)
    ax.set(ylabel="nats", ylim=(0, None))
    keys = [Line2D([], [], color=layer_colour(layer, n_layer), label=f"layer {layer}") for layer in range(n_layer)]
    ax.legend(handles=[*keys, Line2D([], [], color=GREY, linestyle="--", label="uniform")], loc="best", fontsize=7.5)


def token_axis(ax: matplotlib.axes.Axes, steps: Sequence[int], a_step: float) -> None:
    """Log scale above the first checkpoint after 0, linear below it, so that 0 has its place."""
    first = a_step * min(step for step in steps if step)
    ax.set_xscale("symlog", linthresh=first, linscale=0.4)
    ax.set_xlim(-0.2 * first if 0 in steps else 0.8 * first, 1.15 * a_step * max(steps))
    ax.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=first))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    ax.yaxis.set_major_locator(MaxNLocator(5))
