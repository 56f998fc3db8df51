"""Against what others have computed: `transformers` where it is installed, published heads where the weights are."""

import dataclasses
import os
from pathlib import Path

import jax
import numpy as np
import pytest

from andrea_jax.config import Model
from andrea_jax.heads import scores, targets
from andrea_jax.interop import exchanged, gpt2
from andrea_jax.model import bind, initialise

# layer.head of GPT-2 small on [BOS] and a random block twice, 60 tokens long
INDUCTION = {(5, 5): 0.94, (6, 9): 0.93, (7, 10): 0.92, (5, 1): 0.91, (7, 2): 0.85}
PREVIOUS_TOKEN = {(4, 11): 0.99}
DUPLICATE = {(0, 1), (0, 10), (3, 0)}


def test_gpt2_small_has_the_heads_that_were_published():
    folder = os.environ.get("ANDREA_GPT2")
    if not folder:
        pytest.skip(
            "needs GPT-2 small's weights: set ANDREA_GPT2 to a folder with its config.json and model.safetensors"
        )
    m, bos = gpt2.read_config(Path(folder))
    params = gpt2.read_params(Path(folder), m, bos)
    rng, n, period = np.random.default_rng(0), 20, 60
    block = np.stack([rng.permutation(m.vocab_size - 1)[:period] + 1 for _ in range(n)])  # distinct ids, never BOS
    tokens = np.concatenate([np.zeros((n, 1), int), block, block], axis=1)
    probes = {
        "induction": targets.induction(tokens), "previous": targets.previous_token(tokens),
        "duplicate": targets.duplicate_token(tokens),
    }  # fmt: skip
    found = {
        name: sums.mass.sum(axis=0) / sums.n.sum()
        for name, sums in scores.measure(m, params, tokens, probes, backend="chunked").probes.items()
    }
    for name, published in (("induction", INDUCTION), ("previous", PREVIOUS_TOKEN)):
        for head, score in published.items():
            assert found[name][head] == pytest.approx(score, abs=0.03), (name, head)
    highest = np.argsort(found["duplicate"], axis=None)[::-1][:5]
    assert {(int(i) // m.n_head, int(i) % m.n_head) for i in highest} >= DUPLICATE


def largest_difference(folder: Path, ids: np.ndarray, expected: np.ndarray) -> float:
    """Between our logits and `expected` [batch, seq, vocab], both in the folder's numbering."""
    m, bos = gpt2.read_config(folder)
    params, place = gpt2.read_params(folder, m, bos), exchanged(m.vocab_size, bos)
    found = jax.jit(lambda params, tokens: bind(m, params, backend="chunked")(tokens))(params, place[ids])
    return float(np.abs(np.asarray(found)[..., place] - expected).max())


def needs_transformers():
    for name in ("torch", "transformers"):
        pytest.importorskip(
            name, reason=f"compares with {name}, which is not installed: pip install torch transformers"
        )
    import torch
    import transformers

    return torch, transformers


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_random_weights_in_gpt2_smalls_shapes_equal_those_of_transformers(tmp_path: Path, tied: bool):
    torch, transformers = needs_transformers()
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(tie_word_embeddings=tied)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # gains and biases too
            parameter.add_(0.02 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path)
    ids = np.random.default_rng(0).integers(0, theirs.config.vocab_size, (2, 101))
    ids[:, 0] = theirs.config.bos_token_id
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()
    assert np.abs(expected).max() > 1
    assert largest_difference(tmp_path, ids, expected) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"activation": "gelu", "biases": True, "tied_embeddings": True}], ids=str)
def test_transformers_loads_an_exported_model_with_equal_logits(tmp_path: Path, changes: dict):
    torch, transformers = needs_transformers()
    m = Model(vocab_size=307, seq_len=41, d_model=72, n_layer=3, n_head=3, norm="layer", projection="per_head")
    m = dataclasses.replace(m, **changes)
    gpt2.write(m, jax.tree.map(lambda x: x * 3, initialise(m, 0)), tmp_path)
    theirs, loading = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loading.values())  # nothing missing, unexpected or of another shape
    ids = np.random.default_rng(0).integers(0, 307, (2, 41))
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor(ids)).logits.numpy()
    assert np.abs(expected).max() > 0.5
    assert largest_difference(tmp_path, ids, expected) < 1e-4
