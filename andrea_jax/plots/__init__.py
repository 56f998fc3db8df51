"""Figures, tables for the terminal, and the report of a run."""

from andrea_jax.plots.figures import head_gradients, loss_curve, projection_check, projection_timing
from andrea_jax.plots.head_figures import bracket_rules, head_profile, offset_profiles, patterns
from andrea_jax.plots.pattern import Pattern
from andrea_jax.plots.report import write_report
from andrea_jax.plots.style import Figure
from andrea_jax.plots.tables import all_heads_table, heads_table, params_table, runs_table

__all__ = [
    "Figure",
    "Pattern",
    "all_heads_table",
    "bracket_rules",
    "head_gradients",
    "head_profile",
    "heads_table",
    "loss_curve",
    "offset_profiles",
    "params_table",
    "patterns",
    "projection_check",
    "projection_timing",
    "runs_table",
    "write_report",
]
