"""GPT-2 folders: the logits of an independent GPT-2, the same bits back, and one sentence for what does not fit."""

import functools
import json
import re
from pathlib import Path

import jax
import numpy as np
import numpy_gpt2  # pyright: ignore[reportMissingImports]
import pytest
from hugging_face import (  # pyright: ignore[reportMissingImports]
    BOS,
    HEADS,
    POSITIONS,
    VOCAB,
    random_tensors,
    write_folder,
    write_tensors,
)  # fmt: skip
from safetensors.numpy import load_file

from andrea_jax import model
from andrea_jax.config import Model
from andrea_jax.conversion import convert
from andrea_jax.errors import UserError
from andrea_jax.interop import exchanged, gpt2

IDS = np.random.default_rng(3).integers(0, VOCAB, POSITIONS)
IDS[[0, 5, 11]] = BOS, 0, BOS  # both ids that change places


@functools.partial(jax.jit, static_argnums=0)
def logits_of(m: Model, params: dict, tokens: np.ndarray) -> jax.Array:
    return model.bind(m, params, backend="reference")(tokens)


def read(folder: Path) -> tuple[Model, dict, int]:
    m, bos = gpt2.read_config(folder)
    return m, gpt2.read_params(folder, m, bos), bos


def outside_logits(m: Model, params: dict, bos: int) -> np.ndarray:
    """logits [seq, vocab] on IDS, all in the folder's own numbering."""
    place = exchanged(m.vocab_size, bos)
    return np.asarray(logits_of(m, params, place[IDS][None].astype(np.int32)))[0][:, place]


@pytest.mark.parametrize(
    ("tied", "activation"), [(True, "gelu_new"), (False, "gelu_pytorch_tanh"), (False, "relu")], ids=str
)
def test_logits_equal_those_of_a_numpy_float64_gpt2(tmp_path: Path, tied: bool, activation: str):
    tensors = random_tensors(tied=tied)
    folder = write_folder(tmp_path / "m", tensors, activation_function=activation, tie_word_embeddings=tied)
    expected = numpy_gpt2.forward(tensors, HEADS, IDS, activation)
    assert np.abs(expected).max() > 5  # numbers that matter
    np.testing.assert_allclose(outside_logits(*read(folder)), expected, atol=1e-4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "gpt2")


def same(params: dict, other: dict) -> bool:
    return jax.tree.all(jax.tree.map(np.array_equal, params, other))


def test_shards_old_names_and_causal_masks_give_the_same_parameters(folder: Path, tmp_path: Path):
    m, params, _ = read(folder)
    tensors, other = random_tensors(), write_folder(tmp_path / "other")
    masks = {f"h.{i}.attn.bias": np.tril(np.ones((1, 1, POSITIONS, POSITIONS), bool)) for i in range(2)}
    write_tensors(other / "model.safetensors", tensors | masks | {"lm_head.weight": tensors["wte.weight"]}, prefix="")
    assert same(read(other)[1], params)
    (other / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[:7], "b.safetensors": names[7:]}
    for file, held in parts.items():
        write_tensors(other / file, {name: tensors[name] for name in held})
    index = {"weight_map": {f"transformer.{name}": file for file, held in parts.items() for name in held}}
    (other / gpt2.INDEX).write_text(json.dumps(index))
    assert same(read(other)[1], params)
    (other / "b.safetensors").unlink()
    with pytest.raises(UserError, match=r"b\.safetensors: no such file, and model\.safetensors\.index\.json names it"):
        gpt2.read_params(other, m, BOS)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_files_are_read_as_the_float32_numbers_they_hold(folder: Path, dtype: str):
    tensors = random_tensors()
    write_tensors(folder / "model.safetensors", tensors, dtype=dtype)
    found = read(folder)[1]["layers"]["1"]["mlp"]["W_in"]
    assert found.dtype == np.float32
    held = jax.numpy.asarray(tensors["h.1.mlp.c_fc.weight"]).astype(dtype).astype("float32")
    assert np.array_equal(found, held) and not np.array_equal(found, tensors["h.1.mlp.c_fc.weight"])


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("model_type", "gpt_neo", 'model_type = "gpt_neo": must be "gpt2"'),
        ("model_type", None, 'model_type = null: must be "gpt2"'),
        ("layer_norm_epsilon", 1e-6, "layer_norm_epsilon = 1e-06: must be 1e-05"),
        ("scale_attn_weights", False, "scale_attn_weights = false: must be true"),
        ("scale_attn_by_inverse_layer_idx", True, "scale_attn_by_inverse_layer_idx = true: must be false"),
        ("reorder_and_upcast_attn", True, "reorder_and_upcast_attn = true: must be false"),
        ("add_cross_attention", True, "add_cross_attention = true: must be false"),
        ("activation_function", "gelu", 'activation_function = "gelu": must be one of "gelu_new", "gelu_pytorch_tanh"'),
        ("n_inner", 0, "n_inner = 0: must be a whole number above 0"),
        ("n_embd", "24", 'n_embd = "24": must be a whole number above 0'),
        ("bos_token_id", 307, "bos_token_id = 307: must be a token id, below vocab_size = 307"),
        ("bos_token_id", None, "bos_token_id = null: must be a token id"),
    ],
)
def test_a_config_that_the_model_does_not_compute_is_refused_by_file_key_and_value(
    folder: Path, key: str, value: object, expected: str
):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(UserError, match=re.escape(f"{path}: {expected}")):
        gpt2.read_config(folder)


def test_what_a_config_leaves_out_is_gpt2_small(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    m, bos = gpt2.read_config(tmp_path)
    assert (m.vocab_size, m.seq_len, m.d_model, m.n_layer, m.n_head, m.mlp_width) == (50257, 1024, 768, 12, 12, 3072)
    assert (m.norm, m.norm_weights, m.biases, m.activation, m.tied_embeddings) == ("layer", True, True, "gelu", True)
    assert bos == 50256
    assert sum(leaf.size for leaf in jax.tree.leaves(model.abstract(m))) == 124_439_808  # as published


def broken(change: str) -> dict[str, np.ndarray]:
    tensors = random_tensors()
    if change == "missing":
        del tensors["h.1.ln_2.bias"]
    if change == "unknown":
        tensors["h.1.mlp.c_fk.weight"] = np.ones(3, np.float32)
    if change == "shape":
        tensors["wpe.weight"] = tensors["wpe.weight"][:36]
    if change == "integers":
        tensors["h.0.ln_1.bias"] = np.ones(24, np.int32)
    if change == "infinite":
        tensors["h.0.ln_1.bias"][7] = np.inf
    if change == "untied":
        tensors["lm_head.weight"] = tensors["wte.weight"] + 1
    return tensors


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("missing", r"1 of 28 tensors are missing, the first is h\.1\.ln_2\.bias"),
        ("unknown", r'has a tensor transformer\.h\.1\.mlp\.c_fk\.weight, unknown .*mean "h\.1\.mlp\.c_fc\.weight"'),
        ("shape", r"wpe\.weight is \[36, 24\], and config\.json makes it \[37, 24\]"),
        ("integers", r"transformer\.h\.0\.ln_1\.bias is int32, must be floating-point"),
        ("infinite", r"h\.0\.ln_1\.bias has numbers that are not finite"),
        ("untied", r"tie_word_embeddings = true, and lm_head\.weight is not wte\.weight"),
    ],
)
def test_tensors_that_do_not_fit_the_config_are_refused_by_name(folder: Path, change: str, expected: str):
    write_tensors(folder / "model.safetensors", broken(change))
    with pytest.raises(UserError, match=expected):
        read(folder)


def test_a_file_that_is_cut_short_foreign_or_of_torch_is_refused_with_its_name(folder: Path):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for content in (b"", b"no tensors in here", whole[:-5], whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"{path}: is cut short or no safetensors file"):
            read(folder)
    path.rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"has neither model\.safetensors nor .*pytorch_model\.bin is of torch"):
        read(folder)
    (folder / "config.json").write_text("[1]")
    with pytest.raises(UserError, match=r"config\.json: must hold one JSON object"):
        read(folder)
    (folder / "config.json").rename(folder / "confik.json")
    with pytest.raises(UserError, match=r'config\.json: No such file .*did you mean "confik\.json"'):
        read(folder)


def test_reading_and_writing_gives_the_same_tensors_bit_for_bit(tmp_path: Path):
    for tied in (True, False):
        tensors = random_tensors(tied=tied)
        m, params, bos = read(write_folder(tmp_path / f"from-{tied}", tensors, tie_word_embeddings=tied))
        there = tmp_path / f"to-{tied}"
        there.mkdir()
        gpt2.write(*convert(m, params, "per_head"), there, bos)
        written = {name.removeprefix("transformer."): x for name, x in load_file(there / "model.safetensors").items()}
        assert written.keys() == tensors.keys()
        assert all(np.array_equal(written[name], tensors[name]) for name in tensors)
        assert read(there)[0] == m and read(there)[2] == BOS


def test_a_model_without_biases_and_gains_is_a_gpt2_with_zeros_and_ones(tmp_path: Path):
    m = Model(vocab_size=VOCAB, seq_len=POSITIONS, d_model=24, n_layer=2, n_head=3, norm="layer", projection="per_head")
    rng = np.random.default_rng(5)
    params = jax.tree.map(lambda x: jax.numpy.asarray(rng.normal(size=x.shape) * 0.5, "float32"), model.abstract(m))
    gpt2.write(m, params, tmp_path)
    written = {name.removeprefix("transformer."): x for name, x in load_file(tmp_path / "model.safetensors").items()}
    assert not written["h.1.mlp.c_fc.bias"].any() and (written["ln_f.weight"] == 1).all()
    expected = numpy_gpt2.forward(
        written, 3, IDS, json.loads((tmp_path / "config.json").read_text())["activation_function"]
    )
    np.testing.assert_allclose(outside_logits(m, params, 0), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"norm": "rms"}, 'model.norm = "rms": must be "layer", in the GPT-2 format'),
        ({"positions": "rotary"}, 'model.positions = "rotary": must be "learned", in'),
        ({"w_o": "identity"}, 'model.w_o = "identity": must be "free", in'),
        ({"n_kv_head": 1}, "model.n_kv_head = 1: must be n_head = 3, in"),
        ({"heads_per_layer": (3, 1)}, "model.heads_per_layer = [3, 1]: every layer must have all 3 heads, in"),
        (
            {"d_mlp": 0, "norm": "rms"},
            'model.norm = "rms": must be "layer"; model.d_mlp = 0: every layer must have an MLP',
        ),
    ],
)
def test_a_model_that_is_no_gpt2_is_not_exported_and_the_reason_is_its_config(changes: dict, expected: str):
    m = Model(**({"vocab_size": 11, "seq_len": 7, "d_model": 24, "n_layer": 2, "n_head": 3, "norm": "layer"} | changes))
    with pytest.raises(UserError, match=re.escape(expected)):
        gpt2.refuse(m)
