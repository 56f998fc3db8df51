"""The decoder: its numbers, its sizes, its causality, its taps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_andrea import forward  # pyright: ignore[reportMissingImports]

import andrea_jax.model as model_module
from andrea_jax import model
from andrea_jax.config import Model
from andrea_jax.errors import UserError

FAMILY = {
    "12M": (Model(vocab_size=2_305, seq_len=1024, d_model=384, n_layer=6, n_head=12), 12_780_288),
    "120M": (Model(vocab_size=8_449, seq_len=1024, d_model=768, n_layer=12, n_head=12), 98_698_752),
    "480M": (Model(vocab_size=16_641, seq_len=1024, d_model=1536, n_layer=16, n_head=24), 505_678_848),
}
VARIANTS: dict[str, dict] = {
    "the family's": {},
    "rotary, layer norm, gelu": {"positions": "rotary", "rotary_base": 100.0, "norm": "layer", "activation": "gelu"},
    "grouped keys, biases": {"n_kv_head": 1, "biases": True, "positions": "rotary"},
    "tied, no positions": {"tied_embeddings": True, "positions": "none"},
    "attention only, identity": {"d_mlp": 0, "w_o": "identity"},
    "block-diagonal, biases, narrow MLP": {"w_o": "block_diagonal", "biases": True, "d_mlp": 13, "activation": "gelu"},
    "GPT-2's": {"norm": "layer", "norm_weights": True, "biases": True, "activation": "gelu", "tied_embeddings": True},
    "gains": {"norm_weights": True},
    "twelve layers": {"n_layer": 12, "n_head": 1, "d_model": 8, "d_mlp": 5},
}


def tiny(**changes: object) -> Model:
    base = {"vocab_size": 19, "seq_len": 13, "d_model": 24, "n_layer": 2, "n_head": 3, "projection": "per_head"}
    return Model(**(base | changes))  # pyright: ignore[reportArgumentType]


def loud(m: Model) -> dict:
    """Random numbers of the size of 0.5 everywhere, biases too, so that every part matters to the logits."""
    rng = np.random.default_rng(7)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) * 0.5, jnp.float32), model.abstract(m))


@functools.partial(jax.jit, static_argnums=(0, 3))
def logits_of(m: Model, params: dict, tokens: np.ndarray, dtype: str = "float32") -> jax.Array:
    return model.bind(m, params, dtype=dtype, backend="reference")(tokens)


TOKENS = np.random.default_rng(3).integers(0, 19, size=(2, 11)).astype(np.int32)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_equal_a_numpy_float64_forward(changes: dict):
    m = tiny(**changes)
    params = loud(m)
    expected = np.stack([forward(m, params, row) for row in TOKENS])
    found = logits_of(m, params, TOKENS)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


def test_bfloat16_compute_gives_float32_logits_near_the_float64_ones():
    m = tiny()
    params = loud(m)
    expected = np.stack([forward(m, params, row) for row in TOKENS])
    found = logits_of(m, params, TOKENS, "bfloat16")
    assert found.dtype == jnp.float32
    assert 1e-4 < np.abs(found - expected).max() / np.abs(expected).max() < 0.05


@pytest.mark.parametrize("projection", ["fused", "per_head"])
@pytest.mark.parametrize("name", FAMILY)
def test_the_family_has_its_published_numbers_of_parameters(name: str, projection: str):
    m, expected = FAMILY[name]
    m = Model(**(vars(m) | {"projection": projection}))
    assert sum(x.size for x in jax.tree.leaves(model.abstract(m))) == expected


def test_a_layer_of_the_120m_model_has_four_times_768_squared_attention_parameters():
    layers = model.abstract(FAMILY["120M"][0])["layers"]
    sizes = [sum(x.size for x in jax.tree.leaves(layer["attention"])) for layer in layers.values()]
    assert sizes == [2_359_296] * 12


def test_initial_logits_are_nearly_uniform_and_depend_on_the_seed():
    m = tiny(projection="fused")
    first, other = (logits_of(m, model.initialise(m, seed), TOKENS) for seed in (0, 1))
    assert np.abs(first).max() < 0.5
    assert np.abs(first - other).max() > 1e-3


@pytest.mark.parametrize("changes", [{}, {"positions": "rotary", "n_kv_head": 1, "projection": "fused"}])
def test_no_position_depends_on_a_later_one_and_each_depends_on_all_before(changes: dict):
    m = tiny(**changes)
    andrea = model.bind(m, loud(m), backend="reference")
    n = TOKENS.shape[1]

    @jax.jit
    def sums(stream: jax.Array) -> jax.Array:
        def tap(layer: int, point: str, value: jax.Array) -> jax.Array:
            return stream if (layer, point) == (0, "resid_pre") else value

        return jnp.square(andrea(TOKENS[:1], tap=tap)).sum(axis=(0, 2))  # [seq]

    influence = np.abs(jax.jacrev(sums)(jnp.asarray(np.random.default_rng(0).normal(size=(1, n, 24)), jnp.float32)))
    influence = influence.sum(axis=(1, 3))  # [position of the logits, position of the stream]
    assert (influence[np.triu_indices(n, 1)] == 0).all()
    assert (influence[np.tril_indices(n)] > 1e-4).all()


def test_an_offset_reads_later_positions_without_looking_back():
    m = tiny(positions="learned")
    params = loud(m)
    shifted = params | {"W_P": jnp.roll(params["W_P"], -2, axis=0)}
    andrea, moved = (model.bind(m, p, backend="reference") for p in (params, shifted))
    # keys of this call sit at positions 0, 1, ..., so the first query at offset 2 would see three of them
    np.testing.assert_allclose(andrea(TOKENS[:, :1], offset=2), moved(TOKENS[:, :1]), rtol=1e-5, atol=1e-5)


def test_training_tells_attention_that_positions_begin_at_zero_before_tracing(monkeypatch: pytest.MonkeyPatch):
    """cuDNN's causal mask begins at 0, so it can run only where that is known; an array hides it."""
    seen = []
    original = model_module.attention

    def spy(*arguments, **options):
        seen.append(options["q_offset"])
        return original(*arguments, **options)

    monkeypatch.setattr(model_module, "attention", spy)
    m = tiny()
    jax.eval_shape(lambda params: model.bind(m, params)(TOKENS), model.abstract(m))
    assert seen == [0, 0]
    assert all(isinstance(offset, int) for offset in seen)


@pytest.mark.parametrize(
    ("changes", "looked_into", "offset", "in_place"),
    [
        ({}, False, 0, True),
        ({"n_kv_head": 1, "biases": True}, False, 0, True),
        ({"heads_per_layer": (1, 2)}, False, 0, True),
        ({}, True, 0, False),
        ({}, False, jnp.int32(0), False),
        ({"positions": "rotary"}, False, 0, False),
        ({"projection_form": "three"}, False, 0, False),
        ({"projection": "per_head"}, False, 0, False),
    ],
)
def test_attention_reads_the_one_matmul_in_place_where_nobody_asks_for_q_k_and_v(
    changes: dict, looked_into: bool, offset: int, in_place: bool, monkeypatch: pytest.MonkeyPatch
):
    calls = []
    for name in ("attention", "attention_fused"):
        original = getattr(model_module, name)
        monkeypatch.setattr(
            model_module, name, lambda *x, _=(name, original), **to: calls.append(_[0]) or _[1](*x, **to)
        )
    m = tiny(**{"projection": "fused", **changes})
    tap = (lambda layer, point, value: value) if looked_into else model.no_tap
    jax.eval_shape(lambda params: model.bind(m, params)(TOKENS, tap=tap, offset=offset), model.abstract(m))
    assert calls == ["attention_fused" if in_place else "attention"] * 2


def test_looking_into_a_model_changes_no_bit_of_its_logits_or_gradients():
    m = tiny(projection="fused", n_kv_head=1, biases=True)

    def total(params: dict, tap: model.Tap) -> tuple[jax.Array, jax.Array]:
        logits = model.bind(m, params, backend="chunked")(TOKENS, tap=tap)
        return jnp.sum(jnp.sin(logits)), logits

    run = jax.jit(jax.grad(total, has_aux=True), static_argnums=1)
    for x, y in zip(*(jax.tree.leaves(run(loud(m), tap)) for tap in (model.no_tap, lambda *it: it[2])), strict=True):
        np.testing.assert_array_equal(x, y)


def test_taps_come_in_the_order_of_the_computation_with_layers_counted_as_numbers():
    m = tiny(n_layer=12, projection="fused")
    order = []

    def tap(layer: int, point: str, value: jax.Array) -> jax.Array:
        order.append((layer, point))
        return value

    jax.eval_shape(lambda p: model.bind(m, p, backend="reference")(TOKENS, tap=tap, entropy=True), model.abstract(m))
    points = ("resid_pre", "q", "k", "v", "lse", "entropy", "z", "attention_out", "mlp_out")
    assert order == [(layer, point) for layer in range(12) for point in points] + [(12, "resid_final")]


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (TOKENS[0], r"tokens: must be integers \[batch, seq\], not int32 \[11\]"),
        (TOKENS.astype(np.float32), r"tokens: must be integers \[batch, seq\], not float32 \[2, 11\]"),
        (np.zeros((2, 14), np.int32), "tokens: 14 positions, and the model has model.seq_len = 13"),
    ],
)
def test_tokens_that_jax_would_misread_are_refused(tokens: np.ndarray, said: str):
    m = tiny()
    with pytest.raises(UserError, match=said):
        jax.eval_shape(functools.partial(logits_of, m), model.abstract(m), tokens)


def test_what_a_tap_returns_goes_on():
    m = tiny()
    andrea = model.bind(m, loud(m), backend="reference")

    def drop(layer: int, point: str, value: jax.Array) -> jax.Array:
        return value * 0 if point in ("attention_out", "mlp_out") else value

    found = andrea(TOKENS, tap=drop)
    stream = andrea.W_E[...][TOKENS] + andrea.W_P[...][None, : TOKENS.shape[1]]
    np.testing.assert_allclose(found, model.norm(stream, "rms") @ andrea.W_U[...], rtol=1e-5, atol=1e-5)


def test_parameters_and_bind_are_inverses_and_bind_copies_nothing():
    m = tiny(n_layer=12)
    params = loud(m)
    found = model.parameters(model.bind(m, params))
    assert jax.tree.structure(found) == jax.tree.structure(params)
    assert all(a is b for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(params), strict=True))


def test_attention_only_and_tied_models_have_no_such_parameters():
    params = model.abstract(tiny(d_mlp=0, tied_embeddings=True, positions="rotary", w_o="identity"))
    assert set(params) == {"W_E", "layers"}
    assert set(params["layers"]["0"]) == {"attention"}
    assert set(params["layers"]["0"]["attention"]["projection"]) == {"W_Q", "W_K", "W_V"}


def test_rotary_scores_depend_only_on_the_distance():
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, 1, 1, 10)), jnp.float32) for _ in range(2))

    def score(query: int, key: int) -> float:
        return float((model.rotate(q, jnp.array([query]), 100.0) * model.rotate(k, jnp.array([key]), 100.0)).sum())

    assert score(3, 1) == pytest.approx(score(9, 7), abs=1e-5)
    assert score(3, 1) != pytest.approx(score(3, 2), abs=1e-2)


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_norm_gives_every_row_root_mean_square_one_in_its_own_dtype(kind: str):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 7, 64)) * 5 + 2, jnp.bfloat16)
    found = model.norm(x, kind)
    assert found.dtype == jnp.bfloat16
    wide = np.asarray(found, np.float64)
    np.testing.assert_allclose(np.sqrt((wide**2).mean(axis=-1)), 1.0, rtol=1e-2)
    assert (np.abs(wide.mean(axis=-1)).max() < 1e-2) == (kind == "layer")
