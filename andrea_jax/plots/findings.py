"""What the numbers say, in sentences: the titles of the figures and the opening of the report.

Every sentence is computed from the data it stands over and is as ready to say "nothing was found" as "found".
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from andrea_jax.config import Experiment
from andrea_jax.plots.pattern import Pattern
from andrea_jax.plots.rows import kind
from andrea_jax.plots.words import PROBES, count, head_name, interval

COUNTING = "uniform unclosed"  # the one bracket rule that needs a count of open brackets
ENOUGH_PAIRS = 500  # hardest bracket pairs below which a score is called uncertain


def logged(metrics: Sequence[dict], key: str) -> list[dict]:
    """The rows that recorded `key`: evaluations and per-head norms come more rarely than losses."""
    return [row for row in metrics if key in row and row[key] is not None]


def tokens_a_step(metrics: Sequence[dict]) -> float:
    """Tokens of one training step, from the last row that counts them (evaluations do not)."""
    row = logged(metrics, "tokens")[-1]
    return row["tokens"] / row["step"]


def loss(metrics: Sequence[dict], vocab_size: int) -> str:
    """Where the held-out loss ended, where its minimum lay if not there, and what chance is."""
    held = [(row["step"] * tokens_a_step(metrics), row["eval_loss"]) for row in logged(metrics, "eval_loss")]
    chance = f"chance: {math.log(vocab_size):.2f}"
    if not held:
        return (
            f"Training loss ends at {logged(metrics, 'loss')[-1]['loss']:.2f} nats/token ({chance}); no evaluation yet"
        )
    tokens, last = held[-1]
    text = f"Held-out loss ends at {last:.2f} nats/token after {count(tokens)} tokens ({chance})"
    best_tokens, best = min(held, key=lambda pair: pair[1])
    return text + (f"; its minimum, {best:.2f}, lay at {count(best_tokens)}" if last - best >= 0.01 else "")


def found(best: pd.DataFrame) -> pd.DataFrame:
    """The rows of the best-head table whose interval lies above the baseline, largest excess first."""
    above = best[_kinds(best) == "above"]
    return above.assign(excess=above["score"] - above["baseline"]).sort_values(
        by="excess", ascending=False, kind="stable"
    )


def absent(best: pd.DataFrame) -> list[str]:
    """Probes on which even the best head's interval reaches down to its baseline."""
    return list(best.loc[np.isin(_kinds(best), ["null", "below"]), "probe"])


def _kinds(best: pd.DataFrame) -> np.ndarray:
    """`rows.kind` of every row, "undefined" where nothing was counted."""
    return np.array([kind(row) if row["n"] else "undefined" for row in best.to_dict("records")])


def head(row: Mapping, with_interval: bool = False) -> str:
    """One row of the best-head table: "Head 1.2 puts 0.81 of its attention on induction targets (uniform: 0.03)"."""
    name, words = head_name(row["layer"], row["head"]), PROBES[row["probe"]]
    share = f"{row['score']:.2f}" + (f" {interval(row['low'], row['high'])}" if with_interval else "")
    where = f"the token {row['offset']} back" if row["probe"] == "offset" else words.where
    return f"Head {name} puts {share} of its attention on {where} (uniform: {row['baseline']:.2f})"


def positional(row: Mapping) -> bool:
    """Whether an induction score is no more than a fixed offset: its control reaches half of it."""
    return bool(row["probe"].startswith("induction") and row["control"] >= row["score"] / 2)


def profile(best: pd.DataFrame) -> str:
    """The headline of the heat map: induction if a head does it by content, else the clearest head there is."""
    rows = found(best).to_dict("records")
    content = [row for row in rows if row["probe"] == "induction" and not positional(row)]
    clear = content or [row for row in rows if not positional(row)]
    return head(clear[0]) if clear else "No head lies above its null on any probe"


def offsets(curves: pd.DataFrame) -> str:
    """The (head, offset) with the largest excess over the causal-uniform mass at that offset."""
    row = max(curves.to_dict("records"), key=lambda row: row["mass"] - row["baseline"])
    name = head_name(row["layer"], row["head"])
    back = f"{row['offset']:.0f} token{'s' if row['offset'] != 1 else ''} back"
    return f"Head {name} puts {row['mass']:.2f} of its attention {back} (uniform: {row['baseline']:.2f})"


def patterns(shown: Sequence[Pattern]) -> str:
    """The head whose pattern is nearest to its probe's targets on the text that is shown."""
    on_target = [(p.pattern * p.targets).sum() / max(p.targets.any(axis=1).sum(), 1) for p in shown]
    i = int(np.argmax(on_target))
    name, where = head_name(shown[i].layer, shown[i].head), PROBES[shown[i].probe].where
    return f"On this text head {name} puts {on_target[i]:.2f} of its attention on {where} (outlined)"


def examples(shown: Sequence[Pattern]) -> list[str]:
    """Where on its text each head is nearest to its probe's targets (the last such token), and what it looks at."""
    said = []
    for p in shown:
        on_target = (p.pattern * p.targets).sum(axis=1)
        if not on_target.any():
            continue
        query = int(np.flatnonzero(on_target >= 0.99 * on_target.max())[-1])
        key = int((p.pattern[query] * p.targets[query]).argmax())
        read = "".join(p.tokens[: query + 1])
        where = f"“{p.tokens[key]}”, {query - key} back" if key < query else "that token itself"
        said.append(
            f"Head {head_name(p.layer, p.head)}, {PROBES[p.probe].label}: at the end of “{read}” it puts "
            f"{p.pattern[query, key]:.2f} of its attention on {where}."
        )
    return said


def brackets(scores: pd.DataFrame) -> str:
    """Whether the best head beats, on the hardest pairs, every rule that keeps no count of open brackets.

    The head is judged by the share of its mass on openers (a rule puts all its mass there, a head parks some on BOS).
    Spreading over the unclosed openers needs a count, so it is quoted as a mark and not as a rule to beat.
    """
    chosen = (scores["probe"] == "bracket") & (scores["pairs"] == "hardest") & scores["score"].notna()
    hardest = scores.loc[chosen]
    heads = hardest[hardest["is_head"]].to_dict("records")
    rules = hardest[~hardest["is_head"]].to_dict("records")
    if not heads or not rules:
        return "No bracket pair was hard enough to tell a head from simple rules"
    mass, judged = heads[0], heads[-1]
    rule = max((r for r in rules if r["name"] != COUNTING), key=lambda r: r["score"])
    counting = max((r["score"] for r in rules if r["name"] == COUNTING), default=math.nan)
    few = f"; only {mass['n']:.0f} such pairs" if mass["n"] < ENOUGH_PAIRS else ""
    verdict = "A head finds" if judged["low"] > rule["score"] else "No head finds"
    share = f"{judged['score']:.2f} {interval(judged['low'], judged['high'])}"
    return (
        f"{verdict} matching brackets beyond simple rules: on the hardest pairs {mass['name']} has {share} of its "
        f"attention on openers on the match (of all its attention {mass['score']:.2f}); the best rule "
        f'("{rule["name"]}") has {rule["score"]:.2f}, one that counts ("{COUNTING}") {counting:.2f}{few}'
    )


def gradients(metrics: Sequence[dict]) -> str:
    """The heads with the largest and the smallest mean gradient norm over the last quarter of training."""
    norms = head_norms(metrics)
    if norms.shape[1] * norms.shape[2] == 1:
        return f"The only head's gradient norm ends at {norms[-1, 0, 0]:.2g}"
    late = norms[-max(len(norms) // 4, 1) :].mean(axis=0)
    top, low = (np.unravel_index(pick(late), late.shape) for pick in (np.argmax, np.argmin))
    ratio = f"{late[top] / late[low]:.1f} times" if late[low] > 0 else "a gradient, against none for"
    top_name, low_name = head_name(*top), head_name(*low)
    return f"In the last quarter of training head {top_name} receives {ratio} the gradient of head {low_name}"


def head_norms(metrics: Sequence[dict]) -> np.ndarray:
    """[logged step, n_layer, n_head] gradient norms of the steps that logged them."""
    return np.array([row["head_grad_norm"] for row in logged(metrics, "head_grad_norm")], np.float64)


def checks(rows: pd.DataFrame) -> str:
    """Whether fused and per-head agree within tolerance after converting the weights."""
    bad = rows[~(rows["max_difference"] <= rows["tolerance"])]  # a nan is bad
    if bad.empty:
        return f"Fused and per-head agree within tolerance in {_and(list(rows['quantity']))}"
    return f"Fused and per-head DISAGREE on {_and(list(bad['quantity']))}"


def drift(curves: Mapping[str, Sequence[float]]) -> str:
    """How far apart the two projections are after the last step, for every optimizer."""
    n = len(next(iter(curves.values())))
    ends = _and([f"{curve[-1]:.0e} under {name}" for name, curve in curves.items()])
    return f"After {n} steps from the same numbers, fused and per-head differ by {ends}"


def timing(rows: pd.DataFrame) -> str:
    """The slowest form against the fastest, forward and backward where timed."""
    passes = rows["passes"].iloc[-1]
    times = {row["form"]: row["min_ms"] for row in rows.to_dict("records") if row["passes"] == passes}
    slow, fast = max(times, key=times.__getitem__), min(times, key=times.__getitem__)
    ratio = times[slow] / times[fast]
    if ratio < 1.02:
        return f"No form is slower than {fast} by 2% ({passes})"
    return f"{slow} takes {ratio:.2f} times as long as {fast} ({passes})"


def summary(
    e: Experiment,
    metrics: Sequence[dict],
    best: pd.DataFrame,
    scores: pd.DataFrame,
    compared: pd.DataFrame | None,
) -> list[str]:
    """The opening of the report: what was learned, what was found, what was not, and what favoured it."""
    said = [loss(metrics, e.model.vocab_size)] if logged(metrics, "loss") else []
    above = found(best).to_dict("records")
    told = [row for row in above if row["probe"] in ("previous_token", "induction")]
    said += [head(row, with_interval=True) + _control(row) for row in told]
    rest = [row for row in above if row["probe"] not in ("previous_token", "induction", "induction_all", "offset")]
    also = [f"{PROBES[r['probe']].label} (head {head_name(r['layer'], r['head'])}: {r['score']:.2f} against "
            f"{r['baseline']:.2f})" for r in rest]  # fmt: skip
    said += [f"Also above uniform attention: {_and(also)}"] if also else []
    nothing = [PROBES[probe].label for probe in absent(best)]
    said += [f"No head rises above uniform attention on: {_and(nothing)}"] if nothing else []
    undefined = best[best["n"] == 0]
    why = [f"{PROBES[p].label} ({reason})" for p, reason in zip(undefined["probe"], undefined["reason"], strict=True)]
    said += [f"Nothing can be said on: {_and(why)}"] if why else []
    said += [] if scores.empty else [brackets(scores)]
    said += [] if compared is None else [checks(compared)]
    return [f"{sentence}." for sentence in [*said, repetition(e)]]


def repetition(e: Experiment) -> str:
    """What share of the training windows repeats, and how: the data's own push towards induction."""
    if not e.data.repeat_share:
        return "No training window was made to repeat itself: repetition is only what the text has of its own"
    what = {
        "text": "real text",
        "random": "uniform random tokens",
        "mixed": "in turn real text, random tokens as frequent as in the text, and uniform random tokens",
    }[e.data.repeat_kind]
    low, high = e.data.repeat_periods
    return (
        f"{e.data.repeat_share:.0%} of the training windows repeat their first part ({what}, periods of {low} to "
        f"{high} tokens), which favours induction; the probe's own periods, "
        f"{_and([str(period) for period in e.probe.periods])}, were never drawn"
    )


def _control(row: Mapping) -> str:
    words = PROBES[row["probe"]].control
    if words is None or pd.isna(row["control"]):
        return ""
    verdict = ""
    if row["probe"].startswith("induction"):
        verdict = ": no more than a fixed offset" if positional(row) else ": it follows the content, not a distance"
    return f", and {row['control']:.2f} {words}{verdict}"


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
