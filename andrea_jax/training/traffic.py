"""What a step on a mesh sends between devices, and what that costs: a plan, before there are so many devices.

Bytes that each device sends a step. Collectives are rings: 2·(n − 1)/n of the array for an all-reduce, (n − 1)/n for
the others. a: bytes of compute.dtype; W: numbers of the layers' matrices, E: of W_E, W_P and W_U, as the heads axis
leaves them on a device; x: numbers of the residual stream, windows of a device · seq · d_model.

    data    all-reduce of gradients           (a·W + 4·E) / fsdp
    fsdp    all-gather of weights             a·(W + W_U) + 4·(W_E + W_P)
            reduce-scatter of gradients       a·W + 4·E
    heads   all-reduces of activations        a·x each: after W_O and W_out, and in the backward before the MLP and for
                                              each of q, k and v; where the vocabulary is cut, of W_E's and W_U's too
            all-to-alls, fused W_QKV only     a·|W_QKV| there, and its gradient back

Norms and the loss are a few numbers. Gradients cross the data and fsdp axes in the dtype that they were multiplied in.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from andrea_jax.config import Model
from andrea_jax.config_mesh import Mesh
from andrea_jax.counting import parameters_by_part

LATENCY_HOST, LATENCY_NETWORK = 10e-6, 20e-6  # seconds a hop of a tree, within a host and between hosts
OVERLAPS = 2 / 3  # of a step's computing, the backward pass, behind which gradients and weights can travel


@dataclass(frozen=True)
class Links:
    """Bytes/s that a device sends, one way."""

    host: float = 450e9  # NVLink 4
    network: float = 50e9  # one 400 Gbit/s adapter a device
    per_host: int = 8  # devices


@dataclass(frozen=True)
class Sent:
    """Bytes that a device sends a step over one axis, in how many collectives."""

    bytes: float
    calls: int


def sent(config: Model, mesh: Mesh, *, windows: int, seq: int, itemsize: int) -> dict[str, Sent]:
    """Axis -> what a device sends in a step of `windows` windows in all, over the axes that are cut."""
    axes = {"data": _data, "fsdp": _fsdp, "heads": _heads}
    stream = itemsize * (windows // (mesh.data * mesh.fsdp)) * seq * config.d_model
    return {axis: count(config, mesh, itemsize, stream) for axis, count in axes.items() if vars(mesh)[axis] > 1}


def _weights(config: Model, mesh: Mesh) -> tuple[int, int, int]:
    """Numbers that the heads axis leaves on a device: layers' matrices, embeddings (W_E and W_P), W_U."""
    parts = parameters_by_part(config)
    layers = sum(parts[name] for name in ("W_Q", "W_K", "W_V", "W_O", "MLP")) // mesh.heads
    vocabulary = mesh.heads if config.vocab_size % mesh.heads == 0 else 1
    words = config.vocab_size * config.d_model
    return layers, parts["embeddings"] - words + words // vocabulary, parts["unembedding"] // vocabulary


def _data(config: Model, mesh: Mesh, itemsize: int, stream: int) -> Sent:
    layers, embeddings, unembedding = _weights(config, mesh)
    gradients = (itemsize * layers + 4 * (embeddings + unembedding)) / mesh.fsdp
    return Sent(2 * _ring(mesh.data) * gradients, config.n_layer)


def _fsdp(config: Model, mesh: Mesh, itemsize: int, stream: int) -> Sent:
    layers, embeddings, unembedding = _weights(config, mesh)
    gathered = itemsize * (layers + unembedding) + 4 * embeddings
    scattered = itemsize * layers + 4 * (embeddings + unembedding)
    return Sent(_ring(mesh.fsdp) * (gathered + scattered), 2 * config.n_layer)


def _heads(config: Model, mesh: Mesh, itemsize: int, stream: int) -> Sent:
    n, vocabulary = 6 if config.mlp_width else 4, 2 if config.vocab_size % mesh.heads == 0 else 0
    calls = n * config.n_layer + vocabulary
    moved = 0
    if config.form == "one":
        parts = parameters_by_part(config)
        moved = itemsize * (parts["W_Q"] + parts["W_K"] + parts["W_V"]) // mesh.heads
    ring = _ring(mesh.heads)
    return Sent(2 * ring * calls * stream + 2 * ring * moved, calls + (6 * config.n_layer if moved else 0))


def _ring(n: int) -> float:
    return (n - 1) / n


def seconds(over: Mapping[str, Sent], mesh: Mesh, links: Links) -> dict[str, float]:
    """Axis -> time on the wire: bytes over the slowest link that the axis crosses, and a tree's hops a collective."""
    stride, found = 1, {}
    for axis in ("heads", "fsdp", "data"):  # the innermost first
        n = vars(mesh)[axis]
        stride *= n
        if axis in over:
            outside = stride > links.per_host
            rate, hop = (links.network, LATENCY_NETWORK) if outside else (links.host, LATENCY_HOST)
            found[axis] = over[axis].bytes / rate + over[axis].calls * hop * math.log2(n)
    return found


def efficiency(computing: float, times: Mapping[str, float]) -> tuple[float, float]:
    """(nothing overlaps, everything that can does): the share of a step in which a device computes.

    Gradients and weights (data, fsdp) can travel while the backward pass computes; what the heads axis sends cannot:
    the next product waits for it.
    """
    waits, hidden = times.get("heads", 0.0), sum(times.get(axis, 0.0) for axis in ("data", "fsdp"))
    exposed = max(0.0, hidden - OVERLAPS * computing)
    return computing / (computing + waits + hidden), computing / (computing + waits + exposed)
