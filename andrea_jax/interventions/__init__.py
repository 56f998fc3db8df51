"""What a head does, found by taking it away: ablation, gradient importance, patching, pruning."""

from andrea_jax.interventions.damage import Damage, Head, ablate, every_head
from andrea_jax.interventions.importance import Importance, gate_gradients, importance
from andrea_jax.interventions.kinds import KINDS
from andrea_jax.interventions.patching import LogitDifference, Loss, patch, untouched
from andrea_jax.interventions.path_patching import path_patch
from andrea_jax.interventions.pruning import cheapest, count, curve, prune, removal_order
from andrea_jax.interventions.tasks import Task, brackets, closers, names, repeats, tasks, text

__all__ = [
    "KINDS",
    "Damage",
    "Head",
    "Importance",
    "LogitDifference",
    "Loss",
    "Task",
    "ablate",
    "brackets",
    "cheapest",
    "closers",
    "count",
    "curve",
    "every_head",
    "gate_gradients",
    "importance",
    "names",
    "patch",
    "path_patch",
    "prune",
    "removal_order",
    "repeats",
    "tasks",
    "text",
    "untouched",
]
