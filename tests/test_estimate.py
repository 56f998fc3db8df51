"""What training takes, against sums made by hand, and beside what XLA says of the compiled step."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from andrea_jax import arguments, config_files, estimate, model
from andrea_jax.benchmarks.head_dim import step_flops
from andrea_jax.config import Compute, Data, Experiment, Model, Optim, Train
from andrea_jax.config_mesh import Mesh
from andrea_jax.errors import UserError
from andrea_jax.estimate import estimate as estimated
from andrea_jax.training import make_step, optimizer

CONFIGS = Path(__file__).parent.parent / "configs"
GB = 10**9
# head_dim 16, two query heads read one key-value head
TINY = Experiment(
    model=Model(vocab_size=11, seq_len=40, d_model=32, n_layer=3, n_head=2, n_kv_head=1, d_mlp=7),
    data=Data(seq_len=37),
    train=Train(steps=13, batch_size=6),
)
N = 11 * 32 + 40 * 32 + 32 * 11 + 3 * (2 * 32 * 32 + 2 * 32 * 16 + 2 * 32 * 7)
TOKENS = 6 * 37


def changed(e: Experiment = TINY, **sections: dict) -> Experiment:
    return dataclasses.replace(
        e, **{name: dataclasses.replace(getattr(e, name), **new) for name, new in sections.items()}
    )


def memory(**sections: dict) -> dict[str, int]:
    return estimated(changed(**sections)).memory


def test_float32_training_on_one_device_by_hand():
    a_layer = 4 * (2 * 33 + 2 * 16 + 2 * 16 + 2 * 16 + 7) + 4 * 2  # norm(x) and 1/rms(x) twice, q, k and v, z, act; lse
    assert memory() == {
        "weights": 4 * N,
        "gradients": 4 * N,
        "optimizer": 8 * N + 8,  # two counters of steps, of Adam and of the schedule
        "activations": TOKENS * (3 * a_layer + 4 * 33),  # and those of the last norm
        "logits": TOKENS * 11 * (4 + 4),
    }


def test_bfloat16_halves_activations_and_adds_the_weights_as_they_are_multiplied():
    a_layer = 2 * (2 * 32 + 2 * 16 + 2 * 16 + 2 * 16 + 7) + 4 * 2 + 2 * 4  # 1/rms(x) stays float32
    found = memory(compute={"dtype": "bfloat16"})
    assert found["activations"] == TOKENS * (3 * a_layer + 2 * 32 + 4)
    assert found["weights multiplied"] == 2 * (N - 11 * 32 - 40 * 32)
    assert found["logits"] == TOKENS * 11 * (4 + 2)
    assert found["weights"] == 4 * N


def test_what_remat_keeps_of_a_layer_by_hand():
    none = memory()
    for remat, a_layer in (("attention_kept", 4 * 32 + 4 * 32 + 4 * 2), ("block", 4 * 32)):
        found = memory(compute={"remat": remat})
        assert found["activations"] == TOKENS * (3 * a_layer + 4 * 33)
        assert found["one block again"] * 3 == none["activations"] - TOKENS * 4 * 33


def test_a_norm_that_centres_or_has_a_gain_keeps_its_input_too():
    plain = memory()["activations"]
    for change in ({"norm": "layer"}, {"norm_weights": True}):
        assert memory(model=change)["activations"] == plain + TOKENS * 7 * (4 * 32 - 4)  # of 7 norms


def test_parts_of_a_batch_share_its_activations_and_cost_a_sum_of_gradients():
    whole, parts = memory(), memory(train={"accumulate": 3})
    assert parts["activations"] * 3 == whole["activations"]
    assert parts["logits"] * 3 == whole["logits"]
    assert parts["summed gradients"] == 4 * N


def test_a_mesh_cuts_what_each_device_holds():
    whole, cut = memory(), memory(compute={"mesh": Mesh(data=2, fsdp=3)})
    assert cut["weights"] == whole["weights"] // 3
    assert cut["optimizer"] == whole["optimizer"] // 3
    assert cut["activations"] * 6 == whole["activations"]


@pytest.mark.parametrize(("name", "a_weight"), [("adamw", 8), ("lion", 4), ("sgd", 4), ("lamb", 8)])
def test_an_optimizers_state_is_that_of_the_real_one(name: str, a_weight: int):
    assert memory(optim={"name": name})["optimizer"] == pytest.approx(a_weight * N, abs=12)


def test_adafactor_keeps_rows_and_columns_of_large_matrices():
    large = {"d_model": 128, "n_head": 8, "n_kv_head": 8, "d_mlp": 512}
    found = memory(model=large, optim={"name": "adafactor"})
    assert found["optimizer"] < found["weights"] / 10


def test_flops_a_token_of_the_smallest_by_hand():
    e = config_files.load(CONFIGS / "andrea-12m.toml")
    found = estimated(e)
    products = 6 * (4 * 384**2 + 2 * 384 * 1536) + 384 * 2305
    assert found.forward == 2 * products + 2 * 1024 * 6 * 384
    assert found.step == 3 * found.forward
    assert found.step * e.train.batch_size * 1024 == step_flops(e)  # as the benchmarks count
    assert found.tokens == 3900 * 64 * 1024
    assert found.seconds(tokens_per_s=1e6) == pytest.approx(255.5904)
    assert found.seconds(tflops=found.step / 1e6) == pytest.approx(255.5904)
    assert found.seconds() is None


def test_tied_embeddings_are_multiplied_too():
    assert estimated(changed(model={"tied_embeddings": True})).forward == estimated(TINY).forward


@pytest.mark.parametrize("name", ["andrea-12m", "andrea-120m", "andrea-480m"])
def test_every_recipe_fits_a_card_of_24_gb_at_the_tokens_a_step_it_was_written_for(name: str):
    e = config_files.load(CONFIGS / f"{name}.toml")
    assert e.train.batch_size * e.data.seq_len == (131_072 if name == "andrea-480m" else 65_536)
    found = estimated(e)
    estimate.refuse_too_large(e, found, estimate.usable(24 * GB), "a card of 24 GB")
    # also where activations take as much more as XLA was seen to take on a CPU
    assert found.total + 1.2 * found.memory["activations"] < estimate.usable(24 * GB)


def test_what_does_not_fit_is_refused_with_its_largest_parts_and_what_would_help():
    e = changed(config_files.load(CONFIGS / "andrea-480m.toml"), train={"accumulate": 1})
    with pytest.raises(UserError) as refused:
        estimate.refuse_too_large(e, estimated(e), 18 * GB, "this one")
    text = str(refused.value)
    assert "this one has 18.0 GB to use; the largest parts: activations 65.0 GB, optimizer 4.0 GB" in text
    enough = int(text.split("train.accumulate=")[1].split()[0])
    assert estimated(changed(e, train={"accumulate": enough})).total <= 18 * GB
    assert estimated(changed(e, train={"accumulate": enough // 2})).total > 18 * GB
    assert "compute.remat=block (" in text
    estimate.refuse_too_large(e, estimated(e), 200 * GB, "this one")


def test_jax_takes_a_share_of_the_card(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert estimate.usable(24 * GB) == 18 * GB
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    assert estimate.usable(24 * GB) == 12 * GB


@pytest.mark.parametrize(
    ("text", "n"), [("24GB", 24 * GB), ("0.5 GiB", 2**29), ("300MB", 300_000_000), ("2MiB", 2**21)]
)
def test_sizes_are_read_with_their_units(text: str, n: int):
    assert arguments.memory(text) == n


@pytest.mark.parametrize("text", ["24", "GB", "24TB", "-1GB", "infGB", "24GBs"])
def test_sizes_without_a_unit_or_a_number_are_refused(text: str):
    with pytest.raises(arguments.argparse.ArgumentTypeError, match="must be a size such as 24GB"):
        arguments.memory(text)


def test_the_command_prints_tables_and_json(andrea: Callable[..., tuple[int, str, str]]):
    config = CONFIGS / "andrea-12m.toml"
    code, out, err = andrea("estimate", config, "--memory", "24GB", "--tokens-per-s", "300000")
    assert (code, err) == (0, "")
    for expected in (
        "12,780,288",
        "activations",
        "8.317e+07",
        "14.2 min",
        "fits: one of 24.0 GB",
        "has 18.0 GB to use",
    ):
        assert expected in out
    code, out, _ = andrea("estimate", config, "--json", "train.steps=200")
    found = json.loads(out)
    assert found["parameters"]["total"] == 12_780_288
    assert found["memory_bytes"]["optimizer"] == 8 * 12_780_288 + 8
    assert (found["tokens"], found["seconds"], found["usable_bytes"]) == (13_107_200, None, None)


def test_the_command_refuses_with_one_message(andrea: Callable[..., tuple[int, str, str]]):
    code, out, err = andrea("estimate", CONFIGS / "andrea-480m.toml", "--memory", "8GB")
    assert (code, out) == (2, "")
    assert err.startswith("error: training needs at least 13.5 GB on a device, and one of 8.0 GB has 6.0 GB to use; ")
    assert err.count("\n") == 1


def test_training_is_refused_before_anything_is_compiled_where_the_device_says_its_memory(
    andrea: Callable[..., tuple[int, str, str]], tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(estimate, "device_memory", lambda: 10**5)
    code, _, err = andrea("train", tiny_config, "--runs", tmp_path)
    assert code == 2
    assert "error: training needs at least" in err
    assert "this one has 0.0001 GB to use" in err
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_a_cpu_does_not_say_its_memory():
    assert estimate.device_memory() is None


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["none", "attention_kept"])
def test_xla_on_a_cpu_takes_as_much_up_to_twice_as_much(remat: str):
    e = Experiment(
        model=Model(vocab_size=257, seq_len=512, d_model=64, n_layer=2, n_head=4),
        data=Data(seq_len=512, tokenizer="bytes"),
        optim=Optim(),
        train=Train(batch_size=8),
        compute=Compute(remat=remat),  # pyright: ignore[reportArgumentType]
    )
    params = model.abstract(e.model)
    state = jax.eval_shape(optimizer.make(e.optim, e.train.steps).init, params)
    tokens = jax.ShapeDtypeStruct((8, 513), jnp.int32)
    found = make_step(e).lower(params, state, tokens).compile().memory_analysis()
    arguments_and_results = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    ratio = (arguments_and_results + found.temp_size_in_bytes) / estimated(e).total
    print(f"XLA takes {ratio:.2f} times the estimate with remat {remat}")
    assert 1 <= ratio <= 2.05  # 2.00 and 1.81 when it was last looked at
