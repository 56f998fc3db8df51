"""Scores against an independent computation from full patterns, and the cases that other detectors get wrong."""

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from andrea_jax import heads
from andrea_jax import model as andrea
from andrea_jax.config import Model
from andrea_jax.conversion import ProjectionName, convert
from andrea_jax.heads import targets

N, T, VOCAB = 3, 23, 7  # few ids: every token has many earlier copies
CONFIG = Model(vocab_size=VOCAB, seq_len=T, d_model=48, n_layer=2, n_head=3, projection="per_head")


def draw_tokens() -> np.ndarray:
    tokens = np.random.default_rng(5).integers(1, VOCAB, (N, T))
    tokens[:, 0] = 0
    return tokens


def draw_params(config: Model) -> dict:
    rng = np.random.default_rng(11)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.3, x.shape), x.dtype), andrea.abstract(config))


def patterns(config: Model, params: dict, tokens: np.ndarray) -> np.ndarray:
    """Whole patterns of a sequence in fp64, [layer, head, query, key]; rotation by complex factors."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    x = p["W_E"][tokens] + (p["W_P"][: len(tokens)] if config.positions == "learned" else 0)
    half = config.head_dim // 2
    turn = np.exp(1j * np.arange(len(tokens))[:, None] * config.rotary_base ** (-np.arange(half) / half))

    def norm(x: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)

    def placed(x: np.ndarray) -> np.ndarray:
        if config.positions != "rotary":
            return x
        turned = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([turned.real, turned.imag], axis=-1)

    made = []
    for i in range(config.n_layer):
        w, mlp = p["layers"][str(i)]["attention"]["projection"], p["layers"][str(i)]["mlp"]
        q, k, v = (norm(x) @ w[f"W_{name}"] for name in "QKV")
        a = np.tril(np.exp(placed(q) @ placed(k).swapaxes(1, 2) / np.sqrt(config.head_dim)))
        made.append(a / a.sum(-1, keepdims=True))
        x = x + (made[-1] @ v @ w["W_O"]).sum(0)
        x = x + np.maximum(norm(x) @ mlp["W_in"], 0) @ mlp["W_out"]
    return np.stack(made)


def earlier(row: np.ndarray, q: int) -> list[int]:
    return [k for k in range(1, q) if row[k] == row[q]]


def first_follower(row: np.ndarray, q: int) -> list[int]:
    """The follower of the only earlier copy."""
    copies = earlier(row, q)
    return [copies[0] + 1] if len(copies) == 1 and copies[0] + 1 < q else []


# what each probe asks of query q of one sequence, written again from its definition
DEFINITIONS: dict[str, Callable[[np.ndarray, int], list[int]]] = {
    "previous_token": lambda row, q: [q - 1] if q else [],
    "duplicate_token": earlier,
    "induction": first_follower,
    "induction_all": lambda row, q: [k + 1 for k in earlier(row, q) if k + 1 < q],
}


@pytest.mark.parametrize("projection", ["per_head", "fused"])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_scores_equal_an_independent_computation_from_full_patterns(
    positions: Literal["learned", "rotary"], projection: ProjectionName
):
    config, tokens = dataclasses.replace(CONFIG, positions=positions), draw_tokens()
    params = draw_params(config)
    whole = [patterns(config, params, row) for row in tokens]
    config, params = convert(config, params, projection)
    found = heads.measure(config, params, tokens, {name: getattr(targets, name)(tokens) for name in DEFINITIONS})
    for name, asked in DEFINITIONS.items():
        mass = [
            a[:, :, q, keys].sum(-1)
            for a, row in zip(whole, tokens, strict=True)
            for q in range(T)
            if (keys := asked(row, q))
        ]
        sums = found.probes[name]
        assert sums.n.sum() == len(mass) > 3, name
        np.testing.assert_allclose(sums.mass.sum(0) / sums.n.sum(), np.mean(mass, axis=0), atol=1e-5, err_msg=name)


def score_of(attended: dict[int, dict[int, float]], found: targets.Targets) -> float:
    """The score of a head whose pattern is given: query -> key -> mass."""
    queries = sorted({*found.query.tolist()})
    return sum(attended[q].get(k, 0) for q in queries for k in found.keys(0, q)) / len(queries)


COPIES = np.array([[0, *[2, 3, 4] * 5]])  # [BOS] and five copies of a block


def test_a_head_that_spreads_over_all_followers_scores_1_however_many_copies_there_are():
    """A detector that knows the last follower only would give it 1, 1/2, 1/3, 1/4: 0.52 on these five copies."""
    spread = {q: {k + 1: 1 / len(earlier(COPIES[0], q)) for k in earlier(COPIES[0], q)} for q in range(4, 16)}
    assert score_of(spread, targets.induction_all(COPIES)) == pytest.approx(1)
    assert score_of(spread, targets.induction(COPIES)) == 1  # queries of the second copy alone


def test_a_duplicate_token_head_is_no_induction_head():
    tokens = np.array([[0, *range(1, 6), *range(1, 6)]])
    attended = {q: {q - 5: 1.0} for q in range(6, 11)}  # the copy itself, where induction wants what followed it
    assert score_of(attended, targets.duplicate_token(tokens)) == 1
    assert score_of(attended, targets.induction(tokens)) == score_of(attended, targets.induction_all(tokens)) == 0


def test_a_doubled_bos_is_refused_and_shifts_no_index():
    with pytest.raises(ValueError, match="sequence 0 has a second BOS at position 1"):
        heads.measure(CONFIG, draw_params(CONFIG), np.array([[0, 0, 5, 5]]), {})
