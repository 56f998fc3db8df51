"""Arrays and tokens made small and safe enough to lie inside an HTML page.

A pattern becomes one byte an entry of its lower triangle, b = round(255·√A), so A ≈ (b/255)²: everywhere within 1/255,
and near 0, where most entries of a long row lie, far closer (the smallest value that is not 0 is 4e-6). Weighting
a pattern by its values and taking differences therefore happens in the page, and costs no bytes.

Bytes become text in base 85: 5 characters for 4 bytes. Base64 would put 12 × 12 heads × 512 tokens above 25 MB.
"""

from collections.abc import Sequence
from typing import Protocol, Self, runtime_checkable

import numpy as np
from jax import Array

from andrea_jax.errors import UserError

ROW_SUM_TOLERANCE = 0.02  # a bfloat16 row of 512 entries sums to 1 within 0.01
FIRST = 40  # "(": digit d is the character 40 + d
REPLACED = {"<": "}", "\\": "~"}  # the two of the 85 that HTML or JSON would read as something else


@runtime_checkable
class TorchTensor(Protocol):
    """What is used of a torch tensor, which numpy does not read where it needs gradients, or is bfloat16."""

    def detach(self) -> Self: ...
    def cpu(self) -> Self: ...
    def float(self) -> Self: ...
    def numpy(self) -> np.ndarray: ...


type ArrayLike = np.ndarray | Array | TorchTensor | Sequence


def as_array(x: ArrayLike) -> np.ndarray:
    """float32 on the host, from a numpy, jax or torch array of any dtype, or nested lists."""
    if isinstance(x, TorchTensor):
        x = x.detach().cpu().float().numpy()
    return np.asarray(x).astype(np.float32, copy=False)


def check_patterns(name: str, patterns: np.ndarray, n_tokens: int) -> None:
    """Raises UserError unless `patterns` [layer, head, query, key] fit the tokens and every row is an attention row.

    A pattern of 0 everywhere stands for a head that is not there.
    """
    if patterns.ndim != 4 or 0 in patterns.shape:
        raise UserError(f"{name}: must have the axes [layer, head, query, key], not the shape {patterns.shape}")
    if patterns.shape[2:] != (n_tokens, n_tokens):
        square = f"{patterns.shape[2]} queries × {patterns.shape[3]} keys"
        raise UserError(f"{name}: must have one query and one key a token; there are {n_tokens} tokens and {square}")
    for layer, head in np.ndindex(patterns.shape[:2]):
        pattern, where = patterns[layer, head], f"{name}[{layer}, {head}"
        if not pattern.any():
            continue
        if np.triu(pattern, 1).any():
            raise UserError(f"{where}]: attends to later tokens; the viewer shows causal attention")
        sums = pattern.sum(axis=1)
        wrong = ~(np.abs(sums - 1) <= ROW_SUM_TOLERANCE)  # a nan is wrong
        if wrong.any():
            query = int(np.argmax(wrong))
            raise UserError(f"{where}, {query}]: must sum to 1 over its keys, and sums to {sums[query]:.3g}")
        if pattern.min() < 0:
            raise UserError(f"{where}]: holds {pattern.min():.3g}; a pattern is never negative")


def check_shape(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raises UserError unless `array` has the shape [layer, head, token] and is finite."""
    if array.shape != shape:
        raise UserError(f"{name}: must have the axes [layer, head, token] = {shape}, not the shape {array.shape}")
    if not np.isfinite(array).all():
        raise UserError(f"{name}: holds values that are not finite")


def pack_pattern(pattern: np.ndarray) -> str:
    """The lower triangle of one pattern [query, key], row by row, as text."""
    return to_text(quantise(pattern[np.tril_indices(len(pattern))]))


def quantise(values: np.ndarray) -> np.ndarray:
    """A -> round(255·√A), uint8."""
    return np.round(255 * np.sqrt(np.minimum(values, 1))).astype(np.uint8)


def restore(bytes_: np.ndarray) -> np.ndarray:
    """uint8 -> (b/255)², float32: what the page makes of a byte."""
    return np.square(bytes_.astype(np.float32) / 255)


def pack_numbers(array: np.ndarray) -> dict[str, float | str]:
    """Numbers as multiples of scale = max|x| / 32767: {"scale": float, "data": int16, little-endian, as text}."""
    scale = float(np.abs(array).max()) / 32767 or 1.0  # all zero: any scale will do
    return {"scale": scale, "data": to_text(np.round(array / scale).astype("<i2").view(np.uint8).ravel())}


def to_text(data: np.ndarray) -> str:
    """uint8 -> base 85. Each 4 bytes, most significant first, are 5 digits; zeros fill the last 4 up."""
    padded = np.zeros(-(-len(data) // 4) * 4, np.uint8)
    padded[: len(data)] = data
    words = padded.view(">u4").astype(np.uint32)
    digits = np.empty((len(words), 5), np.uint8)
    for place in range(4, -1, -1):
        words, rest = np.divmod(words, np.uint32(85))
        digits[:, place] = rest
    text = (digits + FIRST).tobytes().decode("ascii")
    for character, other in REPLACED.items():
        text = text.replace(character, other)
    return text


def from_text(text: str, length: int) -> np.ndarray:
    """The `length` bytes that `to_text` wrote."""
    for character, other in REPLACED.items():
        text = text.replace(other, character)
    digits = (np.frombuffer(text.encode("ascii"), np.uint8) - FIRST).reshape(-1, 5).astype(np.uint64)
    words = digits @ (np.uint64(85) ** np.arange(4, -1, -1, dtype=np.uint64))
    return words.astype(">u4").view(np.uint8)[:length]


def shown(token: str | bytes) -> str:
    """A token as the page shows it: bytes that are no UTF-8 (or their surrogates in a string) as \\xNN, and other
    characters that print nothing as \\uNNNN. Spaces, tabs and newlines stay: the page makes them visible."""
    text = token.decode("utf-8", "surrogateescape") if isinstance(token, bytes) else token
    return "".join(c if c.isprintable() or c in " \t\n" else _escaped(ord(c)) for c in text)


def _escaped(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # what surrogateescape makes of a lone byte
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
