"""How fast models train: table, verdicts and figure of `andrea_jax.benchmarks.train`."""

from matplotlib.axes import Axes
from rich.table import Table

from andrea_jax.plots.benchmark_findings import not_run
from andrea_jax.plots.benchmark_rows import Rows, by, column, distinct, timed, where
from andrea_jax.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Figure,
    figure,
    grid,
    styled,
)
from andrea_jax.plots.tables import new_table

LOOP, STEP, TORCH = "andrea train", "its step alone", "torch"
FASTER = 1.15  # times torch's rate, that training should reach
FIVE = ("W_Q", "W_K", "W_V", "W_QKV", "attention", "W_O")
COLOURS = {TORCH: GREY, STEP: SKY, LOOP: BLUE}
# the steps of attention in blues, what is read from and written to the vocabulary in greens
PARTS = {
    "W_QKV": "#B3D7EE", "W_Q": "#D6EAF6", "W_K": "#B3D7EE", "W_V": "#8FC3E4", "attention": SKY, "W_O": BLUE,
    "mlp": ORANGE, "norm": PURPLE, "embed": "#7FCBB5", "unembed": GREEN, "optimizer": VERMILION, "rest": FAINT,
}  # fmt: skip


def train_tables(rows: Rows) -> list[Table]:
    """Rates and what they are of the device's, of every contender; then the shares of a step's time."""
    made = new_table("Training, tokens/s")
    for name in ("model", "contender"):
        made.add_column(name, no_wrap=True)
    for name in ("windows", "ms a step", "tokens/s", "÷ torch", "of peak", "compile s", "GiB"):
        made.add_column(name, justify="right")
    for row in timed(rows):
        peak = row.get("peak_mib")
        values = {"ratio": ".2f", "mfu": ".0%", "compile_s": ".0f"}
        cells = ["–" if row.get(key) is None else format(row[key], how) for key, how in values.items()]
        speed = (f"{row['batch']} × {row['seq']:,}", f"{row['us'] / 1e3:.2f}", f"{row['tokens_per_s']:,.0f}")
        made.add_row(row["model"], row["contender"], *speed, *cells, "–" if peak is None else f"{peak / 1024:.1f}")
    spent = new_table("Where a step's time goes")
    shared = [row for row in timed(rows) if row.get("shares")]
    for name in ("part", *column(shared, "model")):
        spent.add_column(name, justify="left" if name == "part" else "right")
    for part in dict.fromkeys(part for row in shared for part in row["shares"]):
        spent.add_row(part, *(f"{row['shares'].get(part, 0.0):.1%}" for row in shared))
    return [made, spent]


def verdicts(rows: Rows) -> list[str]:
    """Against torch, what the loop adds to its step, where the time goes (C14), and what did not run."""
    found = timed(rows)
    said = [_against_torch(of) for of in [where(found, contender=LOOP)] if any(row.get("ratio") for row in of)]
    for (name,), of in by(found, "model").items():
        alone, loop = where(of, contender=STEP), where(of, contender=LOOP)
        if alone and loop:
            said.append(f"{name}: data, metrics and logging add {loop[0]['us'] / alone[0]['us'] - 1:.1%} to the step")
        said += [_five_steps(row) for row in alone if row.get("shares")]
    return [*said, *not_run(rows, "contender")]


def _against_torch(rows: Rows) -> str:
    verdict = "true" if min(row["ratio"] for row in rows if row["ratio"]) >= FASTER else "NOT true of every model"
    each = ", ".join(f"{row['model']} {row['ratio']:.2f}" for row in rows if row["ratio"])
    return f"training is at least {FASTER:g} times as fast as torch: {verdict}: {each}"


def _five_steps(row: dict) -> str:
    spent = row["shares"]
    parts = ", ".join(f"{name} {spent[name]:.1%}" for name in FIVE if name in spent)
    together = sum(spent.get(name, 0.0) for name in FIVE)
    return f"{row['model']}: the steps of attention take {together:.0%} of a training step's time: {parts}"


@styled
def train(rows: Rows, made_on: str) -> Figure:
    """Left: tokens/s over torch's; right: a step's time by part."""
    found = timed(rows)
    names = distinct(found, "model")
    fig = figure(9.5, 2.2 + 0.75 * len(names), _title(rows))
    left, right = fig.subplots(1, 2, sharey=True, width_ratios=(1.0, 1.3))
    _rates(left, found, names)
    _shares(right, found, names)
    fig.supxlabel(made_on, fontsize=7, color=GREY, x=0.01, ha="left")
    return fig


def _title(rows: Rows) -> str:
    """Rates against torch's where it ran."""
    loop = [row for row in where(timed(rows), contender=LOOP) if row.get("ratio")]
    if not loop:
        return "How fast models train, and where a step's time goes"
    return "Times torch's rate: " + ", ".join(f"{row['model']} {row['ratio']:.2f}" for row in loop)


def _rates(ax: Axes, rows: Rows, names: list[str]) -> None:
    torch = {row["model"]: row["tokens_per_s"] for row in where(rows, contender=TORCH)}
    high = 0.26
    for i, contender in enumerate(COLOURS):
        mine = where(rows, contender=contender)
        base = [torch.get(row["model"], row["tokens_per_s"]) for row in mine]
        wide = [row["tokens_per_s"] / it for row, it in zip(mine, base, strict=True)]
        at = [names.index(row["model"]) + (i - 1) * high for row in mine]
        bars = ax.barh(at, wide, high, color=COLOURS[contender], label=contender)
        ax.bar_label(bars, [f"{row['tokens_per_s']:,.0f}" for row in mine], padding=3, fontsize=7.5)
    ax.axvline(1.0, color=GREY, linewidth=0.8)
    ax.set_xlim(0, 1.35 * max(1.0, ax.get_xlim()[1]))
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlabel("tokens/s ÷ torch's (numbers: tokens/s)")
    ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, columnspacing=1.0, handlelength=1.2)
    grid(ax, "x")


def _shares(ax: Axes, rows: Rows, names: list[str]) -> None:
    shared = [row for row in where(rows, contender=STEP) if row.get("shares")]
    begin = dict.fromkeys(names, 0.0)
    for part in [part for part in PARTS if any(part in row["shares"] for row in shared)]:
        wide = [row["shares"].get(part, 0.0) for row in shared]
        at = [names.index(row["model"]) for row in shared]
        bars = ax.barh(at, wide, 0.6, left=[begin[row["model"]] for row in shared], color=PARTS[part],
                       edgecolor="white", linewidth=0.5, label=part)  # fmt: skip
        ax.bar_label(bars, [f"{share:.0%}" if share >= 0.04 else "" for share in wide], label_type="center",
                     fontsize=7, color="white" if part == "W_O" else "black")  # fmt: skip
        for row, share in zip(shared, wide, strict=True):
            begin[row["model"]] += share
    ax.set_xlim(0, 1)
    ax.set_xlabel("share of a step's time on the device")
    ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=5, columnspacing=1.0, handlelength=1.2)
