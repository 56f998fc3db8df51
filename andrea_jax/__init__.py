"""andrea_jax: what attention heads become, and how they should be computed.

    run = andrea_jax.load_run("runs/quickstart-1a2b3c4d")

Importing the package loads neither JAX nor anything else; `load_run` does.
"""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name in ("LoadedRun", "load_run"):
        from andrea_jax import loaded

        return getattr(loaded, name)
    raise AttributeError(f"module 'andrea_jax' has no attribute {name!r}")
