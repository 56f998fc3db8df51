"""Questions about the heads of a run, asked as `andrea heads RUN QUESTION`: one module each, with `add(questions)`."""

from types import ModuleType

QUESTIONS: tuple[ModuleType, ...] = ()
