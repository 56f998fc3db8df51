"""What the benchmark of several devices makes of its numbers; what it runs is tested by tests/training/test_mesh.py."""

import pytest

from andrea_jax.benchmarks.many_devices import bench_mesh, meshes
from andrea_jax.benchmarks.waiting import _of_events, covered
from andrea_jax.config_mesh import Mesh
from andrea_jax.errors import UserError
from andrea_jax.plots.mesh_figures import REVERSED, many_devices, mesh_tables, title, verdicts

ONE = {"part": "losses", "model": "m", "projection": "fused", "steps": 7, "mesh": "one device", "devices": 1,
       "batch": 3, "us": 2e3, "tokens_per_s": 1e4, "reason": None}  # fmt: skip


def rows(off: float) -> list[dict]:
    two = {**ONE, "mesh": "data 2", "devices": 2}
    fast = {"part": "speed", "efficiency": 0.9, "exposed": 0.05, "idle": 0.01}
    return [
        ONE,
        {**ONE, "mesh": REVERSED, "off_mean": 1e-3},
        {**two, "off_mean": off, "efficiency": 0.4},
        {**ONE, "part": "speed", "efficiency": 1.0},
        {**two, **fast, "tokens_per_s": 1.8e4},
        {**two, "part": "torch", "mesh": "torch ddp", "tokens_per_s": 1.5e4, "efficiency": None},
        {**two, "part": "resume", "mesh": "one device → one device", "us": None, "off_mean": 0.0},
        {**two, "part": "resume", "mesh": "data 2 → one device", "us": None, "off_mean": 3e-4},
        {
            **two,
            "part": "kernels",
            "backend": "triton",
            "collectives": {"all-gather": [1, 34]},
            "off_max": 0.5,
            "us": None,
        },
        {**two, "part": "kernels", "us": None, "mesh": "heads 2", "reason": "needs a GPU"},
    ]


def test_every_mesh_of_eight_devices_has_eight_and_those_with_one_axis_come_first():
    found = meshes(8)
    assert len(set(found)) == len(found) == 10
    assert all(mesh.size == 8 for mesh in found)
    assert set(found[:3]) == {Mesh(data=8), Mesh(fsdp=8), Mesh(heads=8)}
    assert meshes(1) == [Mesh()]


def test_the_verdict_on_losses_compares_with_what_the_order_of_the_windows_changes():
    assert "within rounding: true: mean distance data 2 4.0e-03 nats" in verdicts(rows(4e-3))[0]
    assert "within rounding: NOT true" in verdicts(rows(6e-3))[0]


def test_the_verdicts_name_speeds_moves_kernels_and_what_did_not_run():
    _, speed, moved, kernel, absent = verdicts(rows(1e-3))
    assert "andrea data 2 18,000 (90%), torch ddp 15,000 (unknown)" in speed
    assert moved.endswith("by 3.0e-04 (data 2 → one device)")
    assert kernel == "triton, m, data 2: 34 bytes are sent; off by 5.0e-01 at most"
    assert absent == "not run: heads 2 (1 rows): needs a GPU"
    assert title(rows(0.0)) == "On 2 devices a mesh keeps 90% of 2 times the speed of one"


def test_the_table_has_every_timed_row_and_the_figure_a_panel_a_model():
    assert mesh_tables(rows(0.0))[0].row_count == 6
    assert len(many_devices([*rows(0.0), *({**row, "model": "n"} for row in rows(0.0))], "a CPU").axes) == 2
    assert title([ONE]) == "Training on several devices"
    assert many_devices([ONE], "a CPU").axes == []


def test_exposed_is_what_is_sent_while_nothing_is_computed_and_idle_is_neither():
    events = [("gemm", 0.0, 4.0), ("ncclDevKernel_AllReduce", 3.0, 6.0), ("norm", 8.0, 10.0)]
    assert _of_events(events) == pytest.approx({"communicating": 0.3, "exposed": 0.2, "idle": 0.2})
    assert _of_events([]) == {}
    assert covered([(5.0, 6.0), (0.0, 3.0), (1.0, 2.0), (2.5, 4.0)]) == 5.0


@pytest.mark.parametrize("steps", [["3", "4"], ["0"]])
def test_steps_that_fit_no_config_are_refused(andrea, tiny_config, steps):
    code, _, err = andrea("bench", "mesh", tiny_config, "--steps", *steps)
    assert code == 2
    assert "--steps" in err


def test_a_misspelt_part_and_a_single_device_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match=r'part must be one of .*, not "losess" \(did you mean "losses"\?\)'):
        bench_mesh(tmp_path, configs=[], steps=[], parts=["losess"])
    with pytest.raises(UserError, match="bench mesh: needs several devices, and there is one"):
        bench_mesh(tmp_path, configs=[], steps=[])
    assert not list(tmp_path.iterdir())
