"""What probes and measures are called in figures, tables and reports: one wording everywhere."""

from dataclasses import dataclass
from typing import SupportsInt


@dataclass(frozen=True)
class ProbeWords:
    """`label` names it, `short` heads a column of numbers; `seeks` completes "a head that …"; `where` completes "0.81
    of its attention on …"; `control`, where it has one, completes "the same head has 0.04 …"."""

    label: str
    short: str
    seeks: str
    where: str
    control: str | None = None


_OPENER, _OFFSET = "the matching opener", "at the offsets of wrong periods"
PROBES = {
    "previous_token": ProbeWords(
        "previous token", "prev.\ntoken", "looks one token back", "the previous token", "on random tokens"
    ),
    "current_token": ProbeWords("current token", "curr.\ntoken", "looks at the token itself", "the current token"),
    "first_token": ProbeWords("first token", "first\ntoken", "looks at BOS, position 0", "the first token"),
    "duplicate_token": ProbeWords(
        "duplicate token", "dupl.\ntoken", "looks at earlier copies", "earlier copies of the token"
    ),
    "delimiter": ProbeWords(
        "last delimiter", "last\npunc", "looks at last punctuation", "the last punctuation before the token"
    ),
    "newline": ProbeWords(
        "last newline", "new\nline", "looks where its line began", "the last newline before the token"
    ),
    "induction": ProbeWords("induction", "induc\ntion", "looks just after its copy", "induction targets", _OFFSET),
    "induction_all": ProbeWords(
        "induction (all)", "ind.\nall", "the same, after any copy", "the followers of all earlier copies", _OFFSET
    ),
    "bracket": ProbeWords("bracket", "brac\nket", "before closer, at opener", f"{_OPENER} (before the closer)"),
    "bracket_at_closer": ProbeWords(
        "bracket at closer", "at\n)]}", "at closer, at its opener", f"{_OPENER} (at the closer)"
    ),
    "open_bracket": ProbeWords(
        "open bracket",
        "open\n([{",
        "in brackets, at its opener",
        "the innermost unclosed opener (anywhere in brackets)",
    ),
    "offset": ProbeWords(
        "best offset", "best\noffset", "looks back one fixed distance", "the token a fixed distance back"
    ),
    "entropy": ProbeWords("entropy (nats)", "ent.\nnats", "spreads attention least", "few tokens"),
}

GLOSSARY = {
    "head 1.2": "head 2 of layer 1; both count from 0.",
    "pattern": "the attention weights after softmax, [query, key]; every row sums to 1 and sees no later token.",
    "score": "the share of a head's attention that falls on a probe's targets, averaged over the queries that have a "
    "target. Rows without a target do not count.",
    "baseline": "the same score for a head that spreads its attention evenly over all tokens it may see "
    "(causal-uniform), on the same queries.",
    "interval": "95% bootstrap interval over sequences, in square brackets.",
    "within the null": "the interval contains the baseline: nothing was found.",
    "control": "the same head's score where a genuine head must score low. Induction: the largest mass at "
    "the offset of a wrong period (a head that merely looks a fixed distance back scores high there). Previous token: "
    "the score on random tokens (where a genuine head scores high as well).",
    "best head": "chosen on one half of the sequences and reported on the other, so that being the best of many does "
    "not flatter it.",
    "n": "queries that were counted.",
    "nats/token": "the unit of loss: −ln of the probability given to the next token, averaged. Chance is ln V, "
    "V the vocabulary size.",
    "hard, hardest": "bracket pairs whose match is not the nearest opener; not even the nearest opener of its type.",
    "fused, per-head": "two ways to compute queries, keys and values: one matrix for all heads, or one matrix a head.",
}


def head_name(layer: SupportsInt, head: SupportsInt) -> str:
    """ "1.2": head 2 of layer 1."""
    return f"{int(layer)}.{int(head)}"


def interval(low: float, high: float) -> str:
    return f"[{low:.2f}, {high:.2f}]"


def count(n: float) -> str:
    """3300000 -> "3.3M", for tokens and queries."""
    for size, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if n >= size:
            return f"{n / size:.3g}{suffix}"
    return f"{n:.0f}"
