"""The engine against an independent fp64 model, and what it must not do."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from andrea_jax import model as andrea
from andrea_jax.config import Model
from andrea_jax.heads import scores, statistics, targets
from andrea_jax.heads.targets import Targets
from andrea_jax.projections import fuse_heads, split_heads
from andrea_jax.trace import trace

CONFIG = Model(vocab_size=13, seq_len=31, d_model=48, n_layer=2, n_head=6, n_kv_head=2, projection="per_head")
N = 5


def draw_tokens(n: int = N, length: int = 29, seed: int = 0) -> np.ndarray:
    tokens = np.random.default_rng(seed).integers(1, 13, (n, length))
    tokens[:, 0] = 0
    return tokens


def draw_params(config: Model) -> dict:
    """Random weights whose patterns are far from even; by numpy, since `model.initialise` compiles every shape."""
    rng = np.random.default_rng(3)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.3, x.shape), x.dtype), andrea.abstract(config))


def patterns(config: Model, params: dict, tokens: np.ndarray) -> np.ndarray:
    """The model written again in numpy fp64, with whole patterns: [layer, sequence, head, query, key]."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    x = p["W_E"][tokens] + p["W_P"][: tokens.shape[1]]
    group, made = config.n_head // config.kv_heads, []
    hidden = np.triu(np.ones((tokens.shape[1],) * 2, bool), 1)
    for i in range(config.n_layer):
        w, mlp = p["layers"][str(i)]["attention"]["projection"], p["layers"][str(i)]["mlp"]
        y = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        q, k, v = (np.einsum("btd,hdk->bhtk", y, w[f"W_{name}"]) for name in "QKV")
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        s = np.where(hidden, -np.inf, q @ k.swapaxes(-1, -2) / np.sqrt(config.head_dim))
        a = np.exp(s - s.max(-1, keepdims=True))
        a /= a.sum(-1, keepdims=True)
        made.append(a)
        x = x + np.einsum("bhtk,hkd->btd", a @ v, w["W_O"])
        y = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        x = x + np.maximum(y @ mlp["W_in"], 0) @ mlp["W_out"]
    return np.stack(made)


def probes(tokens: np.ndarray) -> dict[str, Targets]:
    return {
        "previous_token": targets.previous_token(tokens),
        "duplicate_token": targets.duplicate_token(tokens),
        "induction_all": targets.induction_all(tokens),
        "offset 7": targets.fixed_offset(tokens, 7),
    }


def by_hand(a: np.ndarray, found: Targets) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mass, off_bos, n) with loops over sequences and queries."""
    layers, n, heads, length, _ = a.shape
    mass, off_bos, counts = np.zeros((n, layers, heads)), np.zeros((n, layers, heads)), np.zeros(n)
    for sequence in range(n):
        for query in range(length):
            keys = sorted(found.keys(sequence, query))
            if keys:
                counts[sequence] += 1
                mass[sequence] += a[:, sequence, :, query, keys].sum(0)
                off_bos[sequence] += 1 - a[:, sequence, :, query, 0]
    return mass, off_bos, counts


@pytest.fixture(autouse=True)
def several_chunks_of_pairs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scores, "CHUNK", 64)


def fused_of(config: Model, params: dict) -> tuple[Model, dict]:
    params = jax.tree.map(lambda x: x, params)  # new dicts, the same arrays
    for layer in params["layers"].values():
        layer["attention"]["projection"] = fuse_heads(layer["attention"]["projection"])
    return dataclasses.replace(config, projection="fused"), params


@pytest.mark.parametrize("projection", ["per_head", "fused"])
def test_scores_equal_those_of_whole_patterns_in_fp64(projection: str):
    config, tokens = CONFIG, draw_tokens()
    params, asked = draw_params(config), probes(tokens)
    a = patterns(config, params, tokens)
    assert a.max(-1)[..., 5:].std() > 0.1, "the patterns must differ"
    if projection == "fused":
        config, params = fused_of(config, params)
    pairs = Targets(*np.array([[4, 0, 4, 1], [11, 3, 28, 7], [2, 3, 0, 5]], np.int32))  # listed in no order
    found = scores.measure(config, params, tokens, asked, listed=pairs, entropy=True, batch_size=2)
    for name, expected in asked.items():
        mass, off_bos, n = by_hand(a, expected)
        np.testing.assert_array_equal(found.probes[name].n, n)
        np.testing.assert_allclose(found.probes[name].mass / n[:, None, None], mass / n[:, None, None], atol=1e-5)
        np.testing.assert_allclose(found.probes[name].off_bos / n[:, None, None], off_bos / n[:, None, None], atol=1e-5)
    entropy = -(a * np.log(np.where(a > 0, a, 1))).sum((-1, -2))
    np.testing.assert_allclose(found.entropy, entropy.transpose(1, 0, 2), rtol=2e-5)
    listed = [a[:, s, :, q, k] for s, q, k in zip(pairs.sequence, pairs.query, pairs.key, strict=True)]
    np.testing.assert_allclose(found.listed, listed, atol=1e-5)


def test_converting_the_weights_leaves_every_score():
    config, tokens = CONFIG, draw_tokens()
    params = draw_params(config)
    fused_config, fused = fused_of(config, params)
    back = jax.tree.map(lambda x: x, fused)
    for layer in back["layers"].values():
        layer["attention"]["projection"] = split_heads(layer["attention"]["projection"], 6, 2)
    first, second, third = (
        scores.measure(c, p, tokens, probes(tokens), entropy=True, batch_size=2).probes
        for c, p in ((config, params), (fused_config, fused), (config, back))
    )
    for name, found in first.items():
        np.testing.assert_allclose(found.mass, second[name].mass, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(found.mass, third[name].mass)


@pytest.mark.parametrize("length", [29, 71])  # less than a band, and two blocks and a piece
def test_fixed_distances_are_read_off_a_band_and_are_what_the_whole_pattern_says(length: int):
    config = dataclasses.replace(CONFIG, seq_len=71)
    params, tokens = draw_params(config), draw_tokens(n=3, length=length)
    by_offset = {f"{d} back": targets.fixed_offset(tokens, d) for d in range(min(33, length))}
    asked = {**probes(tokens), **by_offset}
    distances = scores.by_distance(list(asked.values()), 3, length)
    assert distances == (1, None, None, 7, *range(len(by_offset)))
    found = scores.measure(config, params, tokens, asked).probes
    whole = patterns(config, params, tokens)
    for d in range(len(by_offset)):
        rows = np.arange(max(d, 1), length)
        expected = whole[..., rows, rows - d].sum(axis=-1).transpose(1, 0, 2)
        np.testing.assert_allclose(found[f"{d} back"].mass, expected, rtol=1e-5, atol=1e-5)
    alone = scores.measure(config, params, tokens, probes(tokens)).probes
    for name, sums in alone.items():  # pair by pair, where so few have a distance
        np.testing.assert_allclose(found[name].mass, sums.mass, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_on_an_accelerator_pairs_go_in_fewer_pieces_and_bfloat16_is_multiplied_as_it_is(monkeypatch):
    rng, asked = np.random.default_rng(1), probes(draw_tokens(2, 29))
    q, k = (jnp.asarray(rng.normal(0, 1, (2, 29, n, 8)), jnp.bfloat16) for n in (6, 2))
    lse = jnp.asarray(rng.normal(5, 1, (2, 6, 29)), jnp.float32)
    pairs = jnp.asarray(scores.Pairs.of(list(asked.values()), 2).padded)
    counted = jnp.asarray(np.stack([found.counted(2, 29) for found in asked.values()], axis=1))
    expected = scores._layer_sums(q, k, lse, pairs, counted)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(scores, "PAIRS_ELSEWHERE", 2 * 101)  # no divisor of the padded number
    for found, wanted in zip(scores._layer_sums(q, k, lse, pairs, counted), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    wide = q.astype(jnp.float32), k.astype(jnp.float32)
    bands = [scores._on_band(*arrays, lse, (7, None, 1)) for arrays in ((q, k), wide)]
    np.testing.assert_allclose(*bands, rtol=1e-6)
    np.testing.assert_allclose(bands[0][:, 0], expected[0][:, 3], rtol=1e-6)  # "offset 7", pair by pair


def test_a_distance_that_is_not_asked_of_every_query_is_none():
    tokens = draw_tokens()
    every = [targets.fixed_offset(tokens, d) for d in range(9)]
    part = [t.where(t.query < 28) for t in every]
    row_0 = Targets(*(np.concatenate([x, [0]]).astype(np.int32)[1:] for x in vars(every[0]).values()))  # (0, 0, 0)
    far = [targets.fixed_offset(tokens, 28)]
    assert scores.by_distance([*every, *part, row_0, *far], N, 29) == (*range(9), *[None] * 10, 28)
    assert scores.by_distance(every[:7], N, 29) == (None,) * 7


@pytest.mark.parametrize(("projection", "dtype"), [("per_head", "float32"), ("fused", "bfloat16")])
def test_measuring_leaves_the_logits_bit_identical(projection: str, dtype: str):
    config = dataclasses.replace(CONFIG, projection=projection, n_layer=1, positions="rotary")
    params, tokens = draw_params(config), draw_tokens().astype(np.int32)
    plain = jax.jit(lambda p, t: andrea.bind(config, p, dtype=dtype)(t))(params, tokens)
    pairs = scores.Pairs.of(list(probes(tokens).values()), N).padded
    counted = np.stack([t.counted(N, 29) for t in probes(tokens).values()], axis=1)
    forward = jax.jit(scores.forward, static_argnums=(0, 1, 2, 3, 4))
    distances = (1, None, 0, 7)
    logits, measured = forward(config, dtype, "auto", True, distances, params, tokens, pairs, counted, pairs)
    assert np.array_equal(np.asarray(plain), np.asarray(logits))
    assert {x.dtype for x in measured.values()} == {jnp.dtype("float32")}


def test_batches_share_one_trace_their_size_does_not_matter_and_nothing_passed_in_changes(monkeypatch):
    traced, real = [], scores.bind
    monkeypatch.setattr(scores, "bind", lambda *a, **k: traced.append(1) or real(*a, **k))
    config = dataclasses.replace(CONFIG, n_head=3, n_kv_head=None, n_layer=1)  # not compiled by another test
    params, tokens = draw_params(config), draw_tokens(n=7)
    before, tokens_before = jax.tree.map(np.array, params), tokens.copy()
    parts, again, whole = (scores.measure(config, params, tokens, probes(tokens), batch_size=n) for n in (3, 3, None))
    assert len(traced) == 2  # one of three sequences, twice used, one of seven
    for name in whole.probes:
        np.testing.assert_array_equal(parts.probes[name].mass, again.probes[name].mass)
        np.testing.assert_allclose(whole.probes[name].mass, parts.probes[name].mass, atol=1e-5)
        assert whole.probes[name].mass.shape == parts.probes[name].mass.shape == (7, 1, 3)
    jax.tree.map(np.testing.assert_array_equal, before, params)
    np.testing.assert_array_equal(tokens, tokens_before)


def test_targets_in_the_future_and_second_documents_are_refused():
    params, tokens = draw_params(CONFIG), draw_tokens()
    ahead = Targets(*np.array([[0], [3], [4]], np.int32))
    said = "probe x: a target is outside its sequence or in its query's future: sequence 0, query 3, key 4"
    with pytest.raises(ValueError, match=said):
        scores.measure(CONFIG, params, tokens, {"x": ahead})
    uneven = Targets(np.array([0, 0]), np.array([3]), np.array([2]))
    with pytest.raises(ValueError, match=r"probe x: sequence, query and key .* not 2, 1 and 1"):
        scores.measure(CONFIG, params, tokens, {"x": uneven})
    tokens[2, 9] = 0
    with pytest.raises(ValueError, match="sequence 2 has a second BOS at position 9"):
        scores.measure(CONFIG, params, tokens, {"x": targets.previous_token(tokens)})


def even_params(seq_len: int) -> tuple[Model, dict]:
    """A model all of whose scores are 0."""
    config = Model(vocab_size=131, seq_len=seq_len, d_model=16, n_layer=1, n_head=2, d_mlp=0, projection="per_head")
    params = draw_params(config)
    weights = params["layers"]["0"]["attention"]["projection"]
    weights["W_Q"] = jnp.zeros_like(weights["W_Q"])
    return config, params


def test_a_uniform_head_scores_the_published_baselines():
    tokens = np.arange(128)[None]
    lengths = {8: (0.2454, 1.326), 32: (0.0987, 2.549), 128: (0.0349, 3.878)}
    every = targets.previous_token(tokens)
    asked = {str(length): every.where(every.query < length) for length in lengths}
    config, params = even_params(128)
    found = scores.measure(config, params, tokens, asked, entropy=True)
    entropy = trace(config, params, tokens, entropy=True)["entropy"]
    for length, (previous, nats) in lengths.items():
        sums = found.probes[str(length)]
        assert statistics.baseline(sums) == pytest.approx(previous, abs=5e-5)
        np.testing.assert_allclose(sums.mass / (length - 1), statistics.baseline(sums), rtol=1e-5)
        assert entropy[..., :length].mean() == pytest.approx(nats, abs=5e-4)
    assert found.entropy == pytest.approx(np.asarray(entropy.sum(-1)).swapaxes(0, 1), rel=1e-5)


def test_a_uniform_head_scores_the_published_induction_baselines():
    published = {10: 0.0626, 25: 0.0266, 50: 0.0136}
    repeats = [[0, *range(1, block + 1), *range(1, block + 1)] for block in published]
    tokens = np.array([row + list(range(51, 51 + 101 - len(row))) for row in repeats])  # the rest never repeats
    found = scores.measure(*even_params(101), tokens, {"i": targets.induction(tokens)}).probes["i"]
    assert found.n.tolist() == list(published)
    np.testing.assert_allclose(found.uniform / found.n, list(published.values()), atol=6e-5)  # 0.06255 was rounded up
    np.testing.assert_allclose(found.mass[:, 0, 1], found.uniform, rtol=1e-5)
