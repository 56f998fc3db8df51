"""Whole benchmarks, tiny: the rows, the files and what is said of those who did not run."""

import json

import pandas as pd
import pytest

from andrea_jax import benchmarks, cli
from andrea_jax.benchmarks import attention, layout, peers, programs, results, timing
from andrea_jax.benchmarks.head_dim import Size
from andrea_jax.benchmarks.projections import Width
from andrea_jax.benchmarks.shapes import Shape
from andrea_jax.errors import UserError

TINY = Shape(1, 17, 3, 8)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(timing, "TARGET", 1e-4)
    monkeypatch.setattr(programs, "HOST", 2.0)  # no chain: compiling takes most of a tiny benchmark
    monkeypatch.setattr(results, "limits", lambda dtype, repeats: {"ceiling_tflops": 1.5, "smallest_us": 0.25})


def read(folder, name: str) -> dict:
    found = json.loads((folder / f"{name}.json").read_text())
    assert found["benchmark"] == name and found["device"]["platform"] == "cpu" and found["finished"] is not None
    assert {"date", "command", "commit", "versions", "settings", "ceiling_tflops", "smallest_us"} <= found.keys()
    table = pd.read_csv(folder / f"{name}.csv")
    assert len(table) == len(found["rows"]) == len(pd.read_parquet(folder / f"{name}.parquet"))
    return found


def test_attention_has_a_row_for_each_contender_and_pass_and_says_who_is_absent(tmp_path):
    benchmarks.bench_attention(tmp_path, [TINY], ["reference", "cudnn"], ["jax-xla", "torch-flex"], repeats=2)
    found = read(tmp_path, "attention")
    rows = {(row["contender"], row["passes"]): row for row in found["rows"]}
    passes = ["forward", "forward + entropy", "forward + backward"]
    backends = [(name, one) for name in ("reference", "cudnn") for one in passes]
    assert list(rows) == [*backends, ("jax-xla", "forward"), ("jax-xla", "forward + backward")]
    assert all("needs a CUDA device" in rows["cudnn", one]["reason"] for one in passes)
    assert found["settings"]["absent"] == {"torch-flex": "needs a CUDA device"}
    row, peer = rows["reference", "forward"], rows["jax-xla", "forward"]
    assert row["against"] == "jax-xla, forward" and row["ratio"] == pytest.approx(row["us"] / peer["us"])
    assert row["tflops"] == pytest.approx(2 * 3 * 17**2 * 8 / row["us"] / 1e6)
    assert rows["reference", "forward + entropy"]["against"] == "reference, forward" and peer["ratio"] == 1
    assert row["fastest_us"] <= row["us"] <= row["slowest_us"] and row["repeats"] == 2
    assert {"attention.png", "attention.svg"} <= {path.name for path in tmp_path.iterdir()}


def test_without_a_single_time_there_is_no_figure_and_every_row_says_why(tmp_path):
    benchmarks.bench_attention(tmp_path, [TINY], ["cudnn"], [], repeats=2)
    assert all(row["us"] is None and row["reason"] for row in read(tmp_path, "attention")["rows"])
    assert not list(tmp_path.glob("*.png"))


def test_what_was_measured_before_a_stop_is_on_disk(tmp_path, monkeypatch):
    measure, groups = timing.measure, []

    def stop_at_the_second(things, repeats):
        groups.append(things)
        if len(groups) == 2:
            raise KeyboardInterrupt
        return measure(things, repeats)

    monkeypatch.setattr(timing, "measure", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        benchmarks.bench_attention(tmp_path, [TINY, TINY], [], ["jax-xla"], repeats=2)
    found = json.loads((tmp_path / "attention.json").read_text())
    assert len(found["rows"]) == 2 and found["finished"] is None


@pytest.mark.parametrize(
    ("backends", "peers_asked", "expected"),
    [
        (["chunkt"], [], 'backend must be one of .*"chunked"'),
        (["chunked"], ["torch-flesh"], 'did you mean "torch-flash"'),
    ],
)
def test_a_name_that_is_no_contender_is_a_user_error_with_the_nearest(tmp_path, backends, peers_asked, expected):
    with pytest.raises(UserError, match=expected):
        benchmarks.bench_attention(tmp_path, [TINY], backends, peers_asked)


def test_a_peer_that_cannot_be_imported_says_so(monkeypatch):
    monkeypatch.setattr(peers.jax, "default_backend", lambda: "gpu")
    assert "cannot be imported: ModuleNotFoundError" in str(peers.why_absent("tokamax"))
    assert peers.why_absent("jax-xla") is None


def test_projections_count_one_three_three_and_three_products_a_head_and_the_command_prints_json(tmp_path, capsys):
    asked = ["--widths", "24,3", "--tokens", "11", "--repeats", "2", "--json", "--out", str(tmp_path)]
    assert cli.main(["bench", "projections", *asked]) == 0
    found = read(tmp_path, "projections")
    assert json.loads(capsys.readouterr().out) == found
    counts = [(row["form"], row["passes"], row["matmuls"]) for row in found["rows"]]
    forms = {"fused, one matrix": 1, "fused, three matrices": 3, "per-head, einsum": 3, "per-head, loop": 9}
    assert counts == [
        (form, *it) for form, n in forms.items() for it in (("forward", n), ("forward + backward", 3 * n))
    ]
    assert found["settings"]["thresholds_mb"] == [None] and {row["threshold_mb"] for row in found["rows"]} == {None}
    assert [row["ratio"] for row in found["rows"][:2]] == [1, 1]
    assert found["verdicts"][0].startswith("C3, one call instead of one a head: true")


def test_heads_that_do_not_share_d_model_are_a_user_error(tmp_path):
    with pytest.raises(UserError, match="d_model = 25 must be a multiple of n_head = 3"):
        benchmarks.bench_projections(tmp_path, [Width(25, 3)], [11])


@pytest.mark.slow
def test_layout_times_arrangements_and_named_grids_and_counts_launches(tmp_path, monkeypatch):
    monkeypatch.setitem(layout.GRIDS, "reference", {"a": layout.z_of("reference"), "b": layout.z_of("chunked")})
    benchmarks.bench_layout(tmp_path, [TINY], ["reference"], [1, 3], repeats=2)
    rows = read(tmp_path, "layout")["rows"]
    of = {question: [row for row in rows if row["question"] == question] for question in ("layout", "grid", "launches")}
    assert [row["variant"] for row in of["layout"]] == [it.name for it in layout.ARRANGEMENTS for _ in range(2)]
    assert [(row["variant"], row["passes"]) for row in of["grid"]] == [("a", "forward"), ("b", "forward")]
    assert of["grid"][0]["ratio"] == 1 and of["grid"][1]["ratio"] == of["grid"][1]["us"] / of["grid"][0]["us"]
    counts = {(row["variant"], row["passes"], row["n_head"]): row["launches"] for row in of["launches"]}
    assert counts["a call a head", "forward", 3] > counts["in place", "forward", 3] > 0
    (alone,) = [row for row in rows if row["question"] == "transposes"]
    assert alone["gb_s"] == pytest.approx(2 * 3 * 4 * 17 * 3 * 8 / alone["us"] / 1e3)


@pytest.mark.slow
def test_head_dim_keeps_d_model_and_times_a_training_step(tmp_path):
    size = Size(batch=1, seq=11, d_model=48, n_layer=1, vocab_size=257)
    benchmarks.bench_head_dim(tmp_path, [8, 24], ["reference"], size, repeats=2)
    rows = read(tmp_path, "head-dim")["rows"]
    narrow, wide = (8, 6, 48), (24, 2, 48)
    sizes = [(row["head_dim"], row["n_head"], row["d_model"]) for row in rows]
    assert sizes == [narrow] * 2 + [wide] * 2 + [narrow, wide]
    assert [row["passes"] for row in rows] == ["forward", "forward + backward"] * 2 + ["training step"] * 2
    assert all(row["reason"] is None and row["us"] > 0 for row in rows)


@pytest.mark.slow
def test_the_command_prints_the_table_the_verdicts_and_where_everything_is(tmp_path, capsys):
    out = tmp_path / "made"
    asked = ["--shapes", "1,17,3,8", "--backends", "reference", "--peers", "jax-xla", "--repeats", "2"]
    assert cli.main(["bench", "attention", *asked, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "1×17×3×8" in said and "forward: the fastest backend is" in said and f"written to {out}" in said


@pytest.mark.parametrize("wrong", [["attention", "--shapes", "1,17,3"], ["projections", "--widths", "24"], ["speed"]])
def test_what_the_command_does_not_understand_is_exit_code_2(wrong):
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", *wrong])
    assert stop.value.code == 2


def test_named_sets_of_shapes_are_those_of_the_benchmark():
    assert attention.SETS["all"] == attention.SETS["short"] + attention.SETS["long"]
    assert attention.SETS["short"][0] == (32, 1024, 12, 64)
