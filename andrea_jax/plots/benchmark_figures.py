"""Figures of the benchmarks: rows of `andrea_jax.benchmarks` in, a `Figure` out, the finding in its title.

At least one row must have a time. `of` says on what and when, for the foot. A line reaches from the fastest timing to
the slowest, its mark stands at the median.
"""

import textwrap

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from andrea_jax.plots import benchmark_findings as findings
from andrea_jax.plots.benchmark_findings import BOTH, FORWARD, IN_PLACE, STEP
from andrea_jax.plots.benchmark_rows import Rows, by, column, distinct, fastest, shape_name, timed, where
from andrea_jax.plots.style import FAINT, GREY, KINDS, Figure, figure, grid, styled

MARKERS = "osD^vP*X<>"
FAR = 4.0  # ratios above stand at the edge, as a number
TICKS = [factor * ten for ten in (0.01, 0.1, 1, 10, 100) for factor in (1, 1.5, 2, 3, 5, 7)]  # ratios, log scale
CEILING = {"color": GREY, "linewidth": 1, "linestyle": (0, (1, 2))}


@styled
def attention(rows: Rows, of: str) -> Figure:
    """Time of every contender over that of the fastest peer (of the fastest contender, where no peer was timed), log
    scale, shape by shape; a panel a pass. Backends are filled, peers hollow."""
    measured = timed(rows)
    peers = bool(where(measured, kind="peer"))
    marks = {name: {"marker": MARKERS[i % len(MARKERS)], "color": KINDS[i % len(KINDS)], "markersize": 6,
                    "markerfacecolor": KINDS[i % len(KINDS)] if kind == "backend" else "white"}
             for i, (kind, name) in enumerate(by(measured, "kind", "contender"))}  # fmt: skip
    lines = {
        shape_name(of_shape[0]): of_shape for of_shape in by(measured, "batch", "seq", "n_head", "head_dim").values()
    }
    made, axes = _two_panels(findings.attention_title(rows), list(lines), len(marks))
    for ax, passes in zip(axes, (FORWARD, BOTH), strict=True):
        for y, of_shape in enumerate(lines.values()):
            here = where(of_shape, passes=passes)
            base = fastest(where(here, kind="peer") or here)["us"] if here else 1.0
            for i, row in enumerate(here):
                _mark(ax, row, base, y + _shift(i, len(here)), marks[row["contender"]])
        _against(ax, passes, f"time ÷ that of the fastest {'peer' if peers else 'contender'}")
    return _explained(made, marks, of)


@styled
def layout(rows: Rows, of: str) -> Figure:
    """Time of every arrangement over that of heads read in place, backend by backend and shape by shape; log scale."""
    measured = [row for row in where(timed(rows), question="layout") if row["ratio"]]
    names = distinct(measured, "variant")
    marks = {
        name: {"marker": MARKERS[i], "color": KINDS[i % len(KINDS)], "markersize": 6} for i, name in enumerate(names)
    }
    lines = [f"{row['backend']}\n{shape_name(row)}" for row in where(measured, variant=IN_PLACE, passes=FORWARD)]
    made, axes = _two_panels(findings.layout_title(rows), lines, len(marks))
    for row in measured:
        line = f"{row['backend']}\n{shape_name(row)}"
        if line in lines:
            y = lines.index(line) + _shift(names.index(row["variant"]), len(names))
            _mark(axes[row["passes"] == BOTH], row, row["us"] / row["ratio"], y, marks[row["variant"]])
    for ax, passes in zip(axes, (FORWARD, BOTH), strict=True):
        _against(ax, passes, f"time ÷ that of heads {IN_PLACE}")
    return _explained(made, marks, of)


def _two_panels(title: str, lines: list[str], n_marks: int) -> tuple[Figure, list[Axes]]:
    made = figure(9.6, 1.9 + max(0.55, 0.115 * n_marks) * len(lines), title)
    axes = list(made.subplots(1, 2, sharey=True))
    axes[0].set_yticks(range(len(lines)), lines)
    axes[0].set_ylim(len(lines) - 0.5, -0.5)
    for ax in axes:
        ax.tick_params(axis="y", length=0)
        for y in range(len(lines) - 1):
            ax.axhline(y + 0.5, color=FAINT, linewidth=0.8, zorder=0)
    return made, axes


def _shift(i: int, n: int) -> float:
    """Where the i-th of n marks stands in its line, so that equal values are seen."""
    return 0.8 * (i / max(n - 1, 1) - 0.5)


def _mark(ax: Axes, row: dict, base: float, y: float, look: dict) -> None:
    ratio = row["us"] / base
    if ratio > FAR:
        ax.plot(FAR, y, linestyle="", **look)
        ax.annotate(f"{ratio:.0f}", (FAR, y), (7, 0), textcoords="offset points", va="center", fontsize=7, color=GREY)
        return
    ends = [min(row[key] / base, FAR) for key in ("fastest_us", "slowest_us")]
    ax.plot(ends, [y, y], color=look["color"], linewidth=1)
    ax.plot(ratio, y, linestyle="", **look)


def _against(ax: Axes, passes: str, label: str) -> None:
    ax.axvline(1, color=GREY, linewidth=1, linestyle="--", zorder=0)
    ax.set(title=passes, xlabel=label)
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.set_xticks([x for x in TICKS if low <= x <= high], [f"{x:g}" for x in TICKS if low <= x <= high])
    ax.minorticks_off()
    grid(ax, "x")


def _explained(made: Figure, marks: dict[str, dict], of: str) -> Figure:
    keys = [Line2D([], [], linestyle="", label=name, **look) for name, look in marks.items()]
    made.legend(handles=keys, loc="outside right center")
    return _footed(made, f"batch × seq × n_head × head_dim; ratios above {FAR:g} as numbers at the edge; {of}")


def _footed(made: Figure, of: str) -> Figure:
    made.supxlabel(textwrap.fill(of, int(15.5 * made.get_figwidth())), x=0.01, ha="left", fontsize=8.5, color=GREY)
    return made


@styled
def projections(rows: Rows, of: str, ceiling: float) -> Figure:
    """TFLOP/s of every form against B·T; a row of panels a pass, a column a width, a line style a threshold of the dot
    merger. ceiling: that of a large matrix product, dotted."""
    measured = timed(rows)
    widths, passes, forms = (distinct(measured, key) for key in ("d_model", "passes", "form"))
    tokens, thresholds = sorted(set(column(measured, "tokens"))), distinct(measured, "threshold_mb")
    made = figure(3.0 + 2.5 * len(widths), 1.5 + 2.3 * len(passes), findings.projections_title(rows))
    axes = made.subplots(len(passes), len(widths), sharex=True, sharey=True, squeeze=False)
    for (d_model, one), panel in by(measured, "d_model", "passes").items():
        ax = axes[passes.index(one)][widths.index(d_model)]
        for (form, threshold), curve in by(panel, "form", "threshold_mb").items():
            x, look = [tokens.index(n) for n in column(curve, "tokens")], _line(thresholds, threshold)
            ax.plot(x, column(curve, "tflops"), marker="o", markersize=3.5, color=KINDS[forms.index(form)], **look)
        ax.axhline(ceiling, **CEILING)
        ax.set(xlim=(-0.4, len(tokens) - 0.6), ylim=(0, 1.08 * max(ceiling, *column(measured, "tflops"))))
        ax.set_xticks(range(len(tokens)), [f"{n:,}" for n in tokens])
        grid(ax)
    for ax, one in zip(axes[:, 0], passes, strict=True):
        ax.set_ylabel(f"{one}\nTFLOP/s")
    for ax, d_model in zip(axes[0], widths, strict=True):
        ax.set_title(f"d_model {d_model}")
    for ax in axes[-1]:
        ax.set_xlabel("tokens, B·T")
    keys = [Line2D([], [], color=KINDS[i], marker="o", markersize=4, label=form) for i, form in enumerate(forms)]
    keys += [Line2D([], [], color=GREY, label=f"merger at {mb} MiB", **_line(thresholds, mb))
             for mb in thresholds if mb is not None]  # fmt: skip
    made.legend(handles=[*keys, Line2D([], [], label="ceiling", **CEILING)], loc="outside right center")
    return _footed(made, of)


def _line(thresholds: list, threshold: int | None) -> dict:
    return {"linestyle": ("-", "--", ":", "-.")[thresholds.index(threshold) % 4]}


@styled
def head_dim(rows: Rows, of: str) -> Figure:
    """TFLOP/s against head_dim, a line a backend: attention forward, forward and backward, and a training step."""
    measured = timed(rows)
    widths, backends = sorted(set(column(measured, "head_dim"))), distinct(measured, "backend")
    look = {
        name: {"color": KINDS[i % len(KINDS)], "marker": MARKERS[i], "markersize": 5} for i, name in enumerate(backends)
    }
    made = figure(9.8, 3.8, findings.head_dim_title(rows))
    for ax, passes in zip(made.subplots(1, 3), (FORWARD, BOTH, STEP), strict=True):
        for (backend,), curve in by(where(measured, passes=passes), "backend").items():
            ax.plot(
                [widths.index(width) for width in column(curve, "head_dim")], column(curve, "tflops"), **look[backend]
            )
        ax.set(title=passes if passes == STEP else f"attention, {passes}", xlabel="head_dim", ylabel="TFLOP/s")
        ax.set_ylim(0, 1.08 * max(column(where(measured, passes=passes), "tflops"), default=1.0))
        ax.set_xticks(range(len(widths)), [str(width) for width in widths])
        grid(ax)
    keys = [Line2D([], [], label=name, **it) for name, it in look.items()]
    made.legend(handles=keys, loc="outside right center")
    return _footed(made, of)
