"""Compiled programs are kept between processes, where compiling takes long."""

import jax

from andrea_jax.data.packing import default_cache


def keep() -> None:
    """From here on a GPU's programs, and which matrix-product kernels were found the fastest for them, are looked up in
    `<cache>/programs` first: a run that is continued, or the next one of its shape, starts in seconds.

    Does nothing on a CPU, where a program kept by one machine may not run on another, and where JAX is already told
    of a folder (JAX_COMPILATION_CACHE_DIR).
    """
    if jax.default_backend() != "cpu" and not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", str(default_cache() / "programs"))
