"""ANDREA's `.bin` checkpoints, both ways. Little-endian, nothing else in the file:

    int32 step · int32 n_params · float32 weights [n_params] · float32 Adam m [n_params] · float32 Adam v [n_params]

What is published ends there. The file says neither the model's shape, its norm and its activation, nor in which order
and which way round the matrices lie, nor which id BOS has: all of that has to be told, the model as a config
(`model.norm`, `model.activation`, sizes), the rest as a `Layout`. Its defaults are those of the ancestor program,
microgpt: wte, wpe, lm_head, then for each layer attn_wq, attn_wk, attn_wv, attn_wo, mlp_fc1, mlp_fc2, each [out, in].
(microgpt numbers BOS last, and has a norm after the embeddings and none before the unembedding. `model.py` has it the
other way round; which of them ANDREA has is not public either, and norms without gain leave no trace in the file.)

What a wrong guess leaves behind is looked for: sizes, leftover bytes, the other byte order, numbers that are not
finite, negative second moments. Matrices of equal size in a wrong order leave nothing: such a model reads well and
predicts nothing (a loss near ln(vocab_size) or above).
"""

import functools
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from andrea_jax.config import BOS, Model
from andrea_jax.conversion import convert
from andrea_jax.errors import UserError, did_you_mean
from andrea_jax.interop.files import draft_of
from andrea_jax.interop.tokenizer_files import exchanged
from andrea_jax.model import Params, abstract

# name in the ancestor program -> place in the parameter tree (in a layer's part of it)
OUTSIDE = {"wte": ("W_E",), "wpe": ("W_P",), "lm_head": ("W_U",)}
OF_A_LAYER = {
    "attn_wq": ("attention", "projection", "W_Q"), "attn_wk": ("attention", "projection", "W_K"),
    "attn_wv": ("attention", "projection", "W_V"), "attn_wo": ("attention", "projection", "W_O"),
    "mlp_fc1": ("mlp", "W_in"), "mlp_fc2": ("mlp", "W_out"),
}  # fmt: skip
ORDER = (*OUTSIDE, *OF_A_LAYER)  # microgpt's
_HEADER = struct.Struct("<ii")
_PARTS = ("weights", "first moments of Adam", "second moments of Adam")


@dataclass(frozen=True)
class Layout:
    """What the file does not say about itself, and is not publicly known."""

    order: tuple[str, ...] = ORDER  # the layers' six names side by side, unless `stacked`
    matrices: Literal["out_in", "in_out"] = "out_in"  # all but wte and wpe, whose rows are tokens and positions
    stacked: bool = False  # each matrix of all layers together, instead of layer after layer
    bos: int = BOS  # the id that BOS has in the file; here it is 0, and the two ids change places

    def __post_init__(self) -> None:
        for name in self.order:
            if name not in ORDER:
                raise UserError(f'order: "{name}": must be one of {", ".join(ORDER)}{did_you_mean(name, ORDER)}')
        if sorted(self.order) != sorted(ORDER):
            raise UserError(f"order = {','.join(self.order)}: must have each of {', '.join(ORDER)} once")
        places = [self.order.index(name) for name in OF_A_LAYER]
        if not self.stacked and max(places) - min(places) >= len(places):
            text = "must have the six matrices of a layer side by side, unless they are stacked"
            raise UserError(f"order = {','.join(self.order)}: {text}")


MICROGPT = Layout()


class Checkpoint(NamedTuple):
    """A file's content: steps done, parameters, and Adam's first and second moments, trees like that of the parameters
    (None, to be written: zeros)."""

    step: int
    params: Params
    first: Params | None = None
    second: Params | None = None


def refuse(m: Model) -> None:
    """UserError where the file has no place for a parameter of the model."""
    only = {
        "positions": "learned", "norm_weights": False, "biases": False, "tied_embeddings": False, "w_o": "free",
        "heads_per_layer": None,
    }  # fmt: skip
    wrong = [f"model.{key} = {getattr(m, key)}" for key, value in only.items() if getattr(m, key) != value]
    wrong += [f"model.n_kv_head = {m.kv_heads}, n_head = {m.n_head}"] if m.kv_heads != m.n_head else []
    wrong += [] if m.mlp_width else ["model.d_mlp = 0"]
    if wrong:
        raise UserError(f"{'; '.join(wrong)}: ANDREA's .bin format has no place for that")


def read(path: Path, m: Model, layout: Layout = MICROGPT) -> Checkpoint:
    """The checkpoint at `path`, of model m. Raises UserError for a file that is missing, cut short, foreign, of the
    other byte order, or does not fit the model, and where a wrong guess shows in its numbers."""
    refuse(m)
    _check_bos(m, layout)
    step, n_params = _header(path)
    expected = sum(math.prod(shape) for _, shape in _places(m, layout))
    if n_params != expected:
        hint = _fitting_vocabulary(m, n_params - expected)
        raise UserError(f"{path}: n_params = {n_params}, and the config's model has {expected}{hint}")
    parts = np.memmap(path, "<f4", mode="r", offset=_HEADER.size, shape=(3, n_params))
    for name, part in zip(_PARTS, parts, strict=True):
        if not np.isfinite(part).all():
            text = f"{np.count_nonzero(~np.isfinite(part))} of the {name} are not finite"
            raise UserError(f"{path}: {text}; the file is damaged, or of another format")
    if (negative := np.count_nonzero(parts[2] < 0)) > 0:
        text = f"{negative} of the {_PARTS[2]} are negative, which they never are"
        raise UserError(f"{path}: {text}; the file is damaged, or of another format")
    return Checkpoint(step, *(_unpacked(m, layout, part) for part in parts))


def _header(path: Path) -> tuple[int, int]:
    """(step, n_params), once the size of the file is what they say."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
        size = path.stat().st_size
    except OSError as error:
        neighbours = [file.name for file in path.parent.glob("*.bin")]
        raise UserError(f"{path}: {error.strerror}{did_you_mean(path.name, neighbours)}") from None
    if len(head) < _HEADER.size:
        raise UserError(f"{path}: is no ANDREA .bin file: it has {size} bytes, and the header alone has {_HEADER.size}")
    step, n_params = _HEADER.unpack(head)
    needed = _bytes(n_params)
    if size == needed and n_params > 0 and step >= 0:
        return step, n_params
    if struct.unpack(">ii", head)[1] > 0 and size == _bytes(struct.unpack(">ii", head)[1]):
        raise UserError(f"{path}: is big-endian; ANDREA's .bin format is little-endian")
    said = f"its header says step = {step}, n_params = {n_params}"
    if n_params <= 0 or step < 0:
        raise UserError(f"{path}: is no ANDREA .bin file: {said}")
    if size == _HEADER.size + 4 * n_params:
        raise UserError(f"{path}: ends after the weights, without Adam's moments: {said}, which make {needed} bytes")
    what = "is cut short" if size < needed else f"has {size - needed} bytes left over"
    raise UserError(f"{path}: {what}, or is no ANDREA .bin file: {said}, which make {needed} bytes, not {size}")


def _bytes(n_params: int) -> int:
    return _HEADER.size + 3 * 4 * n_params


def _fitting_vocabulary(m: Model, too_many: int) -> str:
    vocab_size, left = divmod(m.vocab_size * 2 * m.d_model + too_many, 2 * m.d_model)
    return f"; model.vocab_size = {vocab_size} would fit" if not left and vocab_size > 0 else ""


def _check_bos(m: Model, layout: Layout) -> None:
    if not 0 <= layout.bos < m.vocab_size:
        raise UserError(f"bos = {layout.bos}: must be a token id, below model.vocab_size = {m.vocab_size}")


def _places(m: Model, layout: Layout) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
    """(path in the parameter tree, shape there) of every parameter, in the order of the file."""
    leaves = jax.tree_util.tree_leaves_with_path(abstract(_apart(m)))
    shapes = {tuple(str(entry.key) for entry in path): leaf.shape for path, leaf in leaves}
    layers, done = range(m.n_layer), False
    for name in layout.order:
        if name in OUTSIDE:
            paths = [OUTSIDE[name]]
        elif layout.stacked:
            paths = [("layers", str(i), *OF_A_LAYER[name]) for i in layers]
        else:  # the first of a layer's names brings all of them, layer after layer
            names = [] if done else [other for other in layout.order if other in OF_A_LAYER]
            paths, done = [("layers", str(i), *OF_A_LAYER[other]) for i in layers for other in names], True
        yield from ((path, shapes[path]) for path in paths)


def write(path: Path, m: Model, checkpoint: Checkpoint, layout: Layout = MICROGPT) -> None:
    """Writes the checkpoint of model m at `path`. `read` with the same layout gives the same bits back.

    Raises UserError where `path` exists, and where the file has no place for a parameter.
    """
    refuse(m)
    _check_bos(m, layout)
    zeros = jax.tree.map(np.zeros_like, checkpoint.params)
    parts = checkpoint.params, checkpoint.first or zeros, checkpoint.second or zeros
    n_params = sum(math.prod(shape) for _, shape in _places(m, layout))
    with draft_of(path) as draft, draft.open("wb") as file:
        file.write(_HEADER.pack(checkpoint.step, n_params))
        for part in parts:
            tree = convert(m, part, "fused", "three")[1]
            for place, _ in _places(m, layout):
                value = _bos_exchanged(place, np.asarray(functools.reduce(dict.__getitem__, place, tree)), layout)
                file.write(np.ascontiguousarray(value.T if _turned(place, layout) else value, "<f4").tobytes())


def _unpacked(m: Model, layout: Layout, flat: np.ndarray) -> Params:
    """One part of the file as a tree of parameters, in the projection of m."""
    tree: Params = {}
    at = 0
    for place, shape in _places(m, layout):
        values = flat[at : at + math.prod(shape)]
        value = values.reshape(shape[::-1]).T if _turned(place, layout) else values.reshape(shape)
        holder = functools.reduce(lambda tree, key: tree.setdefault(key, {}), place[:-1], tree)
        holder[place[-1]] = jnp.asarray(_bos_exchanged(place, value, layout), jnp.float32)
        at += math.prod(shape)
    return convert(_apart(m), tree, m.projection, m.projection_form)[1]


def _apart(m: Model) -> Model:
    """The model with a matrix each for W_Q, W_K and W_V, as the file has them."""
    return replace(m, projection="fused", projection_form="three")


def _turned(place: tuple[str, ...], layout: Layout) -> bool:
    """Whether the file has the transpose of what the parameter tree has there: [in, out]."""
    return layout.matrices == "out_in" and place[-1] not in ("W_E", "W_P")


def _bos_exchanged(place: tuple[str, ...], value: np.ndarray, layout: Layout) -> np.ndarray:
    """Ids 0 and `bos` change places, in the rows of W_E and the columns of W_U."""
    axis = {"W_E": 0, "W_U": 1}.get(place[-1])
    return value if axis is None else np.take(value, exchanged(value.shape[axis], layout.bos), axis)
