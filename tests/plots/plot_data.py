"""Made-up results that look like a real run's, for the tests of figures, tables and report."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from andrea_jax.plots import Pattern

PROBES = ("previous_token", "current_token", "first_token", "duplicate_token", "delimiter", "newline", "induction",
          "induction_all", "bracket", "bracket_at_closer", "open_bracket", "entropy", "offset")  # fmt: skip
BASELINES = (0.12, 0.11, 0.12, 0.07, 0.05, 0.04, 0.03, 0.06, 0.05, 0.05, 0.06, 3.21, 0.1)
CONTROLS = {"previous_token": 0.79, "induction": 0.04, "induction_all": 0.05}
TOKENS_A_STEP = 4096
SNIPPET = [
    "⟨bos⟩",
    "def",
    "·f",
    *"(x,y):",
    "⏎",
    "····",
    "return",
    "·g",
    *"(x[y])",
    "⏎",
    "</script>",
    "$a$",
    "漢",
    "\\xff",
]


@dataclass(frozen=True)
class Profile:
    """The five tables of `heads.Profile`."""

    table: pd.DataFrame
    best: pd.DataFrame
    periods: pd.DataFrame
    offsets: pd.DataFrame
    brackets: pd.DataFrame


def profile(n_layer: int = 2, n_head: int = 4, undefined: tuple[str, ...] = ()) -> Profile:
    """A previous-token head last in layer 0, an induction head second in the last layer; the rest near the null."""
    heads = table(n_layer, n_head, undefined)
    return Profile(heads, best(heads), periods(heads), offsets(n_layer, n_head), brackets())


def table(n_layer: int = 2, n_head: int = 4, undefined: tuple[str, ...] = ()) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for probe, baseline in zip(PROBES, BASELINES, strict=True):
        for layer, head in np.ndindex(n_layer, n_head):
            score = min(baseline * rng.lognormal(0, 0.5), 0.99)
            if probe == "entropy":
                score = baseline * rng.uniform(0.2, 1)
            if probe in ("previous_token", "offset") and (layer, head) == (0, n_head - 1):
                score = 0.93
            if probe.startswith("induction") and (layer, head) == (n_layer - 1, 1 % n_head):
                score = 0.81
            rows.append(row(probe, layer, head, score, 0.02 + 0.02 * rng.random(), baseline, probe in undefined))
    return pd.DataFrame(rows).astype({"offset": "Int64", "layer": "Int64", "head": "Int64", "control": "float32"})


def row(
    probe: str, layer: int, head: int, score: float, half: float, baseline: float, undefined: bool = False
) -> dict[str, object]:
    made = {"probe": probe, "layer": layer, "head": head, "score": score, "low": score - half, "high": score + half,
            "baseline": baseline, "off_bos": 0.8, "n": 20_480, "control": CONTROLS.get(probe), "undefined": undefined,
            "reason": "", "offset": 1 + head if probe == "offset" else None}  # fmt: skip
    if undefined:
        made |= dict.fromkeys(("score", "low", "high", "baseline", "off_bos"), np.nan)
        made |= {"n": 0, "reason": "no query has a target"}
    return made


def best(heads: pd.DataFrame) -> pd.DataFrame:
    """The head farthest from the baseline on each probe; none where the probe is undefined."""
    rows = []
    for _, of_probe in heads.groupby("probe", sort=False):
        excess = (of_probe["score"] - of_probe["baseline"]).to_numpy()
        chosen = of_probe.iloc[[0 if np.isnan(excess).all() else int(np.argmax(excess))]]
        rows.append(chosen.assign(layer=pd.NA, head=pd.NA) if chosen["undefined"].all() else chosen)
    return pd.concat(rows, ignore_index=True).astype({"layer": "Int64", "head": "Int64"})


def periods(heads: pd.DataFrame) -> pd.DataFrame:
    of_induction = heads[heads["probe"].isin(["induction", "induction_all"])].drop(columns=["offset"])
    return pd.concat([of_induction.assign(period=period) for period in (11, 17, 23)], ignore_index=True)


def metrics(n_layer: int = 2, n_head: int = 4, steps: int = 1000) -> list[dict]:
    """A line every 10 steps, and one of its own for every evaluation, as `training` writes them."""
    rng = np.random.default_rng(0)
    rows = []
    spread = np.linspace(1, 2.5, n_layer * n_head).reshape(n_layer, n_head)
    for step in range(10, steps + 1, 10):
        loss = 1.9 + 5.5 * np.exp(-step / 100) + 0.08 * rng.normal()
        rows.append({"step": step, "tokens": step * TOKENS_A_STEP, "loss": loss, "grad_norm": 0.4,
                     "learning_rate": 1e-3, "tokens_per_s": 51_000.0})  # fmt: skip
        if step % 50 == 0:
            norms = (0.02 * spread * rng.lognormal(0, 0.2, (n_layer, n_head))).tolist()
            rows.append({"step": step, "head_grad_norm": norms, "eval_loss": 2.0 + 5.5 * np.exp(-step / 100)})
    return rows


def patterns(n: int = len(SNIPPET), panels: int = 4) -> list[Pattern]:
    rng = np.random.default_rng(0)
    tokens = [SNIPPET[i % len(SNIPPET)] for i in range(n)]
    made = []
    for i, probe in enumerate(("previous_token", "induction", "bracket", "first_token")[:panels]):
        pattern = np.tril(rng.random((n, n)) ** 8 + 0.01)
        targets = np.eye(n, k=-1 - 2 * i, dtype=bool)
        pattern = pattern / pattern.sum(axis=1, keepdims=True) * 0.4 + 0.6 * targets
        pattern /= pattern.sum(axis=1, keepdims=True)
        made.append(Pattern(i // 2, i % 2, probe, 0.93 - 0.2 * i, 0.1, tokens, pattern, targets))
    return made


def brackets(of_openers: float = 0.09, n_hardest: int = 211) -> pd.DataFrame:
    """The best head (its mass, and its share of openers) and the rules, on all, hard and hardest pairs."""
    scores = {"head 1.3": (0.42, 0.2, 0.05), "head 1.3, of openers": (0.62, 0.35, of_openers),
              "nearest opener": (0.81, 0.0, 0.0), "nearest of its type": (0.88, 0.63, 0.0),
              "uniform of its type": (0.61, 0.38, 0.24), "uniform unclosed": (0.72, 0.45, 0.31),
              "previous token": (0.1, 0.02, 0.0), "causal uniform": (0.05, 0.02, 0.02)}  # fmt: skip
    rows = []
    for probe in ("bracket", "bracket_at_closer"):
        for name, values in scores.items():
            for pairs, score, n in zip(("all", "hard", "hardest"), values, (4102, 790, n_hardest), strict=True):
                numbers = (score, max(score - 0.03, 0), min(score + 0.03, 1)) if n else (None, None, None)
                kind = {"probe": probe, "pairs": pairs, "n": n, "name": name, "is_head": name.startswith("head")}
                rows.append(kind | dict(zip(("score", "low", "high"), numbers, strict=True)))
    return pd.DataFrame(rows)


def offsets(n_layer: int = 2, n_head: int = 4) -> pd.DataFrame:
    rows = []
    for layer, head in np.ndindex(n_layer, n_head):
        for d in range(33):
            mass = 0.9 if (layer, d) == (0, n_head - head) else 0.04 / (1 + 0.1 * d)
            rows.append({"layer": layer, "head": head, "offset": d, "mass": mass, "low": max(mass - 0.02, 0),
                         "high": mass + 0.02, "baseline": 0.11 / (1 + 0.05 * d)})  # fmt: skip
    return pd.DataFrame(rows)


def checks(scores: float = 0.0) -> pd.DataFrame:
    return pd.DataFrame({"quantity": ["logits", "gradients", "scores"], "max_difference": [3.1e-6, 8e-8, scores],
                         "tolerance": [1e-4, 1e-5, 1e-5]})  # fmt: skip


def timing() -> pd.DataFrame:
    rows = []
    for passes, base in (("forward", 3.1), ("forward + backward", 9.4)):
        for form, ratio in (
            ("fused, one", 1.0),
            ("fused, three", 1.06),
            ("per-head, einsum", 1.1),
            ("per-head, loop", 1.83),
        ):
            rows.append({"form": form, "passes": passes, "min_ms": base * ratio, "median_ms": base * ratio * 1.12})
    return pd.DataFrame(rows)
