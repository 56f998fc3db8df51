"""What several seeds say: a mean, and a difference of two, each with an interval that another seed's luck is in."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import special

Verdict = Literal["beyond noise", "within noise", "too few seeds"]


@dataclass(frozen=True)
class Estimate:
    """A value and its 95% interval over n seeds; low and high are nan where the seeds are too few to give one."""

    value: float
    low: float
    high: float
    n: int

    @property
    def verdict(self) -> Verdict:
        """Of a difference: beyond noise where the interval leaves out 0."""
        if math.isnan(self.low):
            return "too few seeds"
        return "within noise" if self.low <= 0 <= self.high else "beyond noise"

    def widened(self, k: int) -> "Estimate":
        """The interval as one of k that are looked at: wide enough that all k of them hold in 95% (Dunn 1961, with
        Bonferroni's inequality). At least that wide where the interval is Welch's."""
        factor = _t(self.n - 1, k) / _t(self.n - 1) if self.n > 1 else math.nan
        low, high = (self.value + factor * (end - self.value) for end in (self.low, self.high))
        return Estimate(self.value, low, high, self.n)


def mean(values: Sequence[float]) -> Estimate:
    """The mean x̄ ± t(n − 1)·s/√n (Student 1908): the interval for the mean of all seeds that might have been drawn.

    nan values are left out; nan where no value is left, and without an interval where one is.
    """
    known = [value for value in values if not math.isnan(value)]
    if len(known) < 2:
        return Estimate(known[0] if known else math.nan, math.nan, math.nan, len(known))
    centre, half = statistics.fmean(known), _t(len(known) - 1) * statistics.stdev(known) / math.sqrt(len(known))
    return Estimate(centre, centre - half, centre + half, len(known))


def difference(a: Mapping[int, float], b: Mapping[int, float]) -> Estimate:
    """b − a, each seed -> value. Over the seeds that both have, seed by seed (the paired t-interval), where there are
    two or more of them; otherwise between the means, with Welch's interval (Welch 1947); n is then the smaller number.
    """
    a, b = ({seed: value for seed, value in side.items() if not math.isnan(value)} for side in (a, b))
    shared = [seed for seed in a if seed in b]
    if len(shared) > 1 or len(a) < 2 or len(b) < 2:
        return mean([b[seed] - a[seed] for seed in shared]) if shared else _apart(a, b)
    variances = [statistics.variance(side.values()) / len(side) for side in (a, b)]
    centre, total = statistics.fmean(b.values()) - statistics.fmean(a.values()), sum(variances)
    spread = sum(v**2 / (len(side) - 1) for v, side in zip(variances, (a, b), strict=True))
    half = _t(total**2 / spread) * math.sqrt(total) if total else 0.0
    return Estimate(centre, centre - half, centre + half, min(len(a), len(b)))


def _apart(a: Mapping[int, float], b: Mapping[int, float]) -> Estimate:
    """No seed is shared, and one side has one at most: a difference of means without an interval."""
    value = statistics.fmean(b.values()) - statistics.fmean(a.values()) if a and b else math.nan
    return Estimate(value, math.nan, math.nan, min(len(a), len(b)))


def _t(freedom: float, k: int = 1) -> float:
    """The 97.5% point of Student's t; with k, that of which a k-th of the rest lies beyond."""
    return float(special.stdtrit(freedom, 1 - 0.025 / k))
