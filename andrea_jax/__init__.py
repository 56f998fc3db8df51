"""andrea_jax: what attention heads become, and how they should be computed.

    run = andrea_jax.load_run("runs/quickstart-1a2b3c4d")
    andrea_jax.compare(run.at(0), run)
    andrea_jax.sweep("configs/ablations/n-head.toml")
    andrea_jax.compare_runs("configs/ablations/n-head.toml")

Importing the package loads neither JAX nor anything else; what it offers does, when asked for.
"""

import importlib

__version__ = "0.1.0"

_OFFERED = {
    "LoadedRun": "loaded",
    "load_run": "loaded",
    "train_run": "loaded",
    "compare": "side_by_side",
    "compare_runs": "sweeps.comparing",
    "sweep": "sweeps.runner",
}


def __getattr__(name: str) -> object:
    if name in _OFFERED:
        return getattr(importlib.import_module(f"andrea_jax.{_OFFERED[name]}"), name)
    raise AttributeError(f"module 'andrea_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_OFFERED]
