"""The engine: one forward pass, and the mass that every head puts on every probe's targets.

With the log-sum-exp of the attention kernel, one entry of the pattern costs one dot product,

    A[h, q, k] = exp(q_h·k_h/√head_dim − lse[h, q]),

so only the listed (query, key) pairs are computed: O(pairs · head_dim), never T × T. Probes of a fixed distance, of
which the offset profile alone has 33, are read off one band of the pattern instead, which costs one small matmul. What
comes out are sums for each sequence, from which `statistics.py` makes scores and intervals in numpy. All of it is
float32, whatever the model's dtype. Nothing that is passed in changes.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import Precision

from andrea_jax.config import Model
from andrea_jax.heads.targets import Targets, check_single_documents
from andrea_jax.model import Params, bind

CHUNK = 1024  # pairs of a sequence gathered at once on a CPU ...
PAIRS_ELSEWHERE = 2**17  # ... and of a whole batch on an accelerator, which has no use for short loops
BAND = 32  # the longest distance read off a band
WORTH_A_BAND = 8  # probes of a fixed distance; fewer cost less pair by pair
TOKENS_A_BATCH = 2**14

Progress = Callable[[int, int], None]  # (sequences done, sequences in all)


@dataclass(frozen=True)
class Sums:
    """Sums over the counted queries of one probe, one row a sequence.

    mass: float32 [sequence, n_layer, n_head], Σ_q Σ_targets A · off_bos: the same shape, Σ_q (1 − A[q, 0]) ·
    uniform: float64 [sequence], Σ_q |targets of q| / (q + 1), the mass of causal-uniform attention ·
    n: int64 [sequence], queries with a target.
    Past the last head of a pruned layer (config.layer_heads) mass and off_bos are nan.
    """

    mass: np.ndarray
    off_bos: np.ndarray
    uniform: np.ndarray
    n: np.ndarray

    def on(self, sequences: slice | np.ndarray) -> "Sums":
        """The sums of some of the sequences."""
        return Sums(self.mass[sequences], self.off_bos[sequences], self.uniform[sequences], self.n[sequences])


@dataclass(frozen=True)
class Measured:
    """`probes`: name -> Sums · `entropy`: float32 [sequence, n_layer, n_head], nats, summed over all queries, or None
    where it was not asked for · `listed`: float32 [pair, n_layer, n_head], A at each listed pair, in their order.
    """

    probes: dict[str, Sums]
    entropy: np.ndarray | None
    listed: np.ndarray


NO_TARGETS = Targets(*np.zeros((3, 0), np.int32))
Distances = tuple[int | None, ...]


def measure(
    config: Model,
    params: Params,
    tokens: np.ndarray,
    targets: Mapping[str, Targets],
    *,
    listed: Targets | None = None,
    entropy: bool = False,
    dtype: str = "float32",
    backend: str = "auto",
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Measured:
    """Runs all probes of `targets` on tokens int [sequence, position] in one pass over them.

    listed: pairs whose entries of the pattern are wanted one by one. batch_size: sequences at once (None: about
    16,384 tokens); compiled once for all batches. Raises ValueError where a sequence does not start with BOS or
    crosses documents, or a target is outside the sequence or in the future.
    """
    listed = listed or NO_TARGETS
    _check(tokens, {**targets, "listed": listed})
    n, length = tokens.shape
    if n == 0:
        return _nothing(config, targets, entropy)
    distances = by_distance(list(targets.values()), n, length)
    pairs, single = Pairs.of(list(targets.values()), n, distances), Pairs.of([listed], n)
    counted = np.stack([t.counted(n, length) for t in targets.values()], axis=1)
    size, batches = min(n, batch_size or max(1, TOKENS_A_BATCH // length)), []
    for start in range(0, n, size):
        rows = np.minimum(np.arange(start, start + size), n - 1)  # the last batch repeats a sequence to keep its shape
        arrays = tokens[rows].astype(np.int32), pairs.padded[:, rows], counted[rows], single.padded[:, rows]
        sums = _measure(config, str(jnp.dtype(dtype)), backend, entropy, distances, params, *arrays)
        batches.append({name: np.asarray(x)[: n - start] for name, x in sums.items()})
        if progress:
            progress(min(start + size, n), n)
    sums = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    uniform = [np.bincount(t.sequence, 1 / (t.query + 1.0), n) for t in targets.values()]
    columns = (sums["mass"].swapaxes(0, 1), sums["off_bos"].swapaxes(0, 1), uniform, counted.sum(axis=-1).T)
    probes = {name: Sums(*column) for name, column in zip(targets, zip(*columns, strict=True), strict=True)}
    return Measured(probes, sums["entropy"] if entropy else None, sums["listed"][single.sequence, single.place])


def _check(tokens: np.ndarray, targets: Mapping[str, Targets]) -> None:
    check_single_documents(tokens)
    n, length = tokens.shape
    for name, t in targets.items():
        if not t.sequence.shape == t.query.shape == t.key.shape:
            sizes = f"{len(t.sequence)}, {len(t.query)} and {len(t.key)}"
            raise ValueError(f"probe {name}: sequence, query and key must be as long as each other, not {sizes}")
        wrong = ~((t.key >= 0) & (t.key <= t.query) & (t.query < length) & (t.sequence >= 0) & (t.sequence < n))
        if wrong.any():
            first = f"sequence {t.sequence[wrong][0]}, query {t.query[wrong][0]}, key {t.key[wrong][0]}"
            text = f"a target is outside its sequence or in its query's future: {first}"
            raise ValueError(f"probe {name}: {text}, of {n} sequences of {length} tokens")


def _nothing(config: Model, targets: Mapping[str, Targets], entropy: bool) -> Measured:
    nothing = np.zeros((0, config.n_layer, config.n_head), np.float32)
    empty = Sums(nothing, nothing, np.zeros(0), np.zeros(0, np.int64))
    return Measured(dict.fromkeys(targets, empty), nothing if entropy else None, nothing)


def by_distance(targets: list[Targets], n: int, length: int) -> Distances:
    """For each probe the one distance of all its targets, where it asks that of every query; else, and where so few
    have one that a band would not pay, None."""
    found = [_distance(t, n, length) for t in targets]
    few = len(found) - found.count(None) < WORTH_A_BAND
    return (None,) * len(found) if few else tuple(found)


def _distance(t: Targets, n: int, length: int) -> int | None:
    distance = t.query - t.key
    first = int(distance[0]) if len(distance) else BAND + 1
    whole = len(distance) == n * (length - max(first, 1))
    return first if first <= BAND and whole and (distance == first).all() and t.query.min() > 0 else None


@dataclass(frozen=True)
class Pairs:
    """Some probes' pairs, sorted into their sequences.

    padded: int32 [3, sequence, slot], rows query, key and probe; probe −1 pads to a multiple of CHUNK slots, or of 64
    where all fit into one chunk. Pair i is in slot place[i] of sequence[i].
    """

    padded: np.ndarray
    sequence: np.ndarray
    place: np.ndarray

    @staticmethod
    def of(targets: list[Targets], n: int, distances: Distances = ()) -> "Pairs":
        """Without the probes that have a distance: see `by_distance`."""
        targets = [NO_TARGETS if i < len(distances) and distances[i] is not None else t for i, t in enumerate(targets)]
        probe = np.repeat(np.arange(len(targets)), [len(t.key) for t in targets])
        sequence, query, key = (np.concatenate([getattr(t, x) for t in targets]) for x in ("sequence", "query", "key"))
        counts = np.bincount(sequence, minlength=n)
        step = 64 if counts.max() <= CHUNK else CHUNK
        padded = np.zeros((3, n, step * max(1, -(-int(counts.max()) // step))), np.int32)
        padded[2] = -1
        order, place = np.argsort(sequence, kind="stable"), np.empty(len(sequence), int)
        place[order] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        padded[:, sequence, place] = query, key, probe
        return Pairs(padded, sequence, place)


def forward(
    config: Model,
    dtype: str,
    backend: str,
    entropy: bool,
    distances: Distances,
    params: Params,
    tokens: Array,
    pairs: Array,
    counted: Array,
    single: Array,
) -> tuple[Array, dict[str, Array]]:
    """The model's logits, and what was measured on the way:

    mass, off_bos float32 [batch, probe, n_layer, n_head] · listed [batch, slot, n_layer, n_head] · entropy [batch,
    n_layer, n_head] where asked. distances: see `by_distance`. pairs and single: int32 [3, batch, slot], as in `Pairs`;
    counted bool [batch, probe, query].
    """
    now: dict[str, Array] = {}
    layers: list[dict[str, Array]] = []

    def listen(layer: int, point: str, value: Array) -> Array:
        now[point] = value
        if point == "lse":
            mass, off_bos = _layer_sums(now["q"], now["k"], value, pairs, counted)
            if any(distance is not None for distance in distances):
                mass = mass + _on_band(now["q"], now["k"], value, distances)
            listed = pattern_at(now["q"], now["k"], value, single[0], single[1])
            layers.append({"mass": mass, "off_bos": off_bos, "listed": listed})
        if point == "entropy":
            layers[-1]["entropy"] = value.sum(axis=-1)
        return value

    logits = bind(config, params, dtype=dtype, backend=backend)(tokens, tap=listen, entropy=entropy)
    return logits, {name: _stack([layer[name] for layer in layers], config.n_head) for name in layers[0]}


def _stack(layers: list[Array], n_head: int) -> Array:
    """[..., n_layer, n_head] from [..., heads] of each layer, nan where a layer has fewer."""
    spare = [[(0, 0)] * (x.ndim - 1) + [(0, n_head - x.shape[-1])] for x in layers]
    full = [jnp.pad(x, widths, constant_values=jnp.nan) for x, widths in zip(layers, spare, strict=True)]
    return jnp.stack(full, axis=-2)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _measure(*arguments) -> dict[str, Array]:
    """`forward` without the logits, so that XLA leaves out what only they need."""
    return forward(*arguments)[1]


def _layer_sums(q: Array, k: Array, lse: Array, pairs: Array, counted: Array) -> tuple[Array, Array]:
    """(mass, off_bos) of one layer, float32 [batch, probe, n_head]; pairs a chunk at a time, in a fixed order."""
    batch, n_probe, _ = counted.shape
    at_once = CHUNK if jax.default_backend() == "cpu" else max(CHUNK, PAIRS_ELSEWHERE // batch)
    chunk = min(at_once, pairs.shape[-1])
    padded = jnp.pad(pairs, ((0, 0), (0, 0), (0, -pairs.shape[-1] % chunk)), constant_values=-1)
    chunks = padded.reshape(3, batch, -1, chunk).transpose(2, 0, 1, 3)

    def add(total: Array, chunk: Array) -> tuple[Array, None]:
        query, key, probe = chunk
        mass = pattern_at(q, k, lse, query, key)
        mine = jax.nn.one_hot(probe, n_probe)
        return total + jnp.einsum("bph,bpn->bnh", mass, mine, precision=Precision.HIGHEST), None

    mass, _ = jax.lax.scan(add, jnp.zeros((batch, n_probe, q.shape[2])), chunks)
    off_bos = 1 - _entries(q, k[:, :1], lse.transpose(0, 2, 1))
    return mass, jnp.einsum("bqh,bnq->bnh", off_bos, counted.astype(jnp.float32), precision=Precision.HIGHEST)


def _on_band(q: Array, k: Array, lse: Array, distances: Distances) -> Array:
    """Σ_q A[q, q − d] of the probes with a distance d, 0 of the others: float32 [batch, probe, n_head].

    A block of BAND queries sees itself and the block before it, 2·BAND keys, which hold all its distances up to BAND.
    """
    batch, length, n_head, head_dim = q.shape
    n = -(-length // BAND)
    blocks = [jnp.pad(x, ((0, 0), (0, n * BAND - length), (0, 0), (0, 0))) for x in (q, k)]
    queries, keys = (x.reshape(batch, n, BAND, x.shape[2], head_dim) for x in blocks)
    before = jnp.pad(keys, ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)))[:, :-1]
    queries = queries.reshape(batch, n, BAND, k.shape[2], -1, head_dim)  # query head h reads kv head h // group
    scores = jnp.einsum(  # products of bfloat16 are exact in float32
        "bnikgd,bnjkd->bnkgij", queries, jnp.concatenate([before, keys], axis=2),
        precision=Precision.HIGHEST, preferred_element_type=jnp.float32,
    )  # fmt: skip
    # row i of a block is wanted at columns i to i + BAND: one column more shifts each row by one, and they line up
    flat = scores.reshape(batch, n, n_head, 2 * BAND**2) * head_dim**-0.5
    skewed = jnp.pad(flat, ((0, 0), (0, 0), (0, 0), (0, BAND))).reshape(batch, n, n_head, BAND, 2 * BAND + 1)
    of_row = jnp.pad(lse, ((0, 0), (0, 0), (0, n * BAND - length)), constant_values=jnp.inf)
    of_row = of_row.reshape(batch, n_head, n, BAND).transpose(0, 2, 1, 3)[..., None]
    band = jnp.exp(skewed[..., : BAND + 1] - of_row)  # the last is distance 0
    row, distance = jnp.arange(n * BAND).reshape(1, n, 1, BAND, 1), BAND - jnp.arange(BAND + 1)[None, None, None, None]
    mass = jnp.where(row >= jnp.maximum(distance, 1), band, 0).sum(axis=(1, 3))  # [batch, n_head, BAND + 1]
    wanted = [jnp.zeros(mass.shape[:2]) if d is None else mass[..., BAND - d] for d in distances]
    return jnp.stack(wanted, axis=1)


def pattern_at(q: Array, k: Array, lse: Array, query: Array, key: Array) -> Array:
    """A[h, query, key] for listed pairs: query, key int32 [batch, pair] -> float32 [batch, pair, n_head].

    q [batch, seq, n_head, head_dim], k [batch, seq, n_kv_head, head_dim], lse [batch, n_head, seq].
    """
    q_rows, k_rows = (jnp.take_along_axis(x, at[:, :, None, None], axis=1) for x, at in ((q, query), (k, key)))
    return _entries(q_rows, k_rows, jnp.take_along_axis(lse.transpose(0, 2, 1), query[:, :, None], axis=1))


def _entries(q: Array, k: Array, lse: Array) -> Array:
    """exp(q_i·k_i/√head_dim − lse_i), row by row: q [batch, row, n_head, head_dim], k [batch, row or 1, n_kv_head,
    head_dim], lse [batch, row, n_head] -> float32 [batch, row, n_head]."""
    batch, n, n_head, head_dim = q.shape
    grouped = q.astype(jnp.float32).reshape(batch, n, k.shape[2], -1, head_dim)  # head h reads kv head h // group
    scores = (grouped * k.astype(jnp.float32)[:, :, :, None]).sum(axis=-1) * head_dim**-0.5
    return jnp.exp(scores.reshape(batch, n, n_head) - lse)
