"""From sums to tables: one row a head, with everything that a score must not be without."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from andrea_jax.errors import UserError
from andrea_jax.heads import statistics
from andrea_jax.heads.scores import Sums
from andrea_jax.heads.statistics import CHOOSE, REPORT

NULL = np.float32(np.nan)  # a number that does not exist: null in the tables
NO_TARGET = "no query has a target"


@dataclass(frozen=True)
class Result:
    """A probe's sums, those of its controls, and why it may be undefined. `sign` −1: less is more remarkable."""

    sums: Sums
    controls: tuple[Sums, ...] = ()
    reason: str = NO_TARGET
    sign: int = 1

    def on(self, sequences: slice | np.ndarray) -> "Result":
        """The result on some of the sequences."""
        controls = tuple(control.on(sequences) for control in self.controls)
        return Result(self.sums.on(sequences), controls, self.reason, self.sign)


def assemble(results: dict[str, Result], by_offset: dict[int, Sums]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(`Profile.table`, `Profile.best`): every probe, then the head's best offset."""
    offset_rows, best_offset = best_offsets(by_offset)
    table = pd.concat([*(rows(*result) for result in results.items()), offset_rows], ignore_index=True)
    return table, pd.concat([*(best(*result) for result in results.items()), best_offset], ignore_index=True)


def rows(probe: str, result: Result, offset: int | None = None) -> pd.DataFrame:
    """The rows of `Profile.table` for one probe, layer by layer."""
    shape = result.sums.mass.shape[1:]
    layer, head = np.indices(shape)
    null = np.full(shape, NULL)
    found = statistics.estimate(result.sums)
    score, low, high = found or (null, null, null)
    by_head = {
        "layer": layer,
        "head": head,
        "score": score,
        "low": low,
        "high": high,
        "baseline": np.full(shape, statistics.baseline(result.sums) if found else NULL, np.float32),
        "off_bos": statistics.off_bos(result.sums) if found else null,
        "n": np.full(shape, result.sums.n.sum()),
        "control": _control(result),
    }
    table = pd.DataFrame({"probe": probe} | {name: values.ravel() for name, values in by_head.items()})
    undefined = {"undefined": found is None, "reason": "" if found else result.reason}
    return table.assign(**undefined, offset=pd.array([offset] * len(table), dtype="Int64"))


def _control(result: Result) -> np.ndarray:
    """The largest score over the controls, head by head; null where there is none."""
    scores = [control.mass.sum(axis=0) / control.n.sum() for control in result.controls if control.n.sum()]
    return np.max(scores, axis=0).astype(np.float32) if scores else np.full(result.sums.mass.shape[1:], NULL)


def best(probe: str, result: Result) -> pd.DataFrame:
    """One row of `Profile.best`: the head that the one half chooses, with the figures of the other half."""
    choosing, reporting = result.on(CHOOSE), result.on(REPORT)
    for half in (choosing, reporting):
        if not half.sums.n.any():
            nobody = {name: pd.array([None], dtype="Int64") for name in ("layer", "head")}
            return rows(probe, half).head(1).assign(**nobody)
    return _row(rows(probe, reporting), *statistics.best_head(result.sign * _excess(choosing.sums)))


def best_offsets(by_offset: dict[int, Sums]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The offset rows of `Profile.table`, each head at its best distance, and that of `Profile.best`."""
    excess = np.stack([_excess(sums.on(CHOOSE)) for sums in by_offset.values()])
    distance = np.array(list(by_offset))[excess.argmax(axis=0)]
    reported = pd.concat([rows("offset", Result(sums.on(REPORT)), d) for d, sums in by_offset.items()])
    chosen = reported["offset"] == distance[reported["layer"], reported["head"]]
    table = reported.loc[chosen].sort_values(["layer", "head"])
    return table, _row(table, *statistics.best_head(excess.max(axis=0)))


def _row(table: pd.DataFrame, layer: int, head: int) -> pd.DataFrame:
    return table.loc[(table["layer"] == layer) & (table["head"] == head)].astype({"layer": "Int64", "head": "Int64"})


def _excess(sums: Sums) -> np.ndarray:
    """score − baseline [n_layer, n_head]."""
    return sums.mass.sum(axis=0, dtype=np.float64) / sums.n.sum() - statistics.baseline(sums)


def offset_curves(by_offset: dict[int, Sums]) -> pd.DataFrame:
    """`Profile.offsets`: every head at every distance, on all sequences."""
    parts = [rows("offset", Result(sums), d) for d, sums in by_offset.items()]
    curves = pd.concat(parts, ignore_index=True).rename(columns={"score": "mass"})
    columns = ["layer", "head", "offset", "mass", "low", "high", "baseline"]
    return curves.loc[:, columns].astype({"offset": "int64"})


def read(path: Path) -> pd.DataFrame:
    """A table that lies in a run. UserError where the file is cut short or something else."""
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError):
        text = f"is damaged; remove {path.parent}, and its tables are computed when asked for"
        raise UserError(f"{path}: {text}") from None
