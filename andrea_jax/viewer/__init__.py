"""The attention viewer: one self-contained page for a text and any set of layers and heads."""

from andrea_jax.viewer.assemble import Side, view
from andrea_jax.viewer.build import Source, ablated, view_models
from andrea_jax.viewer.from_run import view_run
from andrea_jax.viewer.page import View

__all__ = ["Side", "Source", "View", "ablated", "view", "view_models", "view_run"]
