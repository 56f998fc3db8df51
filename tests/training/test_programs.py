"""Compiled programs are kept where compiling takes long, and nowhere else."""

from pathlib import Path

import jax
import pytest

from andrea_jax.training import programs


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANDREA_CACHE", "/somewhere")
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", before)


def test_on_a_gpu_they_are_kept_in_the_cache(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    programs.keep()
    assert Path(jax.config.jax_compilation_cache_dir) == Path("/somewhere/programs")


def test_a_folder_that_jax_was_told_of_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    jax.config.update("jax_compilation_cache_dir", "/elsewhere")
    programs.keep()
    assert jax.config.jax_compilation_cache_dir == "/elsewhere"


def test_on_a_cpu_they_are_not():
    programs.keep()
    assert not jax.config.jax_compilation_cache_dir
