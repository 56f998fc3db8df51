"""What scoring heads costs: table, verdicts and figure of `andrea_jax.benchmarks.scoring`."""

import textwrap

from rich.table import Table

from andrea_jax.plots.benchmark_findings import not_run
from andrea_jax.plots.benchmark_rows import Rows, by, column, span, timed, where
from andrea_jax.plots.style import GREY, KINDS, Figure, figure, grid, log_axis, styled
from andrea_jax.plots.tables import new_table

FORWARD, SCORES, BOTH = "forward pass", "all scores", "forward pass and all scores"
LENS, ABLATION = "TransformerLens, three scores", "ablation of every head"
MOST = 1.25  # times a forward pass, that scoring may take
FASTER, LESS = 5.0, 0.2  # than TransformerLens: times as fast, share of its memory
MARKERS = {FORWARD: "o", SCORES: "s", BOTH: "D", LENS: "X"}


def scoring_tables(rows: Rows) -> list[Table]:
    """Time, ratio to a forward pass, and memory, of every contender at every length."""
    made = new_table("Scoring every head, beside a forward pass")
    for name in ("tokens", "contender"):
        made.add_column(name, no_wrap=True)
    for name in ("ms", "÷ forward", "MiB", "heads/s"):
        made.add_column(name, justify="right")
    for row in timed(rows):
        formats = {"ratio": ".2f", "temp_mib": ".0f", "heads_per_s": ".1f"}
        cells = [format(row[key], how) if row.get(key) is not None else "–" for key, how in formats.items()]
        made.add_row(f"{row['batch']} × {row['seq']:,}", row["contender"], f"{row['us'] / 1e3:.1f}", *cells)
    return [made]


def verdicts(rows: Rows) -> list[str]:
    """The cost over a forward pass, memory by length, heads/s, and the comparison with TransformerLens."""
    found = timed(rows)
    said = [_cost(where(found, contender=name), name) for name in (SCORES, BOTH) if where(found, contender=name)]
    said += [_growth(where(found, contender=name), name) for name in (SCORES, LENS) if where(found, contender=name)]
    for row in where(found, contender=ABLATION):
        size = f"{row['n_layer']} × {row['n_head']} heads, d_model {row['d_model']}"
        tokens = f"{row['batch']} × {row['seq']:,} tokens"
        said.append(f"{ABLATION} in one sweep ({size}; {tokens}): {row['heads_per_s']:.1f} heads/s")
    pairs = _pairs(found)
    if pairs:
        faster, less = ([float(peer[key] / max(own[key], 1e-9)) for own, peer in pairs] for key in ("us", "temp_mib"))
        verdict = "true" if min(faster) >= FASTER and min(less) >= 1 / LESS else "NOT true at every length"
        off = max(peer["off_by"] for _, peer in pairs)
        said.append(
            f"{FASTER:g} times as fast as TransformerLens in a fifth of the memory: {verdict}: {span(faster, '.1f')} "
            f"times as fast, {span(less, '.1f')} times less memory; scores differ by {off:.0e} at most"
        )
    return [*said, *not_run(rows, "contender")]


def _cost(rows: Rows, name: str) -> str:
    ratios = [row["ratio"] for row in rows if row["ratio"]]
    if not ratios:
        return f"{name}: no forward pass to compare with"
    verdict = "true" if max(ratios) <= MOST else "NOT true at every length"
    return f"{name} take at most {MOST:g} times a plain forward pass: {verdict}: {span(ratios, '.2f')} times"


def _growth(rows: Rows, name: str) -> str:
    each = ", ".join(f"{row['seq']:,}: {row['temp_mib']:.0f}" for row in rows)
    return f"{name}, MiB of memory by tokens: {each}"


def _pairs(rows: Rows) -> list[tuple[dict, dict]]:
    """(all scores, TransformerLens) of each length that has both."""
    of = {name: {row["seq"]: row for row in where(rows, contender=name)} for name in (SCORES, LENS)}
    return [(own, of[LENS][seq]) for seq, own in of[SCORES].items() if seq in of[LENS]]


def title(rows: Rows) -> str:
    """The finding."""
    found = {
        name: [row["ratio"] for row in where(timed(rows), contender=name) if row["ratio"]] for name in (SCORES, BOTH)
    }
    alone, along = (f"{span(ratios, '.2f')} times" if ratios else "" for ratios in found.values())
    cost = (
        f"All head scores take {alone} a plain forward pass, along with its logits {along}" if alone and along else ""
    )
    faster = [peer["us"] / own["us"] for own, peer in _pairs(timed(rows))]
    beside = f"TransformerLens {span(faster, '.1f')} times as long as all scores" if faster else ""
    return ";\n".join(filter(None, [cost, beside])) or "What scoring heads costs"


@styled
def scoring(rows: Rows, of: str) -> Figure:
    """Time and memory against the number of tokens, both scales logarithmic."""
    measured = [row for row in timed(rows) if row["contender"] != ABLATION]
    made = figure(10.6, 3.9, title(rows))
    time, memory = made.subplots(1, 2)
    for i, ((name,), curve) in enumerate(by(measured, "contender").items()):
        look = {"color": KINDS[i % len(KINDS)], "marker": MARKERS[name], "markersize": 5, "label": name}
        for ax, values in ((time, [us / 1e3 for us in column(curve, "us")]), (memory, column(curve, "temp_mib"))):
            ax.plot(column(curve, "seq"), values, **look)
    for ax, label in ((time, "time, ms (median)"), (memory, "memory of the computation, MiB")):
        seqs = sorted(set(column(measured, "seq")))
        ax.set(xscale="log", xlabel="tokens of a sequence", ylabel=label)
        ax.set_xticks(seqs, [f"{seq:,}" for seq in seqs])
        ax.minorticks_off()
        log_axis(ax, "y")
        grid(ax)
    made.legend(handles=time.get_lines(), loc="outside right center")
    made.supxlabel(textwrap.fill(of, 160), x=0.01, ha="left", fontsize=8.5, color=GREY)
    return made
