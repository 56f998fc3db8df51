"""Training: from an experiment and a data set to a run's checkpoints and metrics."""

from andrea_jax.training.bookkeeping import device
from andrea_jax.training.checkpoints import restore, steps
from andrea_jax.training.evaluation import evaluate, in_context_bands, window_losses
from andrea_jax.training.lock import Elsewhere
from andrea_jax.training.loop import Interrupted, train, train_together
from andrea_jax.training.recorder import NotFinite
from andrea_jax.training.step import head_grad_norm, loss, make_step, token_losses

__all__ = [
    "Elsewhere",
    "Interrupted",
    "NotFinite",
    "device",
    "evaluate",
    "head_grad_norm",
    "in_context_bands",
    "loss",
    "make_step",
    "restore",
    "steps",
    "token_losses",
    "train",
    "train_together",
    "window_losses",
]
