"""GPT-2 models in Hugging Face's format, both ways: a folder with config.json and model.safetensors.

GPT-2 (Radford et al. 2019, section 2.3) is the decoder of `model.py` with learned positions and

    norm = "layer", norm_weights = true, biases = true, activation = "gelu" (the tanh form), tied_embeddings = true

Its matrices are stored [in, out], and its c_attn is W_QKV: columns q | k | v, heads contiguous in each. So every tensor
is one parameter by another name, but for lm_head = W_Uᵀ, and for the vocabulary: ids 0 and `bos_token_id` change places
(see `tokenizer_files.py`).
"""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from andrea_jax.config import Model
from andrea_jax.conversion import convert
from andrea_jax.errors import UserError, did_you_mean
from andrea_jax.interop.files import read_object
from andrea_jax.interop.tokenizer_files import exchanged
from andrea_jax.model import Params, abstract
from andrea_jax.runs import write_atomically

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ACTIVATIONS = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu"}  # the first two are one function
# what config.json leaves out has Hugging Face's default (GPT2Config)
DEFAULTS = {
    "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None,
    "activation_function": "gelu_new", "tie_word_embeddings": True, "bos_token_id": 50256,
}  # fmt: skip
# key -> (the one value that `model.py` computes, Hugging Face's default)
ONLY = {
    "model_type": ("gpt2", None),
    "layer_norm_epsilon": (1e-5, 1e-5),
    "scale_attn_weights": (True, True),
    "scale_attn_by_inverse_layer_idx": (False, False),
    "reorder_and_upcast_attn": (False, False),
    "add_cross_attention": (False, False),
}
NAMES = {
    "W_E": "wte.weight", "W_P": "wpe.weight", "W_U": "lm_head.weight",
    "norm_final.gain": "ln_f.weight", "norm_final.b_norm": "ln_f.bias",
    "norm_attention.gain": "ln_1.weight", "norm_attention.b_norm": "ln_1.bias",
    "attention.projection.W_QKV": "attn.c_attn.weight", "attention.projection.b_QKV": "attn.c_attn.bias",
    "attention.projection.W_O": "attn.c_proj.weight", "attention.projection.b_O": "attn.c_proj.bias",
    "norm_mlp.gain": "ln_2.weight", "norm_mlp.b_norm": "ln_2.bias",
    "mlp.W_in": "mlp.c_fc.weight", "mlp.b_in": "mlp.c_fc.bias",
    "mlp.W_out": "mlp.c_proj.weight", "mlp.b_out": "mlp.c_proj.bias",
}  # fmt: skip
_MASK = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")  # the causal mask, which older files hold as a tensor


def read_config(folder: Path) -> tuple[Model, int]:
    """(the model, the id of BOS in the folder's own numbering) of a folder's config.json.

    Raises UserError for a value that `model.py` does not compute, naming the file, the key and what is expected.
    """
    path = folder / CONFIG
    written = read_object(path)
    values = DEFAULTS | {key: default for key, (_, default) in ONLY.items()} | written
    for key, (expected, _) in ONLY.items():
        if values[key] != expected:
            raise UserError(f"{path}: {key} = {json.dumps(values[key])}: must be {json.dumps(expected)}")
    if values["activation_function"] not in ACTIVATIONS:
        names = ", ".join(map(json.dumps, ACTIVATIONS))
        text = f"must be one of {names}{did_you_mean(str(values['activation_function']), ACTIVATIONS)}"
        raise UserError(f"{path}: activation_function = {json.dumps(values['activation_function'])}: {text}")
    for key in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner"):
        if not (type(values[key]) is int and values[key] > 0) and (key, values[key]) != ("n_inner", None):
            raise UserError(f"{path}: {key} = {json.dumps(values[key])}: must be a whole number above 0")
    bos = values["bos_token_id"]
    if type(bos) is not int or not 0 <= bos < values["vocab_size"]:
        text = f"must be a token id, below vocab_size = {values['vocab_size']}"
        raise UserError(f"{path}: bos_token_id = {json.dumps(bos)}: {text}")
    return _model(values), bos


def _model(values: dict) -> Model:
    return Model(
        vocab_size=values["vocab_size"], seq_len=values["n_positions"], d_model=values["n_embd"],
        n_layer=values["n_layer"], n_head=values["n_head"], d_mlp=values["n_inner"], norm="layer", norm_weights=True,
        activation=ACTIVATIONS[values["activation_function"]], biases=True,  # pyright: ignore[reportArgumentType]
        tied_embeddings=bool(values["tie_word_embeddings"]),
    )  # fmt: skip


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: one, or those that its index names. UserError where there is none."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        of_tensor = read_object(folder / INDEX).get("weight_map")
        if isinstance(of_tensor, dict) and of_tensor:
            return [folder / Path(name).name for name in sorted(set(map(str, of_tensor.values())))]
        raise UserError(f"{folder / INDEX}: must have a weight_map, from tensors to files")
    other = next(iter(sorted(folder.glob("*.bin"))), None)
    hint = f"; {other.name} is of torch: save it with save_pretrained(..., safe_serialization=True)" if other else ""
    raise UserError(f"{folder}: has neither {WEIGHTS} nor {INDEX}{hint}")


def read_params(folder: Path, m: Model, bos: int) -> Params:
    """The parameters of model m (`read_config`), float32 whatever the files hold; fused, BOS at id 0.

    Raises UserError where a file is damaged, a tensor is missing, unknown, of another shape, not of floats, or has a
    number that is not finite.
    """
    shapes, found = abstract(m), {}
    expected = {tensor_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(shapes)}
    for file, name, tensor in _tensors(weight_files(folder)):
        plain = name.removeprefix("transformer.")
        if _MASK.fullmatch(plain):
            continue
        if plain not in expected | {NAMES["W_U"]}:
            raise UserError(f"{file}: has a tensor {name}, unknown to a GPT-2{did_you_mean(plain, expected)}")
        if not jnp.issubdtype(tensor.dtype, jnp.floating):
            raise UserError(f"{file}: {name} is {tensor.dtype}, must be floating-point")
        found[plain] = tensor
    missing = sorted(expected - found.keys())
    if missing:
        raise UserError(f"{folder}: {len(missing)} of {len(expected)} tensors are missing, the first is {missing[0]}")
    head = found.get(NAMES["W_U"])
    if m.tied_embeddings and head is not None and not np.array_equal(head, found[NAMES["W_E"]]):
        raise UserError(f"{folder / CONFIG}: tie_word_embeddings = true, and lm_head.weight is not wte.weight")

    def parameter(path: tuple, shape: jax.ShapeDtypeStruct) -> Array:
        name = tensor_name(path)
        tensor = _checked(folder, name, found[name], shape.shape[::-1] if name == NAMES["W_U"] else shape.shape)
        return _exchange(name, tensor, bos).T if name == NAMES["W_U"] else _exchange(name, tensor, bos)

    return jax.tree_util.tree_map_with_path(parameter, shapes)


def _tensors(files: list[Path]) -> Iterator[tuple[Path, str, Array]]:
    for file in files:
        try:
            with safe_open(file, framework="flax") as opened:  # numpy itself has no bfloat16
                for name in opened.keys():  # noqa: SIM118
                    yield file, name, opened.get_tensor(name)
        except FileNotFoundError:
            raise UserError(f"{file}: no such file, and {INDEX} names it") from None
        except SafetensorError as error:
            raise UserError(f"{file}: is cut short or no safetensors file ({error})") from None


def _checked(folder: Path, name: str, tensor: Array, shape: tuple[int, ...]) -> Array:
    if tensor.shape != shape:
        raise UserError(f"{folder}: {name} is {list(tensor.shape)}, and {CONFIG} makes it {list(shape)}")
    tensor = tensor.astype(jnp.float32)
    if not bool(jnp.isfinite(tensor).all()):
        raise UserError(f"{folder}: {name} has numbers that are not finite")
    return tensor


def tensor_name(path: tuple) -> str:
    """The name of the tensor that holds the parameter at a path of the (fused) parameter tree."""
    keys = [str(entry.key) for entry in path]
    return f"h.{keys[1]}.{NAMES['.'.join(keys[2:])]}" if keys[0] == "layers" else NAMES[".".join(keys)]


def _exchange[Table: (Array, np.ndarray)](name: str, tensor: Table, bos: int) -> Table:
    """Rows 0 and `bos` of a tensor with a row a token change places; any other is returned as it is."""
    return tensor[exchanged(len(tensor), bos)] if name in (NAMES["W_E"], NAMES["W_U"]) else tensor


def write(m: Model, params: Params, folder: Path, bos: int = 0) -> None:
    """Writes config.json and model.safetensors, which `transformers.GPT2LMHeadModel` loads with equal logits.

    Biases, gains and biases of norms that the model does not have are written as zeros and ones. `bos`: the id that BOS
    gets. Raises UserError for a model that is no GPT-2, saying what it has and GPT-2 has not.
    """
    refuse(m)
    m, params = convert(m, params, "fused", "one")
    whole = dataclasses.replace(m, norm_weights=True, biases=True)

    tensors = {}
    for path, shape in jax.tree_util.tree_leaves_with_path(abstract(whole)):
        name, value = tensor_name(path), _at(params, path)
        if value is None:
            value = (np.ones if name.endswith("weight") else np.zeros)(shape.shape, np.float32)
        head = name == NAMES["W_U"]
        value = _exchange(name, np.asarray(value.T if head else value, np.float32), bos)
        tensors[name if head else f"transformer.{name}"] = np.ascontiguousarray(value)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})  # as transformers marks its own
    (folder / WEIGHTS).chmod(0o644)  # the library makes it private
    write_atomically(folder / CONFIG, json.dumps(_config(m, bos), indent=2) + "\n")


def _at(params: Params, path: tuple) -> Array | None:
    """The parameter at a path of the tree; None where this model has none there."""
    for entry in path:
        if entry.key not in params:
            return None
        params = params[entry.key]
    return params  # pyright: ignore[reportReturnType]


def refuse(m: Model) -> None:
    """UserError where no GPT-2 computes what the model does."""
    only = {"positions": "learned", "norm": "layer", "w_o": "free"}
    wrong = [
        f'model.{key} = "{getattr(m, key)}": must be "{value}"'
        for key, value in only.items()
        if getattr(m, key) != value
    ]
    if m.kv_heads != m.n_head:
        wrong.append(f"model.n_kv_head = {m.kv_heads}: must be n_head = {m.n_head}")
    if len(set(m.layer_heads) | {m.n_head}) > 1:
        wrong.append(f"model.heads_per_layer = {list(m.layer_heads)}: every layer must have all {m.n_head} heads")
    if not m.mlp_width:
        wrong.append("model.d_mlp = 0: every layer must have an MLP")
    if wrong:
        raise UserError(f"{'; '.join(wrong)}, in the GPT-2 format")


def _config(m: Model, bos: int) -> dict:
    activation = next(name for name, ours in ACTIVATIONS.items() if ours == m.activation)
    return {
        "architectures": ["GPT2LMHeadModel"], **{key: value for key, (value, _) in ONLY.items()},
        "vocab_size": m.vocab_size, "n_positions": m.seq_len, "n_ctx": m.seq_len, "n_embd": m.d_model,
        "n_layer": m.n_layer, "n_head": m.n_head, "n_inner": m.mlp_width, "activation_function": activation,
        "tie_word_embeddings": m.tied_embeddings, "bos_token_id": bos, "eos_token_id": bos, "dtype": "float32",
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
    }  # fmt: skip
