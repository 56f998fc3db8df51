"""Two runs, or two steps of one, side by side: what was configured, what was learned, what the heads became.

    andrea_jax.compare(run.at(0), run)

Heads have no names: head 1.2 of one model may do what head 0.3 of another does. They are therefore also matched by
what they do, which says little without how well heads match that have nothing to do with each other.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment

from andrea_jax.config import Experiment
from andrea_jax.errors import UserError
from andrea_jax.heads import Profile, shares
from andrea_jax.loaded import LoadedRun
from andrea_jax.runs import Run

DRAWS = 500  # of each null
LOSSES = {"loss": "training loss", "eval_loss": "held-out loss", "eval_loss_per_byte": "held-out loss a byte",
          "eval_in_context": "in-context score"}  # fmt: skip


@dataclass(frozen=True)
class Null:
    """Mean distance of matched heads over `DRAWS` random matchings, with its central 95%.

    p: how likely it is that chance matches at least as well as the heads do, (1 + draws at most as far apart) / (1 +
    draws) (Phipson and Smyth 2010). z: how many standard deviations of the draws the heads are closer than their mean.
    """

    mean: float
    low: float
    high: float
    p: float
    z: float


@dataclass(frozen=True)
class Matching:
    """The heads of two models, paired by what they do: the matching (Hungarian; Kuhn 1955) with the least sum of
    Euclidean distances between the heads' vectors of `heads.shares`, over the behaviours that both models have.

    heads: a row a matched pair, columns head_a, head_b, does (what head_a does most), share_a, share_b, distance.
    distance: its mean over the pairs. random: the same where heads are paired at random, which any matching beats.
    scrambled: the fair null. Each behaviour's shares are dealt to b's heads at random and matched again as well as can
    be: a distance below it says that the same behaviours come together in the same heads.
    """

    heads: pd.DataFrame
    distance: float
    random: Null
    scrambled: Null


@dataclass(frozen=True, repr=False)
class SideBySide(Matching):
    """a, b: what is compared ("quickstart-1a2b3c4d, step 2000"); notes: what makes the comparison unequal.

    config: a row a key that differs, columns key, a, b ·
    losses: a row a measure, columns measure, a, b, difference (b − a), all in nats; null where the step has none ·
    scores: a row a probe, columns probe, head_a, score_a, low_a, high_a, baseline_a, the same for b, difference, and
    beyond: the two 95% intervals do not meet. Each is the best head of its own model, see `Profile.best`. The intervals
    are over sequences: what another seed would change is not in them. And the matching of their heads.
    """

    a: str
    b: str
    notes: tuple[str, ...]
    config: pd.DataFrame
    losses: pd.DataFrame
    scores: pd.DataFrame

    def __repr__(self) -> str:
        parts = [part for title, frame in self._tables() for part in (title, frame.to_string(index=False, na_rep="–"))]
        return "\n".join([self._title(), *self.notes, *parts])

    def _repr_html_(self) -> str:
        parts = [f"<h4>{self._title()}</h4>", *(f"<p>{note}</p>" for note in self.notes)]
        for title, frame in self._tables():
            parts += [f"<p>{title}</p>", frame.to_html(index=False, na_rep="–", border=0)]
        return "".join(parts)

    def _title(self) -> str:
        return f"a: {self.a} · b: {self.b}"

    def _tables(self) -> list[tuple[str, pd.DataFrame]]:
        beyond = np.count_nonzero(self.scores["beyond"])
        nulls = [f"{name} {null.mean:.2f} [{null.low:.2f}, {null.high:.2f}]"
                 for name, null in (("at random", self.random), ("scrambled", self.scrambled))]  # fmt: skip
        matched = f"{len(self.heads)} heads matched: mean distance {self.distance:.2f} ({', '.join(nulls)})"
        title = f"Best heads: {beyond} of {len(self.scores)} probes differ beyond both intervals"
        tables = [("Losses (nats a token)", self.losses), (title, self.scores), (matched, self.heads)]
        config = ("Configuration: what differs", self.config)
        return [(name, frame.round(3)) for name, frame in ([] if self.config.empty else [config]) + tables]


def compare(a: LoadedRun, b: LoadedRun, seed: int = 0) -> SideBySide:
    """Compares two runs, or `run.at(step)` with another step. Head profiles are computed where they are not saved.

    seed: of the nulls. Models may differ in everything; with fewer heads in one, some of the other stay unmatched.
    Raises UserError where one is not an opened run.
    """
    for name, given in (("a", a), ("b", b)):
        if not isinstance(given, LoadedRun):
            raise UserError(f"compare: {name} must be an opened run, as load_run gives it, not {given!r}")
    first, second = a.profile(), b.profile()
    return SideBySide(
        a=f"{a.run.name}, step {a.step}",
        b=f"{b.run.name}, step {b.step}",
        notes=notes((a.run, b.run)),
        config=_config(a.experiment, b.experiment),
        losses=_losses(a, b),
        scores=_scores(first, second),
        **vars(matching(first, second, seed)),
    )


def matching(a: Profile, b: Profile, seed: int = 0) -> Matching:
    """Pairs the heads of two models. seed: of the nulls. With fewer heads in one, some of the other stay unmatched."""
    vectors = [shares(profile) for profile in (a, b)]
    common = vectors[0].columns.intersection(vectors[1].columns)
    x, y = (vector[common].to_numpy(np.float64) for vector in vectors)
    pairs = match(x, y)
    return Matching(
        heads=_heads(vectors[0].loc[:, common], vectors[1].loc[:, common], pairs),
        distance=float(distances(x, y)[pairs].mean()),
        random=_null(x, y, seed, scramble=False),
        scrambled=_null(x, y, seed, scramble=True),
    )


def distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Euclidean distance of every head of x [head, behaviour] to every head of y: [head of x, head of y]."""
    return np.linalg.norm(x[:, None] - y[None], axis=-1)


def match(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(heads of x, heads of y) of the matching with the least sum of distances: min(len(x), len(y)) pairs."""
    return linear_sum_assignment(distances(x, y))


def _null(x: np.ndarray, y: np.ndarray, seed: int, scramble: bool) -> Null:
    rng, found, distance = np.random.default_rng(seed), [], distances(x, y)[match(x, y)].mean()
    for _ in range(DRAWS):
        if scramble:
            dealt = rng.permuted(y, axis=0)  # every behaviour by itself
            found.append(distances(x, dealt)[match(x, dealt)].mean())
        else:
            n = min(len(x), len(y))
            found.append(distances(x, y)[rng.permutation(len(x))[:n], rng.permutation(len(y))[:n]].mean())
    (low, high), mean, spread = np.percentile(found, [2.5, 97.5]), np.mean(found), np.std(found)
    closer = np.count_nonzero(np.array(found) <= distance + 1e-9)  # dealt alike, the same sum in another order
    z = (mean - distance) / spread if spread > 1e-9 else 0.0
    return Null(float(mean), float(low), float(high), (1 + closer) / (1 + DRAWS), float(z))


def notes(runs: Sequence[Run]) -> tuple[str, ...]:
    """What a reader must know before comparing numbers of these runs."""
    if len({run.provenance["data_hash"] for run in runs}) > 1:
        text = "different data: losses a token and scores are of different texts"
        return (f"{text} or tokens (losses a byte compare where the text is the same)",)
    if len({(run.experiment.data.seq_len, run.experiment.probe) for run in runs}) > 1:
        return ("different probes or lengths: the heads were scored on different sequences, see the baselines",)
    return ()


def _config(a: Experiment, b: Experiment) -> pd.DataFrame:
    left, right = _flat(a), _flat(b)
    rows = [(key, left[key], right[key]) for key in left if left[key] != right[key]]
    return pd.DataFrame(rows, columns=["key", "a", "b"], dtype=object)


def _flat(e: Experiment) -> dict[str, object]:
    """Dotted key -> value."""
    sections = dataclasses.asdict(e)
    return {f"{section}.{name}": value for section, values in sections.items() for name, value in values.items()}


def _losses(a: LoadedRun, b: LoadedRun) -> pd.DataFrame:
    left, right = measured(a.run, a.step), measured(b.run, b.step)
    rows = [(words, left[key], right[key]) for key, words in LOSSES.items() if key in left | right]
    frame = pd.DataFrame(rows, columns=["measure", "a", "b"])
    return frame.assign(difference=frame["b"] - frame["a"])


def measured(run: Run, step: int) -> dict[str, float]:
    """What training recorded at a step, by the keys of `LOSSES`; nan for what it did not measure there."""
    lines = [line for line in run.metrics() if line["step"] == step]
    merged = {key: value for line in lines for key, value in line.items()}
    return dict.fromkeys(LOSSES, np.nan) | {key: merged[key] for key in LOSSES if key in merged}


def _scores(a: Profile, b: Profile) -> pd.DataFrame:
    left, right = _best(a), _best(b)
    frame = left.merge(right, on="probe", suffixes=("_a", "_b"))
    apart = (frame["low_a"] > frame["high_b"]) | (frame["low_b"] > frame["high_a"])
    return frame.assign(difference=frame["score_b"] - frame["score_a"], beyond=apart)


def _best(profile: Profile) -> pd.DataFrame:
    names = [f"{row['layer']}.{row['head']}" if row["n"] else None for row in profile.best.to_dict("records")]
    return profile.best.assign(head=names).loc[:, ["probe", "head", "score", "low", "high", "baseline"]]


def _heads(a: pd.DataFrame, b: pd.DataFrame, pairs: tuple[np.ndarray, np.ndarray]) -> pd.DataFrame:
    """a, b: rows (layer, head), columns behaviours."""
    rows = []
    for i, j in zip(*pairs, strict=True):
        (left, right), does = (frame.index[n] for frame, n in ((a, i), (b, j))), a.iloc[i].idxmax()
        apart = np.linalg.norm(a.iloc[i].to_numpy(np.float64) - b.iloc[j].to_numpy(np.float64))
        names = ["{}.{}".format(*name) for name in (left, right)]
        rows.append((*names, does, a.iloc[i][does], b.iloc[j][does], apart))
    return pd.DataFrame(rows, columns=["head_a", "head_b", "does", "share_a", "share_b", "distance"])
