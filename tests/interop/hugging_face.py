"""Hugging Face folders of tiny random GPT-2 models, written by hand: config, tensors, tokenizer."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from safetensors.flax import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

VOCAB, BOS, POSITIONS, D, HEADS, LAYERS, INNER = 307, 292, 37, 24, 3, 2, 53
CONFIG = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCAB, "n_positions": POSITIONS,
    "n_embd": D, "n_head": HEADS, "n_layer": LAYERS, "n_inner": INNER, "activation_function": "gelu_new",
    "bos_token_id": BOS, "eos_token_id": BOS, "layer_norm_epsilon": 1e-5,
}  # fmt: skip
TEXT = "def f(a, [b]):\n    return self.x({c: (a)})\n# the words of the tokenizer, the words again, naïve\n"


def random_tensors(*, tied: bool = True) -> dict[str, np.ndarray]:
    """float32 numbers of the size of 0.5 by name, without "transformer."; gains around 1."""
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (VOCAB, D), "wpe.weight": (POSITIONS, D)}
    for h in (f"h.{i}." for i in range(LAYERS)):
        shapes |= {f"{h}ln_1.weight": (D,), f"{h}ln_1.bias": (D,), f"{h}ln_2.weight": (D,), f"{h}ln_2.bias": (D,)}
        for name, n_in, n_out in (
            ("attn.c_attn", D, 3 * D), ("attn.c_proj", D, D), ("mlp.c_fc", D, INNER), ("mlp.c_proj", INNER, D),
        ):  # fmt: skip
            shapes |= {f"{h}{name}.weight": (n_in, n_out), f"{h}{name}.bias": (n_out,)}
    shapes |= {"ln_f.weight": (D,), "ln_f.bias": (D,)}
    shapes |= {} if tied else {"lm_head.weight": (VOCAB, D)}
    rng = np.random.default_rng(11)
    return {
        name: (rng.normal(size=shape) * 0.5 + (name.endswith("weight") and "ln_" in name)).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_tensors(path: Path, tensors: dict[str, np.ndarray], prefix: str = "transformer.", dtype: str = "float32"):
    """One safetensors file, by the library itself; floats as `dtype`, bfloat16 as well."""
    renamed = {name if name.startswith("lm_head") else prefix + name: x for name, x in tensors.items()}
    arrays = {name: jnp.asarray(x, dtype if x.dtype == np.float32 else x.dtype) for name, x in renamed.items()}
    save_file(arrays, path, metadata={"format": "pt"})


def train_tokenizer() -> Tokenizer:
    """GPT-2's kind of tokenizer: 256 bytes, 36 merges, and <|endoftext|> last."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner.train_from_iterator(
        [TEXT] * 3, trainers.BpeTrainer(vocab_size=BOS, initial_alphabet=alphabet, show_progress=False)
    )
    assert learner.get_vocab_size() == BOS
    learner.add_special_tokens(["<|endoftext|>"])
    return learner


def write_folder(folder: Path, tensors: dict[str, np.ndarray] | None = None, **changes: object) -> Path:
    """config.json with `changes`, model.safetensors and tokenizer.json in a new folder."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    write_tensors(folder / "model.safetensors", random_tensors() if tensors is None else tensors)
    train_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
