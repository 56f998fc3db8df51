"""What every head of a model does: all probes on their streams, as tables."""

import functools
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from andrea_jax import config
from andrea_jax.data import Dataset
from andrea_jax.errors import UserError
from andrea_jax.heads import brackets, streams, tables
from andrea_jax.heads.scores import Measured, Progress, Sums, measure
from andrea_jax.heads.streams import Repeats, Stream, control_name, offset_name
from andrea_jax.heads.tables import Result
from andrea_jax.heads.targets import Targets
from andrea_jax.model import Params
from andrea_jax.runs import write_atomically

BEHAVIOURS = ("previous_token", "current_token", "first_token", "duplicate_token", "induction", "bracket")


@dataclass(frozen=True)
class Profile:
    """A model's head profiles. Scores are float32; a number that does not exist is null.

    table: a row a probe, layer and head. probe · layer · head · score, low, high: mean mass on the targets over the
    counted queries, with its 95% bootstrap interval over sequences · baseline: of causal-uniform attention on the same
    queries · off_bos: mean mass off position 0 · n: counted queries · control: the score of the probe's control, where
    it has one (previous_token: on random tokens; induction: the largest over the wrong periods' offsets) · undefined:
    no query has a target, and `reason` says why · offset: the distance, in rows of probe "offset".
    Two rows are not masses on targets: "entropy" (nats; its baseline is causal-uniform's) and "offset" (the head's best
    fixed distance, chosen by score − baseline on the even sequences, its score from the odd ones).

    best: a row a probe, with the columns of `table`: the head with the largest score − baseline (for entropy, the
    smallest) on the even sequences; every figure from the odd ones.
    Where a half has no target, layer and head are null as well.
    periods: induction and induction_all by block length; the columns of `table`, and `period` ·
    offsets: layer, head, offset, mass, low, high, baseline: every head at every distance, on all sequences ·
    brackets: the best heads against rules (`brackets.table`).
    """

    table: pd.DataFrame
    best: pd.DataFrame
    periods: pd.DataFrame
    offsets: pd.DataFrame
    brackets: pd.DataFrame

    def save(self, folder: Path, step: int) -> None:
        """Writes best-, periods-, offsets- and brackets-<step>.parquet, then profile-<step>.parquet (the table): where
        that one is, all are."""
        for path, field in self._files(folder, step).items():
            write_atomically(path, getattr(self, field).to_parquet(index=False))

    @classmethod
    def load(cls, folder: Path, step: int) -> "Profile":
        """What `save` wrote; UserError where a file is missing or cut."""
        files = cls._files(folder, step)
        for path in files:
            if not path.is_file():
                raise UserError(f"{path}: no such file; step {step} has no head profile there")
        return cls(**{field: tables.read(path) for path, field in files.items()})

    @property
    def n_tokens(self) -> int | None:
        """Of the text it was made on: sequences × seq_len; None where no entropy tells."""
        counts = self.table.loc[self.table["probe"] == "entropy", "n"]
        return None if counts.empty else int(counts.iloc[0])

    def __repr__(self) -> str:
        return f"{self._caption()}\n{self._shown().to_string(index=False, na_rep='')}"

    def _repr_html_(self) -> str:
        return f"<p>{self._caption()}</p>{self._shown().to_html(index=False, na_rep='', border=0)}"

    def _caption(self) -> str:
        n = len(self.table[["layer", "head"]].drop_duplicates())
        return f"Profile of {n} heads; the best head of each probe, chosen on one half of the sequences, by the other:"

    def _shown(self) -> pd.DataFrame:
        columns = ["probe", "layer", "head", "score", "low", "high", "baseline", "control", "n"]
        return self.best.loc[:, columns].round(3)

    @classmethod
    def _files(cls, folder: Path, step: int) -> dict[Path, str]:
        names = {field.name: field.name for field in reversed(fields(cls))} | {
            "table": "profile"
        }  # table last: see save
        return {folder / f"{name}-{step}.parquet": field for field, name in names.items()}


def profile(
    model: config.Model,
    params: Params,
    dataset: Dataset,
    probe: config.Probe,
    *,
    seq_len: int,
    dtype: str = "float32",
    backend: str = "auto",
    seed: int = 0,
    progress: Progress | None = None,
) -> Profile:
    """Runs every probe on held-out text, random tokens, repeats and brackets; one pass and one compilation a stream.

    probe.n_sequences sequences a stream of at most seq_len tokens (more windows of brackets, until the half that
    reports has 500 pairs of the hardest kind). The same arguments give the same tables. progress: called with
    (sequences done, in all).
    Raises UserError where the data set has too few windows or ids, or probe.periods do not fit.
    """
    asked = Asked.of(model, dataset, probe, seq_len, seed)
    done, total = 0, sum(len(stream.tokens) for stream in asked)

    def run(stream: Stream, entropy: bool = False, listed: Targets | None = None) -> Measured:
        nonlocal done
        tell = functools.partial(_tell, progress, done, total) if progress else None
        done += len(stream.tokens)
        settings = {"dtype": dtype, "backend": backend, "entropy": entropy, "listed": listed, "progress": tell}
        return measure(model, params, stream.tokens, stream.targets, **settings)

    on_text, on_random, on_repeats = run(asked.text, entropy=True), run(asked.random), run(asked.repeats)
    on_brackets = run(asked.bracket, listed=brackets.openers(asked.bracket.windows))
    return assembled(model, asked, (on_text, on_random, on_repeats, on_brackets))


class Asked(NamedTuple):
    """The streams that a profile is made of."""

    text: Stream
    random: Stream
    repeats: Repeats
    bracket: brackets.BracketStream

    @staticmethod
    def of(
        model: config.Model,
        dataset: Dataset,
        probe: config.Probe,
        seq_len: int,
        seed: int,
        most_brackets: int = brackets.MOST_WINDOWS,
    ) -> "Asked":
        if seq_len > model.seq_len:
            raise UserError(f"seq_len = {seq_len} is above model.seq_len = {model.seq_len}")
        asked = (seq_len, probe.n_sequences, seed)
        text, random = streams.text(dataset, *asked), streams.random_tokens(dataset, *asked)
        repeats = streams.repeats(dataset, probe.periods, *asked)
        return Asked(text, random, repeats, brackets.stream(dataset, *asked, most_brackets))


def assembled(model: config.Model, asked: Asked, measured: tuple[Measured, ...]) -> Profile:
    """The tables, from what was measured on each stream."""
    on_text, _, _, on_brackets = measured
    windows, seq_len = asked.bracket.windows, asked.text.tokens.shape[1]
    results = _results(seq_len, asked.repeats, windows.reason, measured)
    by_offset = {d: on_text.probes[offset_name(d)] for d in streams.offsets(seq_len)}
    table, best = tables.assemble(results, by_offset)
    every = (table, _by_period(results, asked.repeats.period), tables.offset_curves(by_offset))
    table, by_period, curves = (_left(model, frame) for frame in every)
    return Profile(table, best, by_period, curves, brackets.table(windows, on_brackets))


def _left(model: config.Model, table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the heads that the model has: pruned layers have fewer than n_head."""
    there = table["head"].to_numpy() < np.array(model.layer_heads)[table["layer"]]
    return table.loc[there].reset_index(drop=True)


def _tell(progress: Progress, before: int, total: int, done: int, _in_stream: int) -> None:
    progress(before + done, total)


def _results(seq_len: int, repeats: Repeats, reason: str, measured: tuple[Measured, ...]) -> dict[str, Result]:
    """Every probe's sums and controls, in the order of the tables; `measured` in the order of the streams."""
    text, random, repeated, bracket = measured
    periods = np.unique(repeats.period).tolist()
    results = {name: Result(text.probes[name]) for name in (*BEHAVIOURS[:4], "delimiter", "newline")}
    results["previous_token"] = Result(text.probes["previous_token"], (random.probes["previous_token"],))
    for name in ("induction", "induction_all"):
        controls = tuple(repeated.probes[control_name(name, period)] for period in periods)
        results[name] = Result(repeated.probes[name], controls)
    results |= {name: Result(sums, reason=reason or tables.NO_TARGET) for name, sums in bracket.probes.items()}
    return results | {"entropy": _entropy(text, seq_len)}


def _by_period(results: dict[str, Result], period: np.ndarray) -> pd.DataFrame:
    parts = []
    for name in ("induction", "induction_all"):
        for p in np.unique(period).tolist():
            parts.append(tables.rows(name, results[name].on(period == p)).assign(period=p))
    return pd.concat(parts, ignore_index=True).drop(columns=["offset"])


def _entropy(text: Measured, seq_len: int) -> Result:
    """Σ of each row's entropy, over all rows; causal-uniform attention has ln(q + 1) in row q."""
    assert text.entropy is not None
    n = len(text.entropy)
    uniform = np.full(n, np.log(np.arange(1, seq_len + 1)).sum())
    sums = Sums(text.entropy, np.full_like(text.entropy, tables.NULL), uniform, np.full(n, seq_len))
    return Result(sums, sign=-1)


def shares(profile: Profile) -> pd.DataFrame:
    """Each head as a vector, float32: (score − baseline) / (1 − baseline) of every behaviour that is defined.

    Rows (layer, head), columns behaviours: previous, current, first and duplicate token, induction, bracket. 0 for a
    head that attends evenly, 1 for all of its attention on the targets.
    """
    table = profile.table
    rows = table[table["probe"].isin(BEHAVIOURS) & ~table["undefined"]]
    share = (rows["score"] - rows["baseline"]) / (1 - rows["baseline"])
    return rows.assign(share=share.astype(np.float32)).pivot(index=["layer", "head"], columns="probe", values="share")


def specialization(profile: Profile) -> pd.DataFrame:
    """How far each head is from the null: columns layer, head, specialization (float32).

    The length of its vector of `shares`: 0 for a head that attends evenly, 1 for one that does one thing only, all the
    time. Undefined behaviours count 0. Our own definition, after "specialization = distance of the head profile from
    the null".
    """
    wide = shares(profile)
    distance = np.linalg.norm(wide.to_numpy(np.float32), axis=1)
    return wide.index.to_frame(index=False).assign(specialization=distance)
