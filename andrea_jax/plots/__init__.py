"""Figures, tables for the terminal, and the report of a run."""

from andrea_jax.plots.development_figures import appearances, development
from andrea_jax.plots.figures import (
    head_gradients,
    loss_curve,
    projection_check,
    projection_timing,
    projection_training,
)
from andrea_jax.plots.head_figures import bracket_rules, head_profile, offset_profiles, patterns
from andrea_jax.plots.pattern import Pattern
from andrea_jax.plots.report import Asked, write_report
from andrea_jax.plots.style import Figure
from andrea_jax.plots.sweep_figures import effect, effects, sweep
from andrea_jax.plots.tables import (
    all_heads_table,
    equality_table,
    heads_table,
    memory_table,
    params_table,
    runs_table,
    timing_table,
    work_table,
)

__all__ = [
    "Asked",
    "Figure",
    "Pattern",
    "all_heads_table",
    "appearances",
    "bracket_rules",
    "development",
    "effect",
    "effects",
    "equality_table",
    "head_gradients",
    "head_profile",
    "heads_table",
    "loss_curve",
    "memory_table",
    "offset_profiles",
    "params_table",
    "patterns",
    "projection_check",
    "projection_timing",
    "projection_training",
    "runs_table",
    "sweep",
    "timing_table",
    "work_table",
    "write_report",
]
