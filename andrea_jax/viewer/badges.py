"""What each head is best at: the badge under its thumbnail."""

from dataclasses import dataclass
from typing import cast

import numpy as np
import pandas as pd

from andrea_jax.errors import UserError
from andrea_jax.heads import BEHAVIOURS
from andrea_jax.plots.words import PROBES

SHORT = {"previous_token": "prev", "current_token": "self", "first_token": "first", "duplicate_token": "dupl",
         "induction": "induct", "bracket": "brack"}  # fmt: skip


@dataclass(frozen=True)
class Badge:
    """A head's best probe, its score, and that of causal-uniform attention. found: the score's interval lies above."""

    short: str
    label: str
    score: float
    baseline: float
    found: bool


def badges(table: pd.DataFrame) -> dict[tuple[int, int], Badge]:
    """(layer, head) -> its badge, from a `Profile.table` (columns probe, layer, head, score, low, baseline).

    Best is the probe with the largest (score − baseline) / (1 − baseline), the share of what a head could gain
    over causal-uniform attention. A head without a defined score has no badge. UserError where a column is missing.
    """
    missing = [name for name in ("probe", "layer", "head", "score", "low", "baseline") if name not in table.columns]
    if missing:
        raise UserError(f"scores: lacks the column {missing[0]}; it must be the table of a head profile")
    rows = table.loc[table["probe"].isin(BEHAVIOURS) & table["score"].notna() & (table["baseline"] < 1)]
    gain = ((rows["score"] - rows["baseline"]) / (1 - rows["baseline"])).to_numpy()
    best: dict[tuple[int, int], tuple[float, Badge]] = {}
    for row, share in zip(rows.to_dict("records"), np.asarray(gain), strict=True):
        place = int(row["layer"]), int(row["head"])
        if place not in best or share > best[place][0]:
            probe = cast(str, row["probe"])
            found = bool(row["low"] > row["baseline"])
            badge = Badge(SHORT[probe], PROBES[probe].label, float(row["score"]), float(row["baseline"]), found)
            best[place] = float(share), badge
    return {place: badge for place, (_, badge) in best.items()}
