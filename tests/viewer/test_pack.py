"""Bytes for patterns, text for bytes, and what becomes of a token."""

import jax.numpy as jnp
import numpy as np
import pytest

from andrea_jax.viewer import pack


def test_a_byte_is_255_times_the_root_of_the_attention():
    values = np.array([0, 1, 0.25, (200 / 255) ** 2, 3e-6, 4e-6], np.float32)
    assert pack.quantise(values).tolist() == [0, 255, 128, 200, 0, 1]  # 127.5 rounds to the even 128


def test_every_value_comes_back_within_one_part_in_255_and_small_ones_much_closer():
    values = np.linspace(0, 1, 100_003, dtype=np.float32)
    error = np.abs(pack.restore(pack.quantise(values)) - values)
    assert error.max() <= 1 / 255
    assert error[values < 0.01].max() < 0.0004


def test_rounding_above_one_does_not_overflow_the_byte():
    assert pack.quantise(np.array([1.004], np.float32)).tolist() == [255]


def test_text_is_base_85_of_big_endian_words():
    # 1 = 00001, 86 = 00011, 2³² − 1 = 82 23 54 12 0 in base 85; digit d is the character 40 + d
    assert pack.to_text(np.array([0, 0, 0, 1, 0, 0, 0, 86], np.uint8)) == "(((()((())"
    assert pack.to_text(np.full(4, 255, np.uint8)) == "z?^4("


def test_the_two_digits_that_would_be_markup_have_other_characters():
    assert pack.to_text(np.array([0, 0, 0, 20, 0, 0, 0, 52], np.uint8)) == "((((}((((~"


def test_no_bytes_make_a_character_that_html_or_json_reads_as_something_else():
    text = pack.to_text(np.random.default_rng(0).integers(0, 256, 40_000).astype(np.uint8))
    assert len(set(text)) == 85
    assert not set(text) & set("<\\&\"'") and text.isascii() and text.isprintable()


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 1003])
def test_bytes_survive_being_text_at_every_length(length: int):
    data = np.random.default_rng(length).integers(0, 256, length).astype(np.uint8)
    np.testing.assert_array_equal(pack.from_text(pack.to_text(data), length), data)


def test_the_lower_triangle_is_written_row_by_row():
    pattern = np.array([[1, 0, 0], [0.25, 0.75, 0], [0, 0, 1]], np.float32)
    assert pack.from_text(pack.pack_pattern(pattern), 6).tolist() == [255, 128, 221, 0, 0, 255]


def test_numbers_come_back_within_half_a_step_of_their_scale():
    array = np.random.default_rng(0).normal(size=(2, 3, 7)).astype(np.float32)
    packed = pack.pack_numbers(array)
    back = pack.from_text(str(packed["data"]), 2 * array.size).view("<i2").reshape(2, 3, 7) * packed["scale"]
    assert packed["scale"] == pytest.approx(np.abs(array).max() / 32767)
    assert np.abs(back - array).max() <= packed["scale"] * 0.51


def test_numbers_that_are_all_zero_stay_zero():
    packed = pack.pack_numbers(np.zeros((1, 1, 3), np.float32))
    assert packed == {"scale": 1.0, "data": "(" * 10}  # 6 bytes are 2 words


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (" the", " the"),
        ("\n\t", "\n\t"),
        (b"\xff", "\\xff"),
        (b"\xe6\xbc", "\\xe6\\xbc"),
        ("漢".encode(), "漢"),
        (b"a\xe2\x82b", "a\\xe2\\x82b"),
        ("\udcff", "\\xff"),
        ("\ud800", "\\ud800"),
        ("\r\x00\x7f", "\\x0d\\x00\\x7f"),
        ("a\u202eb", "a\\u202eb"),  # right-to-left override: would turn the text around
        ("</script>", "</script>"),
    ],
)
def test_bytes_that_are_no_text_are_shown_as_such(token: str | bytes, expected: str):
    assert pack.shown(token) == expected


class Tensor:
    """What numpy cannot read before it is detached, moved and widened."""

    def __init__(self, steps: tuple[str, ...] = ()):
        self.steps = steps

    def detach(self) -> "Tensor":
        return Tensor((*self.steps, "detach"))

    def cpu(self) -> "Tensor":
        return Tensor((*self.steps, "cpu"))

    def float(self) -> "Tensor":
        return Tensor((*self.steps, "float"))

    def numpy(self) -> np.ndarray:
        assert set(self.steps) == {"detach", "cpu", "float"}
        return np.array([0.5, 0.25], np.float32)


@pytest.mark.parametrize(
    "array",
    [
        np.array([0.5, 0.25]),
        np.array([0.5, 0.25], np.float16),
        jnp.array([0.5, 0.25], jnp.bfloat16),
        [0.5, 0.25],
        Tensor(),
    ],
    ids=["float64", "float16", "jax bfloat16", "list", "torch-like"],
)
def test_arrays_of_every_kind_become_float32_on_the_host(array):
    found = pack.as_array(array)
    assert type(found) is np.ndarray and found.dtype == np.float32 and found.tolist() == [0.5, 0.25]


def test_torch_tensors_that_need_gradients_are_read():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.tensor([0.5, 0.25], dtype=torch.bfloat16, requires_grad=True)
    assert pack.as_array(tensor).tolist() == [0.5, 0.25]
