"""Training on several devices: table, verdicts and figure of `andrea_jax.benchmarks.many_devices`."""

import textwrap

from matplotlib.axes import Axes
from rich.table import Table

from andrea_jax.plots.benchmark_findings import not_run
from andrea_jax.plots.benchmark_rows import Rows, by, distinct, span, timed
from andrea_jax.plots.style import BLUE, GREY, ORANGE, VERMILION, Figure, figure, grid, styled
from andrea_jax.plots.tables import new_table

# times what the order of the windows changes, that a mesh may change the losses: over heads, W_O and the MLP leave
# partial sums, which are rounded to the dtype before they are added up; one device rounds only their sum
ROUNDING = 5.0
FLOAT32 = 1e-6  # nats: a loss is a float32
REVERSED = "one device, reverse order"


def mesh_tables(rows: Rows) -> list[Table]:
    """Every row that was timed, with its efficiency, its distance from one device and what it waits for."""
    made = new_table("Training on several devices, beside one")
    for name in ("part", "model", "projection", "mesh"):
        made.add_column(name, no_wrap=True)
    for name in ("windows", "ms", "tokens/s", "efficiency", "off, nats", "exposed", "idle"):
        made.add_column(name, justify="right")
    for row in timed(rows):
        shown = {"batch": "d", "us": "", "tokens_per_s": ",.0f", "efficiency": ".0%", "off_mean": ".1e"}
        shown |= {"exposed": ".0%", "idle": ".0%"}
        cells = ["–" if row.get(key) is None else format(row[key], how) for key, how in shown.items()]
        cells[1] = f"{row['us'] / 1e3:.2f}"
        made.add_row(*(str(row[key]) for key in ("part", "model", "projection", "mesh")), *cells)
    return [made]


def verdicts(rows: Rows) -> list[str]:
    """Losses against rounding, efficiency, moved runs, kernels under a cut, what did not run."""
    said = [_losses(of) for of in by(_part(rows, "losses"), "model", "projection").values()]
    said += [_speed(model, of) for (model,), of in by(_fast(rows), "model").items()]
    said += [_moved(model, of) for (model,), of in by(_part(rows, "resume"), "model").items()]
    said += [_kernel(row) for row in _part(rows, "kernels") if row["reason"] is None]
    return [*said, *not_run(rows, "mesh")]


def _part(rows: Rows, name: str) -> list[dict]:
    return [row for row in rows if row["part"] == name and row["reason"] is None]


def _fast(rows: Rows) -> list[dict]:
    """Rows of the speed on several devices, torch's too."""
    return [row for row in timed(rows) if row["part"] in ("speed", "torch") and row["devices"] > 1]


def _losses(rows: Rows) -> str:
    control = next(row["off_mean"] for row in rows if row["mesh"] == REVERSED)
    cut = [row for row in rows if row["devices"] > 1]
    off = {row["mesh"]: row["off_mean"] for row in cut}
    verdict = "true" if max(off.values(), default=0.0) <= ROUNDING * max(control, FLOAT32) else "NOT true"
    each = ", ".join(f"{mesh} {value:.1e}" for mesh, value in off.items())
    who = f"{rows[0]['model']}, {rows[0]['projection']}, {rows[0]['steps']} steps"
    return (
        f"{who}: losses on every mesh are those of one device within rounding: {verdict}: mean distance {each} nats; "
        f"the windows in reverse order on one device {control:.1e}"
    )


def _speed(model: str, rows: Rows) -> str:
    each = ", ".join(f"{_name(row)} {row['tokens_per_s']:,.0f} ({_percent(row['efficiency'])})" for row in rows)
    return f"{model}, tokens/s on {rows[0]['devices']} devices (efficiency against one of the same kind): {each}"


def _name(row: dict) -> str:
    return row["mesh"] if row["part"] == "torch" else f"andrea {row['mesh']}"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.0%}"


def _moved(model: str, rows: Rows) -> str:
    return f"{model}: a run that moved after 5 of 10 steps differs from one that stayed by " + ", ".join(
        f"{row['off_mean']:.1e} ({row['mesh']})" for row in rows[1:]
    )


def _kernel(row: dict) -> str:
    sent = sum(bytes_sent for _, bytes_sent in (row["collectives"] or {}).values())
    moved = "nothing is sent" if not sent else f"{sent:,} bytes are sent"
    return f"{row['backend']}, {row['model']}, {row['mesh']}: {moved}; off by {row['off_max']:.1e} at most"


def title(rows: Rows) -> str:
    """The finding."""
    own = [row["efficiency"] for row in _fast(rows) if row["part"] == "speed"]
    if not own:
        return "Training on several devices"
    devices, kept = _fast(rows)[0]["devices"], span([100 * share for share in own], ".0f")
    return f"On {devices} devices a mesh keeps {kept}% of {devices} times the speed of one"


@styled
def many_devices(rows: Rows, of: str) -> Figure:
    """A panel for each model: tokens/s of every mesh and of torch, on one device and on all; and the efficiency."""
    shown = [row for row in timed(rows) if row["part"] in ("speed", "torch")]
    models = distinct(shown, "model")
    made = figure(max(5.2 * len(models), 7.0), 3.6, title(rows))
    if models:
        panels = made.subplots(1, len(models), squeeze=False)[0]
        for ax, (_, of_model) in zip(panels, by(shown, "model").items(), strict=True):
            _bars(ax, of_model)
    notes = f"{of}; beside each bar: tokens/s, share of as many times one device, share of a step that only sends"
    made.supxlabel(textwrap.fill(notes, 110 if len(models) < 2 else 150), x=0.01, ha="left", fontsize=8.5, color=GREY)
    return made


def _bars(ax: Axes, rows: Rows) -> None:
    ordered = sorted(rows, key=lambda row: (row["devices"], row["tokens_per_s"]))
    places = range(len(ordered))
    for i, row in zip(places, ordered, strict=True):
        colour = ORANGE if row["part"] == "torch" else BLUE
        ax.barh(i, row["tokens_per_s"] / 1e3, color=colour, alpha=0.5 if row["devices"] == 1 else 1.0)
        note = f"{row['tokens_per_s'] / 1e3:,.0f}k"
        if row["devices"] > 1 and row["efficiency"] is not None:
            note += f", {row['efficiency']:.0%}"
        if row.get("exposed") is not None and row["devices"] > 1:
            note += f"; waits {row['exposed']:.0%}"
        ax.annotate(note, (row["tokens_per_s"] / 1e3, i), (4, 0), textcoords="offset points", va="center", fontsize=8)
    ax.set_yticks(places, [_name(row) for row in ordered])
    ax.set_xlim(0, 1.45 * max(row["tokens_per_s"] for row in ordered) / 1e3)
    ax.set(title=rows[0]["model"], xlabel="thousand tokens/s")
    for label, row in zip(ax.get_yticklabels(), ordered, strict=True):
        label.set_color(VERMILION if row["part"] == "torch" else "black")
    grid(ax, "x")
