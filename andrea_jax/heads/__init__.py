"""What attention heads do: probes, scores with baselines and intervals, profiles."""

from andrea_jax.heads.planted import planted
from andrea_jax.heads.profile import BEHAVIOURS, Profile, profile, shares, specialization
from andrea_jax.heads.quick import QuickProfile
from andrea_jax.heads.scores import Measured, Progress, Sums, measure
from andrea_jax.heads.targets import Targets

__all__ = [
    "BEHAVIOURS",
    "Measured",
    "Profile",
    "Progress",
    "QuickProfile",
    "Sums",
    "Targets",
    "measure",
    "planted",
    "profile",
    "shares",
    "specialization",
]
