"""The files in configs/."""

import dataclasses
from pathlib import Path

import pytest

from andrea_jax.config_files import expand, load

CONFIGS = Path(__file__).parent.parent / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.toml")), ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_config_can_be_read_and_is_headed_by_its_question_and_command(path: Path):
    assert expand(path)
    question, command, *_ = path.read_text(encoding="utf-8").splitlines()
    assert question.startswith("# Question: ")
    assert question.endswith("?")
    assert command.startswith("#   andrea ")
    assert path.relative_to(CONFIGS.parent).as_posix() in command


@pytest.mark.parametrize(
    ("name", "sizes", "total"),
    [  # d_model, n_head, head_dim, n_layer, d_mlp, seq_len, vocab: the published table
        ("andrea-12m", (384, 12, 32, 6, 1536, 1024, 2305), 12_780_288),
        ("andrea-120m", (768, 12, 64, 12, 3072, 1024, 8449), 98_698_752),
        ("andrea-480m", (1536, 24, 64, 16, 6144, 1024, 16641), 505_678_848),
    ],
)
def test_the_family_has_its_published_sizes(name: str, sizes: tuple[int, ...], total: int):
    m = load(CONFIGS / f"{name}.toml").model
    assert (m.d_model, m.n_head, m.head_dim, m.n_layer, m.mlp_width, m.seq_len, m.vocab_size) == sizes
    assert (m.positions, m.biases, m.tied_embeddings, m.kv_heads) == ("learned", False, False, m.n_head)
    per_layer = 4 * m.d_model**2 + 2 * m.d_model * m.mlp_width
    assert 2 * m.vocab_size * m.d_model + m.seq_len * m.d_model + m.n_layer * per_layer == total


def test_the_family_trains_on_the_largest_corpus_in_bfloat16():
    for size in (12, 120, 480):
        e = load(CONFIGS / f"andrea-{size}m.toml")
        assert (e.data.corpus, e.data.tokenizer, e.data.seq_len) == ("prose", "bpe", 1024)
        assert (e.compute.dtype, e.train.batch_size % e.train.accumulate) == ("bfloat16", 0)


def test_the_family_differs_only_in_size_and_schedule():
    small, large = (load(CONFIGS / f"andrea-{size}m.toml") for size in (12, 480))
    assert large.data == small.data
    assert (large.compute, large.probe) == (small.compute, small.probe)
    assert large.optim == dataclasses.replace(small.optim, learning_rate=3e-4, warmup_steps=2000)
