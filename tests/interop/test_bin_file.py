"""ANDREA's .bin files: every matrix where the ancestor has it, the same bits back, and what betrays a wrong guess."""

import dataclasses
import re
import struct
from pathlib import Path

import jax
import numpy as np
import pytest

from andrea_jax import model
from andrea_jax.config import Model
from andrea_jax.errors import UserError
from andrea_jax.interop import MICROGPT, Checkpoint, Layout, bin_file

V, T, D, WIDE, LAYERS = 11, 7, 24, 13, 2
M = Model(vocab_size=V, seq_len=T, d_model=D, n_layer=LAYERS, n_head=3, d_mlp=WIDE)
N = V * D + T * D + V * D + LAYERS * (4 * D * D + 2 * D * WIDE)
ATTENTION = ("attn_wq", "attn_wk", "attn_wv", "attn_wo")


def by_hand() -> dict[str, np.ndarray]:
    """Random matrices as microgpt holds them, [out, in], by its names."""
    rng, shapes = np.random.default_rng(2), {"wte": (V, D), "wpe": (T, D), "lm_head": (V, D)}
    for i in range(LAYERS):
        shapes |= {f"{name}.{i}": (D, D) for name in ATTENTION}
        shapes |= {f"mlp_fc1.{i}": (WIDE, D), f"mlp_fc2.{i}": (D, WIDE)}
    return {name: rng.normal(size=shape).astype("<f4") for name, shape in shapes.items()}


POSITIVE = sum(int((matrix > 0).sum()) for matrix in by_hand().values())  # where m = -weights is negative


def write_by_hand(path: Path, matrices: list[np.ndarray], step: int = 5) -> Path:
    weights = np.concatenate([matrix.ravel() for matrix in matrices])
    parts = (weights, -weights, np.abs(weights))  # weights, m, v
    path.write_bytes(struct.pack("<ii", step, len(weights)) + b"".join(part.tobytes() for part in parts))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_by_hand(tmp_path / "andrea.bin", list(by_hand().values()))


def test_every_matrix_of_a_microgpt_file_is_found_and_turned_to_in_out(file: Path):
    found, w = bin_file.read(file, M), by_hand()
    assert file.stat().st_size == 8 + 12 * N and found.step == 5
    assert np.array_equal(found.params["W_E"], w["wte"]) and np.array_equal(found.params["W_P"], w["wpe"])
    assert np.array_equal(found.params["W_U"], w["lm_head"].T)
    layer = found.params["layers"]["1"]
    w_qkv = np.concatenate([w["attn_wq.1"].T, w["attn_wk.1"].T, w["attn_wv.1"].T], axis=1)
    assert np.array_equal(layer["attention"]["projection"]["W_QKV"], w_qkv)
    assert np.array_equal(layer["attention"]["projection"]["W_O"], w["attn_wo.1"].T)
    assert np.array_equal(layer["mlp"]["W_in"], w["mlp_fc1.1"].T)
    assert np.array_equal(layer["mlp"]["W_out"], w["mlp_fc2.1"].T)
    assert jax.tree.structure(found.params) == jax.tree.structure(model.abstract(M))
    assert jax.tree.all(jax.tree.map(lambda x, m, v: (m == -x).all() & (v == abs(x)).all(), *found[1:]))


def test_the_third_head_of_a_per_head_model_has_the_last_rows_of_its_matrix(file: Path):
    found = bin_file.read(file, dataclasses.replace(M, projection="per_head"))
    weights = found.params["layers"]["0"]["attention"]["projection"]
    assert np.array_equal(weights["W_K"][2], by_hand()["attn_wk.0"][16:24].T)
    assert np.array_equal(weights["W_O"][2], by_hand()["attn_wo.0"][:, 16:24].T)


def matrices_in(layout: Layout) -> list[np.ndarray]:
    """The matrices of `by_hand`, laid out by plain loops."""
    w, named = by_hand(), []
    if layout.stacked:
        for name in layout.order:
            named += [key for key in w if key.partition(".")[0] == name]
    else:
        inner = [name for name in layout.order if f"{name}.0" in w]
        for name in layout.order:
            if name in w:
                named.append(name)
            elif name == inner[0]:
                named += [f"{other}.{i}" for i in range(LAYERS) for other in inner]
    turned = layout.matrices == "in_out"
    return [w[key].T if turned and key not in ("wte", "wpe") else w[key] for key in named]


LAYOUTS = {
    "lm_head last": Layout(order=("wte", "wpe", *ATTENTION, "mlp_fc1", "mlp_fc2", "lm_head")),
    "output first, in_out": Layout(
        order=("lm_head", "wpe", "attn_wo", "attn_wk", "mlp_fc2", "mlp_fc1", "attn_wq", "attn_wv", "wte"),
        matrices="in_out",
    ),
    "stacked": Layout(order=("attn_wv", "wte", "mlp_fc1", "attn_wo", "wpe", "attn_wq", "attn_wk", "lm_head", "mlp_fc2"),
                      stacked=True),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_another_layout_holds_the_same_model_when_it_is_told(file: Path, tmp_path: Path, name: str):
    layout = LAYOUTS[name]
    other = write_by_hand(tmp_path / "other.bin", matrices_in(layout))
    assert other.read_bytes() != file.read_bytes()
    found, expected = bin_file.read(other, M, layout), bin_file.read(file, M)
    assert jax.tree.all(jax.tree.map(np.array_equal, found, expected))


@pytest.mark.parametrize("layout", [MICROGPT, *LAYOUTS.values(), Layout(bos=10)], ids=["microgpt", *LAYOUTS, "bos 10"])
@pytest.mark.parametrize("projection", ["fused", "per_head"])
def test_reading_and_writing_gives_the_same_file_bit_for_bit(
    file: Path, tmp_path: Path, layout: Layout, projection: str
):
    m = dataclasses.replace(M, projection=projection)  # pyright: ignore[reportArgumentType]
    bin_file.write(tmp_path / "again.bin", m, bin_file.read(file, m, layout), layout)
    assert (tmp_path / "again.bin").read_bytes() == file.read_bytes()


def test_bos_of_the_file_changes_places_with_id_0_in_both_embeddings(file: Path):
    params, w = jax.tree.map(np.asarray, bin_file.read(file, M, Layout(bos=10)).params), by_hand()
    for found, held in ((params["W_E"], w["wte"]), (params["W_U"].T, w["lm_head"])):
        assert np.array_equal(found[[0, 10]], held[[10, 0]]) and np.array_equal(found[1:10], held[1:10])
    assert np.array_equal(params["W_P"], w["wpe"])


def test_a_checkpoint_without_moments_is_written_with_zeros(file: Path, tmp_path: Path):
    step, params, *_ = bin_file.read(file, M)
    bin_file.write(tmp_path / "again.bin", M, Checkpoint(step, params))
    first, again = file.read_bytes(), (tmp_path / "again.bin").read_bytes()
    assert again[: 8 + 4 * N] == first[: 8 + 4 * N]
    assert again[8 + 4 * N :] == bytes(8 * N)


def test_a_file_that_is_there_is_not_replaced(file: Path):
    with pytest.raises(UserError, match=r"andrea\.bin: exists already"):
        bin_file.write(file, M, bin_file.read(file, M))


def damaged(whole: bytes, kind: str) -> bytes:
    floats = np.frombuffer(whole[8:], "<f4")
    changed = floats.copy()
    changed[{"nan": 17, "negative": 2 * N + 17}.get(kind, 0)] = {"nan": np.nan, "negative": -1e-9}.get(kind, 0)
    return {
        "empty": b"",
        "cut": whole[:-4],
        "half": whole[: len(whole) // 2],
        "longer": whole + b"1234567",
        "weights only": whole[: 8 + 4 * N],
        "big-endian": struct.pack(">ii", 5, N) + floats.astype(">f4").tobytes(),
        "text": b"this is no checkpoint but a sentence",
        "negative size": struct.pack("<ii", 5, -N) + whole[8:],
        "negative step": struct.pack("<ii", -5, N) + whole[8:],
        "64-bit header": struct.pack("<qq", 5, N) + whole[8:],
        "v before m": whole[: 8 + 4 * N] + whole[8 + 8 * N :] + whole[8 + 4 * N : 8 + 8 * N],
        "nan": whole[:8] + changed.tobytes(),
        "negative": whole[:8] + changed.tobytes(),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("empty", "is no ANDREA .bin file: it has 0 bytes, and the header alone has 8"),
        ("cut", f"is cut short, or is no ANDREA .bin file: its header says step = 5, n_params = {N}, which make"),
        ("half", "is cut short"),
        ("longer", "has 7 bytes left over"),
        ("weights only", "ends after the weights, without Adam's moments"),
        ("big-endian", "is big-endian; ANDREA's .bin format is little-endian"),
        ("text", "is cut short, or is no ANDREA .bin file"),
        ("negative size", f"is no ANDREA .bin file: its header says step = 5, n_params = {-N}"),
        ("negative step", "is no ANDREA .bin file: its header says step = -5"),
        ("64-bit header", "is no ANDREA .bin file: its header says step = 5, n_params = 0"),
        ("v before m", f"{POSITIVE} of the second moments of Adam are negative, which they never are"),
        ("nan", "1 of the weights are not finite"),
        ("negative", "1 of the second moments of Adam are negative"),
    ],
)  # fmt: skip
def test_a_damaged_or_foreign_file_gets_one_sentence(file: Path, kind: str, expected: str):
    file.write_bytes(damaged(file.read_bytes(), kind))
    with pytest.raises(UserError, match=re.escape(f"{file}: {expected}")):
        bin_file.read(file, M)


def test_a_config_of_another_size_is_refused_and_a_vocabulary_that_fits_is_named(file: Path):
    more = dataclasses.replace(M, vocab_size=17)
    with pytest.raises(
        UserError, match=rf"n_params = {N}, and the config's model has {N + 6 * 2 * D}; .* = 11 would fit"
    ):
        bin_file.read(file, more)
    with pytest.raises(UserError, match=r"the config's model has \d+$"):
        bin_file.read(file, dataclasses.replace(M, n_layer=3))
    with pytest.raises(UserError, match=r'andrae\.bin: No such file or directory \(did you mean "andrea\.bin"\?\)'):
        bin_file.read(file.with_name("andrae.bin"), M)


def test_a_wrong_order_of_matrices_of_one_size_leaves_no_trace(file: Path):
    order = ("wte", "wpe", "lm_head", "attn_wk", "attn_wq", "attn_wv", "attn_wo", "mlp_fc1", "mlp_fc2")
    wrong = bin_file.read(file, M, Layout(order=order))  # the documentation says so
    weights = wrong.params["layers"]["0"]["attention"]["projection"]["W_QKV"]
    assert np.array_equal(weights[:, :D], by_hand()["attn_wk.0"].T)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"biases": True}, "model.biases = True: ANDREA's .bin format has no place for that"),
        ({"norm_weights": True}, "model.norm_weights = True"),
        ({"tied_embeddings": True}, "model.tied_embeddings = True"),
        ({"positions": "rotary"}, "model.positions = rotary"),
        ({"w_o": "identity"}, "model.w_o = identity"),
        ({"n_kv_head": 1, "d_mlp": 0}, "model.n_kv_head = 1, n_head = 3; model.d_mlp = 0"),
    ],
)
def test_a_model_with_other_parameters_has_no_place_in_the_file(file: Path, changes: dict, expected: str):
    with pytest.raises(UserError, match=re.escape(expected)):
        bin_file.read(file, dataclasses.replace(M, **changes))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"order": ("wte", "wpe", "lm_haed")}, 'order: "lm_haed": must be one of wte, .*did you mean "lm_head"'),
        ({"order": ("wte", "wpe", "lm_head")}, "order = wte,wpe,lm_head: must have each of wte, .*mlp_fc2 once"),
        (
            {"order": (*ATTENTION, "wte", "wpe", "lm_head", "mlp_fc1", "mlp_fc2")},
            "six matrices of a layer side by side",
        ),
        ({"bos": 11}, "bos = 11: must be a token id, below model.vocab_size = 11"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(file: Path, settings: dict, expected: str):
    with pytest.raises(UserError, match=expected):
        bin_file.read(file, M, Layout(**settings))
