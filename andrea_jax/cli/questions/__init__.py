"""Questions about the heads of a run, asked as `andrea heads RUN QUESTION`: one module each, with `add(questions)`."""

from types import ModuleType

from andrea_jax.cli.questions import annotations, circuits, patching, removing, similarity

QUESTIONS: tuple[ModuleType, ...] = (removing, patching, circuits, similarity, annotations)
