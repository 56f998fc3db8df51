"""Findings about the claims of cost (C3, C4, C11 to C14) from what benchmarks wrote.

A claim holds where every size of everything that is compared speaks for it by more than noise, holds for those of which
every size does, and else does not hold. The sentences are those of the benchmark itself (`plots.benchmark_findings`).
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from andrea_jax import claims
from andrea_jax.errors import UserError
from andrea_jax.plots import benchmark_findings as said
from andrea_jax.plots.benchmark_rows import Rows, by, column, listed, timed, where
from andrea_jax.plots.train_figures import FIVE, STEP

ORIGIN = ("date", "device", "command", "commit", "dirty", "versions", "platform", "cpu_count")
OWN = ("mosaic", "triton")  # the project's own kernels
SIDE_BY_SIDE = "holds if W_Q, W_K and W_V are multiplied apart; side by side they are one step, and three are left"
LOWER = "holds if a lower rate is meant; 72 needs no fallback"
WITHOUT_TILES = ("reference", "chunked")  # XLA cuts these as it likes
Read = dict[str, tuple[str, str]]  # claim -> verdict, sentence


def findings(path: Path) -> list[claims.Finding]:
    """Of a benchmark's JSON file, finished or not, with its own date, device and command.

    UserError for a file that is none, or of a benchmark that no claim is about.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        read, rows = READ[found["benchmark"]], found["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: is no result of andrea bench {', '.join(READ)} ({error!r})") from error
    origin = {name: found[name] for name in ORIGIN}
    words = re.sub(r" --out \S+", "", found["command"]).split(" ", 1)[1]  # wherever that was, the file is elsewhere now
    origin["command"] = f"-m andrea_jax.cli {words}"
    numbers = {"file": path.name, "settings": found["settings"]}
    return [claims.Finding(claim, *what, numbers, origin) for claim, what in read(rows).items()]


def attention(rows: Rows) -> Read:
    """C12 from the launches of the project's own kernels; C13 from the rates forward of one length."""
    own = [row for row in where(timed(rows), passes=said.FORWARD) if row["contender"] in OWN]
    counts = {name: column(of, "launches") for (name,), of in by(own, "contender").items()}
    found: Read = {}
    if counts:
        pairs = [row["batch"] * row["n_head"] for row in own]
        shown = "; ".join(f"{name} {min(n)} to {max(n)}" for name, n in counts.items())
        text = f"launches forward, for {min(pairs)} to {max(pairs)} pairs of sequence and head: {shown}"
        found["C12"] = _verdict({name: [min(n) == 1] for name, n in counts.items()}, "the kernel is"), text
    return found | head_dim([row | {"backend": row["contender"]} for row in where(rows, seq=1024, passes=said.FORWARD)])


def layout(rows: Rows) -> Read:
    """C11 from transposing first against reading in place; C12 from launches at every number of heads."""
    arranged = by(where(timed(rows), question="layout", variant=said.TRANSPOSED), "backend", "passes")
    transposing = {", ".join(names): [row["ratio"] < 1 - said.NOISE for row in of] for names, of in arranged.items()}
    counted = [row for row in where(rows, question="launches", variant=said.IN_PLACE) if row["reason"] is None]
    same = {
        name: [len(set(column(it, "launches"))) == 1 for it in by(of, "passes").values()]
        for (name,), of in by(counted, "backend").items()
    }
    found = {"C11": _verdict(transposing, "it is"), "C12": _verdict(same, "the kernel is")}
    sentences = said.layout(rows)
    return {claim: (one, _sentence(sentences, claim)) for claim, one in found.items()}


def projections(rows: Rows) -> Read:
    """C3 from the products in the compiled programs, C4 from times over that of one fused matrix; with XLA's own
    merging of products, where there is any; and C3 without it, where it alone makes the claim false."""
    usual = [row for row in timed(rows) if row["threshold_mb"] in (None, said.XLAS_OWN)]
    as_written = _calls(where(timed(rows), threshold_mb=0), "XLA merges no products and per-head is computed as")
    slow = {form: [row["ratio"] > 1 + said.NOISE for row in of] for form, of in _per_head(usual).items()}
    calls, underuse = (_calls(usual, "per-head is computed as"), _verdict(slow, "per-head is computed as"))
    found = {"C3": as_written if calls == claims.DOES_NOT else calls, "C4": underuse}
    sentences = said.projections(rows)
    return {claim: (one, _sentence(sentences, claim)) for claim, one in found.items()}


def _calls(rows: Rows, condition: str) -> str:
    """Whether per-head forms take a product a head, and more."""
    of_each = {form: where(of, passes=said.FORWARD) for form, of in _per_head(rows).items()}
    return _verdict({form: [row["matmuls"] >= row["n_head"] for row in of] for form, of in of_each.items()}, condition)


def _per_head(rows: Rows) -> dict[str, list[dict]]:
    """The rows of each way to compute it: einsum, loop."""
    forms = {form: of for (form,), of in by(rows, "form").items() if form.startswith("per-head, ")}
    return {form.removeprefix("per-head, "): of for form, of in forms.items()}


def head_dim(rows: Rows) -> Read:
    """C13 from rates over that of head_dim 64, of every kernel and pass; nothing without 64 and 72."""
    rates = {
        names: {row["head_dim"]: row["tflops"] for row in of}
        for names, of in by(timed(rows), "backend", "passes").items()
        if names[0] not in WITHOUT_TILES
    }
    known = [of for of in rates.values() if 64 in of]
    if not known or not where(rows, head_dim=72):
        return {}
    underuses, slower = (
        all(of[width] < (1 - said.NOISE) * of[64] for of in known if width in of) for width in (32, 72)
    )
    refused = any(72 not in of for of in known)
    lower = LOWER if underuses and slower else claims.DOES_NOT
    verdict = claims.HOLDS if underuses and refused else lower
    return {"C13": (verdict, _sentence(said.head_dim(rows), "C13"))}


def train(rows: Rows) -> Read:
    """C14 from the names in the profile of a training step, and their shares of its time."""
    shared = [row for row in timed(rows) if row["contender"] == STEP and row["shares"]]
    if not shared:
        return {}
    apart, joined = ({*names, "attention", "W_O"} for names in (("W_Q", "W_K", "W_V"), ("W_QKV",)))
    sides = SIDE_BY_SIDE if all(joined <= row["shares"].keys() for row in shared) else claims.DOES_NOT
    verdict = claims.HOLDS if all(apart <= row["shares"].keys() for row in shared) else sides
    return {"C14": (verdict, "; ".join(_of_step(row) for row in shared))}


def _of_step(row: dict) -> str:
    spent = {name: share for name, share in row["shares"].items() if share >= 0.0005}
    steps = {name: share for name, share in spent.items() if name in FIVE}
    each, others = (", ".join(f"{name} {share:.1%}" for name, share in of.items())
                    for of in (steps, {name: share for name, share in spent.items() if name not in steps}))  # fmt: skip
    return f"of {row['model']}'s training step the steps take {sum(steps.values()):.0%} ({each}), the others {others}"


READ: dict[str, Callable[[Rows], Read]] = {
    "attention": attention, "layout": layout, "projections": projections, "head-dim": head_dim, "train": train,
}  # fmt: skip


def _verdict(for_it: Mapping[str, Sequence[bool]], condition: str) -> str:
    """for_it: what is compared -> whether each size speaks for the claim."""
    always = [name for name, sizes in for_it.items() if sizes and all(sizes)]
    if not always:
        return claims.DOES_NOT
    return claims.HOLDS if len(always) == len(for_it) else f"{claims.HOLDS} if {condition} {listed(always)}"


def _sentence(sentences: Sequence[str], claim: str) -> str:
    """What is said of the claim, without its name."""
    return "; ".join(text.removeprefix(claim).lstrip(" ,:") for text in sentences if text.startswith(claim))
