"""Tables of circuits and of similar heads for the terminal (rich): what stands out; the rest is in the saved files."""

import numpy as np
import pandas as pd
from rich.markup import escape
from rich.table import Table

from andrea_jax.plots import circuit_findings as findings
from andrea_jax.plots.similarity_figures import distance
from andrea_jax.plots.tables import new_table
from andrea_jax.plots.words import head_name

ROWS = 12


def copying_table(copying: pd.DataFrame) -> Table:
    """The heads whose copying scores are farthest from 0."""
    null, threshold = copying["null_sd"].to_numpy()[0], copying["threshold"].to_numpy()[0]
    caption = f"a random head: 0 ± {null:.2f}; bold: |z| above {threshold:.1f}, for all {len(copying)} heads together"
    table = _numbers("Copying: Σλ / Σ|λ| of W_E·W_OV·W_U (1 copies, −1 the opposite)", caption, "head", "copying", "z")
    for row in _first(copying, np.abs(copying["copying"].to_numpy())):
        cells = head_name(row["layer"], row["head"]), f"{row['copying']:+.2f}", f"{row['z']:+.1f}"
        table.add_row(*cells, style="bold" if row["beyond"] else "dim")
    return table


def composition_table(composition: pd.DataFrame) -> Table:
    """The pairs of heads that compose most; their z at step 0 where that is known."""
    if composition.empty:
        return new_table("Composition", "a model of one layer has no earlier and later heads")
    mean, threshold = composition["null_mean"].to_numpy()[0], composition["threshold"].to_numpy()[0]
    caption = f"random weights: {mean:.3f}; bold: z above {threshold:.1f}, for all {len(composition):,} together"
    header = [
        "earlier → later",
        "read by its",
        "composition",
        "z",
        *["z at step 0"] * bool(composition["initial"].notna().any()),
    ]
    table = _numbers("Composition: how much of what one head writes another reads", caption, *header)
    for row in _first(composition, composition["z"].to_numpy()):
        pair = f"{head_name(row['layer_1'], row['head_1'])} → {head_name(row['layer_2'], row['head_2'])}"
        cells = [pair, findings.READS[row["kind"]], f"{row['composition']:.3f}", f"{row['z']:+.1f}"]
        cells += [f"{row['initial_z']:+.1f}"] if pd.notna(row["initial_z"]) else []
        table.add_row(*cells, style="bold" if row["beyond"] else "dim")
    return table


def attribution_table(contributions: pd.DataFrame, token: str, against: str | None, logit: float) -> Table:
    """The largest contributions to a logit, and what the others add."""
    what = f"“{token}”" if against is None else f"“{token}” less “{against}”"
    table = _numbers(f"Who wrote the logit of {escape(what)}", None, "component", "contribution (nats)")
    for row in findings.largest(contributions, ROWS).to_dict("records"):
        table.add_row(row["component"], f"{row['contribution']:+.3f}")
    table.add_section()
    table.add_row("logit", f"{logit:+.3f}", style="bold")
    return table


def lens_table(lens: pd.DataFrame, token: str) -> Table:
    """What the model would say before each layer, and at the end."""
    header = ("before layer", "log-prob. (nats)", "rank", "likeliest", "log-prob. (nats)", "entropy (nats)")
    table = _numbers(f"Logit lens of {escape(f'“{token}”')}", None, *header)
    for row in lens.to_dict("records"):
        name = "end" if row["layer"] == lens["layer"].max() else f"{row['layer']}"
        numbers = f"{row['log_prob']:.2f}", f"{row['rank']}", escape(f"“{row['top_piece']}”")
        table.add_row(name, *numbers, f"{row['top_log_prob']:.2f}", f"{row['entropy']:.2f}")
    return table


def why_table(pairs: pd.DataFrame, head: str, query: str, key: str, attention: float) -> Table:
    """The pairs of components that do most for, or against, one key; sums over all pairs below."""
    title = f"Why head {head} attends from {query} to {key}: {attention:.2f}"
    caption = "excess: the score less its mean over all keys that the query sees"
    table = _numbers(escape(title), caption, "at the query", "at the key", "score", "excess")
    for row in _first(pairs, np.abs(pairs["excess"].to_numpy())):
        table.add_row(row["query_component"], row["key_component"], f"{row['score']:+.2f}", f"{row['excess']:+.2f}")
    table.add_section()
    table.add_row("all pairs", "", f"{pairs['score'].sum():+.2f}", f"{pairs['excess'].sum():+.2f}", style="bold")
    return table


def similarity_table(heads: pd.DataFrame) -> Table:
    """One row a head: its nearest pattern, its most similar output, what its layer's other heads say of its output."""
    caption = "distance: 0 the same, 1 no key shared; chosen on one half of the sequences, reported on the other"
    header = ("head", "attends like", "distance", "to even", "writes like", "CKA", "R² from layer", "spread", "group")
    table = _numbers("Similar heads", caption, *header)
    for row in heads.to_dict("records"):
        like, same = (head_name(row[f"{name}_layer"], row[f"{name}_head"]) for name in ("like", "same"))
        r2, group = ("–" if pd.isna(row[name]) else row[name] for name in ("r2", "group"))
        cells = [head_name(row["layer"], row["head"]), like, distance(row), f"{row['even']:.2f}", same]
        cells += [f"{row['cka']:.2f}", r2 if isinstance(r2, str) else f"{r2:.2f}", f"{row['spread']:.3g}", f"{group}"]
        table.add_row(*cells, style="" if group == "–" else "bold")
    return table


def _numbers(title: str, caption: str | None, first: str, *others: str) -> Table:
    table = new_table(title, caption)
    table.min_width = 72  # room for the title and the caption
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _first(table: pd.DataFrame, size: np.ndarray) -> list[dict]:
    """The ROWS rows with the largest `size`."""
    return table.iloc[np.argsort(-size, kind="stable")[:ROWS]].to_dict("records")
