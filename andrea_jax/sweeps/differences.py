"""What a value changes: every setting against the one that differs from it in this value only."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from andrea_jax import seeds
from andrea_jax.side_by_side import matching
from andrea_jax.sweeps.measured import Measured, measures
from andrea_jax.sweeps.plan import SEED, short

ANOTHER_SEED = "another seed"
Setting = tuple[str, ...]  # the value of every key, as a person writes it


@dataclass(frozen=True)
class Contrast:
    """Two settings, and the keys in which they differ: one, unless there is no setting between them."""

    a: Setting
    b: Setting
    keys: tuple[str, ...]
    text: str  # "n_head 4 against 2, w_o free"


def contrasts(measured_runs: Sequence[Measured], keys: Sequence[str]) -> list[Contrast]:
    """For every setting and key, the setting with that key at its first value and all else equal; where a setting has
    none for any key, the first setting, from which it differs in several keys at once."""
    swept = [key for key in keys if key != SEED]
    settings = list(dict.fromkeys(one.setting(swept) for one in measured_runs))
    found = []
    for b in settings[1:]:
        partners = [_with(b, i, settings[0][i]) for i in range(len(swept)) if b[i] != settings[0][i]]
        known = [a for a in partners if a in settings] or [settings[0]]
        found += [_contrast(a, b, swept) for a in known]
    return found


def _with(setting: Setting, i: int, value: str) -> Setting:
    return (*setting[:i], value, *setting[i + 1 :])


def _contrast(a: Setting, b: Setting, keys: Sequence[str]) -> Contrast:
    names, differ = list(short(keys).values()), [i for i in range(len(keys)) if a[i] != b[i]]
    changed = ", ".join(f"{names[i]} {b[i]} against {a[i]}" for i in differ[:2])
    left = len(differ) - 2
    changed += f" and {left} more key{'s' if left > 1 else ''}" if left > 0 else ""
    same = "".join(f" · {name} {b[i]}" for i, name in enumerate(names[:3]) if i not in differ)
    return Contrast(a, b, tuple(keys[i] for i in differ), changed + same)


def differences(table: pd.DataFrame, measured_runs: Sequence[Measured], keys: Sequence[str]) -> pd.DataFrame:
    """A row a contrast × measure: contrast, keys, measure, difference, low, high (95% over seeds), n (seeds), verdict.

    table: that of `runs_table`, in the order of the runs. See `seeds.difference` for the interval.
    """
    rows = []
    for contrast in contrasts(measured_runs, keys):
        for measure in measures(keys):
            a, b = (_by_seed(table[measure].to_list(), measured_runs, keys, side) for side in (contrast.a, contrast.b))
            found = seeds.difference(a, b)
            rows.append({"contrast": contrast.text, "keys": ", ".join(contrast.keys), "measure": measure,
                         "difference": found.value, "low": found.low, "high": found.high, "n": found.n,
                         "verdict": found.verdict})  # fmt: skip
    names = ["contrast", "keys", "measure", "difference", "low", "high", "n", "verdict"]
    return pd.DataFrame(rows, columns=names)


def _by_seed(
    values: Sequence[float], measured_runs: Sequence[Measured], keys: Sequence[str], setting: Setting
) -> dict[int, float]:
    return {one.seed: value for one, value in zip(measured_runs, values, strict=True) if one.setting(keys) == setting}


def matches(measured_runs: Sequence[Measured], keys: Sequence[str]) -> pd.DataFrame:
    """A row a pair of runs that differ in the seed only, or in a contrast only: what (the kind of pair), run_a, run_b,
    n (heads matched), distance, and of the scrambled null (`side_by_side.Matching`) null, low, high, z, p."""
    rows = []
    for what, a, b in _pairs(measured_runs, keys):
        found = matching(a.profile, b.profile)
        null = found.scrambled
        rows.append({"what": what, "run_a": a.run.name, "run_b": b.run.name, "n": len(found.heads),
                     "distance": found.distance, "null": null.mean, "low": null.low, "high": null.high, "z": null.z,
                     "p": null.p})  # fmt: skip
    names = ["what", "run_a", "run_b", "n", "distance", "null", "low", "high", "z", "p"]
    return pd.DataFrame(rows, columns=names)


def _pairs(measured_runs: Sequence[Measured], keys: Sequence[str]) -> list[tuple[str, Measured, Measured]]:
    of_contrast = {frozenset((one.a, one.b)): one.text for one in contrasts(measured_runs, keys)}
    found = []
    for a, b in itertools.combinations(measured_runs, 2):
        pair = frozenset((a.setting(keys), b.setting(keys)))
        if len(pair) == 1:
            found.append((ANOTHER_SEED, a, b))
        elif pair in of_contrast and (a.seed == b.seed or len(measured_runs) == 2):
            found.append((of_contrast[pair], a, b))
    return found
