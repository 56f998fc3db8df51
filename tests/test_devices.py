"""Which device or mesh computes, and with which options of the compiler."""

import threading

import jax
import pytest

from andrea_jax import devices


def test_a_program_traced_in_one_thread_is_not_cut_along_the_mesh_of_another():
    mesh = jax.make_mesh((1, 1, 1), ("data", "fsdp", "heads"))
    entered, looked = threading.Event(), threading.Event()

    def elsewhere():
        with devices.over(mesh):
            entered.set()
            looked.wait(10)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    try:
        assert entered.wait(10)
        assert devices.mesh() is None
        with devices.over(None):
            assert devices.alone()
    finally:
        looked.set()
        thread.join()


def test_the_innermost_mesh_counts_and_the_one_before_is_back_after_it():
    mesh = jax.make_mesh((1, 1, 1), ("data", "fsdp", "heads"))
    with devices.over(mesh):
        assert devices.mesh() is mesh
        with devices.over(None):
            assert devices.mesh() is None
        assert devices.mesh() is mesh
    assert devices.mesh() is None


@pytest.mark.parametrize(("backend", "options"), [("gpu", {"xla_gpu_enable_triton_gemm": False}), ("cpu", {})])
def test_only_on_a_gpu_has_xla_a_search_to_be_spared(monkeypatch: pytest.MonkeyPatch, backend: str, options: dict):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert devices.compiler_options() == options
