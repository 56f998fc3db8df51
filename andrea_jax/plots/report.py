"""One self-contained HTML page that tells someone who was not there what a run showed.

`write_report` draws every figure the data allows, writes them (PNG, SVG) and the tables (CSV, parquet) to the run's
`figures/`, and the page to `report.html`. What was not computed is named in its place, never left out in silence.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pandas as pd

from andrea_jax.config import Experiment
from andrea_jax.plots import figures, findings, head_figures, page, rows
from andrea_jax.plots.development_figures import FEWEST, Scored, development
from andrea_jax.plots.page import Cell
from andrea_jax.plots.pattern import Pattern
from andrea_jax.plots.style import Figure
from andrea_jax.plots.words import GLOSSARY, PROBES, count, head_name, interval
from andrea_jax.runs import Json, Run, write_atomically

READING = {
    "loss": "Faint: the training loss as logged; strong: its running mean; dots: the mean loss on held-out documents. "
    "Training windows may repeat themselves (see Data), held-out windows do not: the two need not meet.",
    "profile": "Each number is the share of a head's attention that falls on the probe's targets; its colour says how "
    "far that is above (blue) or below (orange) a head that attends evenly. Grey cells cannot be told from that null. "
    "A specialized head is a dark cell in a pale row. The title speaks of the half of the sequences that did not "
    "choose the head, so its figures differ a little from the cells.",
    "patterns": "Rows are queries, columns keys; a row shows where one token looks, and every row sums to 1. Orange "
    "outlines mark the targets of the head's probe; grey is the future. The score above each panel was measured on the "
    "corpus, not on this text.",
    "offsets": "How much of its attention a head gives to the token a fixed distance back. A peak far above the dashed "
    "line: the head works by position. An induction head shows none, since its targets lie at every distance.",
    "development": "Every dot is a checkpoint. Blue: the head that does it best at the last checkpoint, with its 95% "
    "interval; grey: the other heads; dashed: a head that attends evenly. The green band spans the two checkpoints "
    "between which the head passes half way to its last score. The in-context score is how much better the model "
    "predicts late positions than early ones: it falls when context begins to help.",
    "brackets": "Before a closing bracket, the best head's attention on the opener that must be matched, beside rules "
    "for it. The hard pairs defeat the nearest opener, the hardest also the nearest of its type: only there can a head "
    "show that it keeps count (as the rule does that spreads over the unclosed openers). A head has two bars, since it "
    "may park attention on BOS: its mass on the match, and the match's share of its mass on openers. Error bars: 95% "
    "bootstrap intervals.",
    "gradients": "The norm of the loss's gradient with respect to each head's weights, at every evaluation, on one "
    "batch (so it is noisy). Lines of one layer share a colour.",
    "checks": "The trained weights were converted to the other projection and everything was computed again (gradients "
    "with GELU in place of ReLU, whose gates flip on a last bit and say nothing about projections). A dot "
    "left of its tolerance: fused and per-head are the same function up to rounding.",
}


@dataclass(frozen=True)
class Asked:
    """A question about the heads that was asked before the report, as a section of its own.

    name: of the figure's files; figure None: it was not asked, and `command` says what would.
    """

    section: str
    name: str
    command: str
    reading: str
    figure: Figure | None


class Tables(Protocol):
    """The tables of `heads.Profile`."""

    @property
    def table(self) -> pd.DataFrame: ...
    @property
    def best(self) -> pd.DataFrame: ...
    @property
    def periods(self) -> pd.DataFrame: ...
    @property
    def offsets(self) -> pd.DataFrame: ...
    @property
    def brackets(self) -> pd.DataFrame: ...


def write_report(
    run: Run,
    profile: Tables,
    *,
    step: int,
    patterns: Sequence[Pattern] = (),
    checks: pd.DataFrame | None = None,
    profiles: Mapping[int, Scored] | None = None,
    asked: Sequence[Asked] = (),
) -> Path:
    """Writes figures, tables and `report.html` of a run; returns the page's path.

    step: of the checkpoint that was scored. patterns: heads to show on a text. checks: see `figures.projection_check`.
    profiles: step -> profile of every checkpoint that has one; the development is drawn from three or more.
    asked: other questions, a section each.
    Raises `UserError` where a pattern and its tokens disagree.
    """
    metrics, e = run.metrics(), run.experiment
    drawn = _draw(e, metrics, profile, patterns, checks)
    if profiles and len(profiles) >= FEWEST and findings.logged(metrics, "tokens"):
        drawn["development"] = development(profiles, metrics)
    pictures = {
        name: _save(run, name, drawn[name], READING[name]) if name in drawn else _missing(name) for name in READING
    }
    if patterns:
        pictures["patterns"] += page.bullets(findings.examples(patterns))
    others = {question.section: [_answer(run, question)] for question in asked}
    for name in ("table", "best", "periods", "offsets", "brackets"):
        _save_table(run, "profile" if name == "table" else name, getattr(profile, name))
    if checks is not None:
        _save_table(run, "checks", checks)
    projection = e.model.projection.replace("_", "-")
    shape = f"{e.model.shape}, d_model {e.model.d_model}, {projection} projection"
    summary = findings.summary(e, metrics, profile.best, profile.brackets, checks)
    sections = {"What this run showed": [page.bullets(summary)], **_sections(run, profile, pictures, others)}
    top = [f"<h1>{page.escape(run.name)}</h1>", page.text(f"{shape}. Heads scored at step {step}.", "soft")]
    body = [page.section(name, *parts) for name, parts in sections.items()]
    return write_atomically(run.report, page.page(f"{run.name}: report", [*top, page.contents(sections), *body]))


def _sections(
    run: Run, profile: Tables, pictures: Mapping[str, str], others: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """The page below its summary: name -> parts."""
    return {
        "Heads": [
            _best(profile.best),
            page.folded("All heads on all probes", _all(profile.table)),
            pictures["profile"],
        ],
        "Patterns": [pictures["patterns"], pictures["offsets"]],
        "Induction by period": [_periods(profile.periods, profile.best)],
        "Matching brackets": [pictures["brackets"]],
        **others,
        "Development": [pictures["development"]],
        "Training": [pictures["loss"], pictures["gradients"]],
        "Fused against per-head": [pictures["checks"]],
        "Data": [page.text(findings.repetition(run.experiment) + ".")],
        "Configuration": [page.code((run.path / "config.toml").read_text(encoding="utf-8"))],
        "Provenance": [_provenance(run.provenance)],
        "Words": [page.words(GLOSSARY.items())],
    }


def _draw(
    e: Experiment, metrics: Sequence[dict], profile: Tables, patterns: Sequence[Pattern], checks: pd.DataFrame | None
) -> dict[str, Figure]:
    """The figures that the data allows, by name."""
    drawn = {
        "profile": head_figures.head_profile(profile.table, profile.best),
        "offsets": head_figures.offset_profiles(profile.offsets),
    }
    if findings.logged(metrics, "loss"):
        drawn["loss"] = figures.loss_curve(metrics, e.model.vocab_size)
    if findings.logged(metrics, "head_grad_norm"):
        drawn["gradients"] = figures.head_gradients(metrics)
    if patterns:
        drawn["patterns"] = head_figures.patterns(patterns)
    if not profile.brackets.empty:
        drawn["brackets"] = head_figures.bracket_rules(profile.brackets)
    if checks is not None:
        drawn["checks"] = figures.projection_check(checks)
    return drawn


def _answer(run: Run, question: Asked) -> str:
    if question.figure is not None:
        return _save(run, question.name, question.figure, question.reading)
    return page.text(f"Not asked of this checkpoint: {question.name} ({question.command}).", "soft")


def _save(run: Run, name: str, drawn: Figure, reading: str) -> str:
    """Writes the figure in both formats; returns it as a part of the page."""
    svg = drawn.encode("svg")
    write_atomically(run.figures / f"{name}.svg", svg)
    write_atomically(run.figures / f"{name}.png", drawn.encode("png"))
    return page.figure(svg, drawn.get_figwidth(), drawn.get_suptitle(), reading)


def _missing(name: str) -> str:
    why = ""
    if name == "development":
        ways = "train.profile_every while it trains, or train.log_spaced_checkpoints=true, then report --development"
        why = f" (it takes {FEWEST} scored checkpoints: {ways})"
    return page.text(f"Not computed for this run: {name}{why}.", "soft")


def _save_table(run: Run, name: str, frame: pd.DataFrame) -> None:
    write_atomically(run.figures / f"{name}.parquet", frame.to_parquet(index=False))
    write_atomically(run.figures / f"{name}.csv", frame.to_csv(index=False))


def _best(best: pd.DataFrame) -> str:
    """The best head of every probe; bold rows lie above uniform attention."""
    header = [Cell(name, "" if i < 2 else "number") for i, name in enumerate(rows.BEST_HEADER)]
    body = [
        (kind, [Cell(cell, "" if i < 2 else "number") for i, cell in enumerate(cells)])
        for kind, cells in rows.best_rows(best)
    ]
    return page.table(header, body) + page.text(rows.BEST_CAPTION, "soft")


def _all(table: pd.DataFrame) -> str:
    """Every head on every probe."""
    header = [Cell("head", ""), *(Cell(PROBES[probe].label) for probe in rows.probes(table))]
    body = [
        ("", [Cell(name, ""), *(Cell(cell.text, f"number {cell.kind}") for cell in cells)])
        for name, cells in rows.all_rows(table)
    ]
    return page.table(header, body) + page.text(rows.ALL_CAPTION, "soft")


def _periods(periods: pd.DataFrame, best: pd.DataFrame) -> str:
    """The best induction head at each block length that the probe repeats."""
    chosen = [row for row in best.to_dict("records") if row["probe"] == "induction" and row["n"] > 0]
    if not chosen:
        return _missing("induction")
    layer, head = chosen[0]["layer"], chosen[0]["head"]
    mine = (periods["probe"] == "induction") & (periods["layer"] == layer) & (periods["head"] == head)
    names = ("period (tokens)", "score", "95% interval", "uniform", "at the offsets of wrong periods", "n")
    body = []
    for r in periods.loc[mine].to_dict("records"):
        numbers = [f"{r['score']:.2f}", interval(r["low"], r["high"]), f"{r['baseline']:.2f}"]
        numbers += ["" if pd.isna(r["control"]) else f"{r['control']:.2f}", count(r["n"])]
        body.append(("", [Cell(str(r["period"])), *(Cell(number) for number in numbers)]))
    words = f"Head {head_name(layer, head)}, all sequences. A head that follows content scores alike at every period."
    return page.table([Cell(name) for name in names], body) + page.text(words, "soft")


def _provenance(written: Mapping[str, Json]) -> str:
    body = [("", [Cell(key, ""), Cell(value, "wide")]) for key, value in _flat(written)]
    return page.table([Cell("what", ""), Cell("value", "")], body)


def _flat(value: Json | Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested provenance as dotted keys, sessions counted from 0; None is "unknown"."""
    if isinstance(value, list) and value and all(isinstance(inner, Mapping) for inner in value):
        value = {str(i): inner for i, inner in enumerate(value)}
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, "unknown" if value is None else str(value)
