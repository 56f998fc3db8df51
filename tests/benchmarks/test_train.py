"""How fast training is: every contender's row, where the time goes, and what is said where torch is not there."""

import jax
import jax.numpy as jnp
import pytest

from andrea_jax import benchmarks, config
from andrea_jax.benchmarks import results, shares, torch_training, train
from andrea_jax.plots import train_figures

TINY = {"tiny": (config.Model(vocab_size=257, seq_len=13, d_model=16, n_layer=1, n_head=2), 3)}


@pytest.fixture
def found(tmp_path, monkeypatch, tiny_config) -> results.Results:
    """Of a tiny model, on text made up, beside a torch that takes 2 ms a step."""
    monkeypatch.setattr(results, "limits", lambda dtype, repeats: {"ceiling_tflops": 1.5, "smallest_us": 0.25})
    monkeypatch.setattr(train, "FEWEST", 20)
    monkeypatch.setattr(train, "MOST", 20)
    corpus = str(tiny_config.parent / "corpus")
    made = train._experiment

    def of_made_up_text(*sizes) -> config.Experiment:
        e = made(*sizes)
        return config.Experiment(**{**vars(e), "data": config.Data(corpus=corpus, seq_len=13, tokenizer="bytes")})

    def torch_rows(name, e, n, dataset, steps, ways) -> list[dict]:
        assert (name, n, steps, ways) == ("tiny", 1, 20, ("one",))
        return [{"us": 2000.0, "fastest_us": 1900.0, "slowest_us": 2100.0, "reason": None}]

    monkeypatch.setattr(train, "_experiment", of_made_up_text)
    monkeypatch.setattr(torch_training, "rows", torch_rows)
    return benchmarks.bench_train(tmp_path, sizes=TINY, seconds=0.05, repeats=2)


def test_each_contender_has_its_rate_and_its_ratio_to_torchs_and_the_step_the_shares_of_its_parts(
    found: results.Results, tmp_path
):
    rows = {row["contender"]: row for row in found.rows}
    assert list(rows) == [train.STEP, train.TORCH, train.LOOP]
    for row in rows.values():
        assert row["reason"] is None and row["fastest_us"] <= row["us"] <= row["slowest_us"]
        assert row["tokens_per_s"] == pytest.approx(3 * 13 / row["us"] * 1e6)
        assert row["ratio"] == pytest.approx(2000 / row["us"])
        assert row["mfu"] == pytest.approx(row["flops"] / row["us"] / 1e6 / 1.5)
    assert rows[train.STEP]["compile_s"] > 0
    assert {"train.json", "train.png", "train.svg", "train.csv", "train.parquet"} == {
        x.name for x in tmp_path.iterdir()
    }
    spent = rows[train.STEP]["shares"]
    assert sum(spent.values()) == pytest.approx(1)
    assert {"W_QKV", "attention", "W_O", "mlp", "norm", "unembed"} <= spent.keys() <= {*shares.PARTS, shares.REST}


def test_an_operation_belongs_to_the_innermost_part_of_its_name():
    assert shares.part("jit(step)/transpose(jvp(attention))/attention_backward_q/mpmd_map") == "attention"
    assert shares.part("jit(step)/jvp(mlp)/dot_general") == "mlp"
    assert shares.part("jit(step)/transpose(jvp(W_QKV))/dot_general") == "W_QKV"
    assert shares.part("jit(step)/reduce_sum") == shares.REST


def test_a_kernel_that_is_reported_under_its_own_name_belongs_to_the_part_that_calls_it(
    monkeypatch: pytest.MonkeyPatch,
):
    hlo = """
  %pallas_call.7 = f32[3] custom-call(%x), metadata={op_name="jit(step)/transpose(jvp(norm))/row_sums/pallas_call"}
  ROOT %dot.3 = f32[3] dot(%a, %b), metadata={op_name="jit(step)/jvp(mlp)/dot_general"}"""
    monkeypatch.setattr(
        shares, "profile", lambda run: {"row_sums": 3.0, "dot.3": 5.0, "pallas_call.7": 2.0, "copy.1": 10.0}
    )
    assert shares.shares(hlo, lambda: None) == {"mlp": 0.25, "norm": 0.25, "rest": 0.5}


def test_a_profile_tells_a_large_product_from_a_small_one():
    def two(x: jax.Array) -> jax.Array:
        with jax.named_scope("mlp"):
            large = x @ x
        with jax.named_scope("unembed"):
            return jnp.tanh(large[:2, :3]).sum()

    x = jnp.ones((701, 701))
    compiled = jax.jit(two).lower(x).compile()
    compiled(x)
    spent = shares.shares(compiled.as_text() or "", lambda: [compiled(x) for _ in range(5)])
    assert spent["mlp"] > 0.8


ROWS = [
    {"model": "m", "contender": name, "us": us, "ratio": 2e4 / us, "reason": None, "shares": spent}
    for name, us, spent in (
        (train.STEP, 1.6e4, {"W_QKV": 0.2, "attention": 0.3, "W_O": 0.1, "mlp": 0.4}),
        (train.LOOP, 1.7e4, None),
        (train.TORCH, 2e4, None),
    )
]


def test_what_the_rows_say_is_said_in_words():
    assert train_figures.verdicts(ROWS) == [
        "training is at least 1.15 times as fast as torch: true: m 1.18",
        "m: data, metrics and logging add 6.2% to the step",
        "m: the steps of attention take 60% of a training step's time: W_QKV 20.0%, attention 30.0%, W_O 10.0%",
    ]


def test_a_model_below_the_mark_is_not_called_true():
    slow = [{**row, "ratio": 1.1} for row in ROWS]
    assert train_figures.verdicts(slow)[0] == (
        "training is at least 1.15 times as fast as torch: NOT true of every model: m 1.10"
    )


def test_a_torch_that_is_not_there_leaves_its_reason_and_no_ratio(tmp_path):
    absent = [{**row, "ratio": None} for row in ROWS[:2]]
    absent.append({"model": "m", "contender": train.TORCH, "us": None, "reason": "needs torch"})
    assert train_figures.verdicts(absent)[-1] == "not run: torch (1 rows): needs torch"
