"""What training takes, before anything is allocated or compiled: memory on each device, FLOPs, time.

Memory is a sum of parts, all counted from shapes (a = bytes of compute.dtype, N = parameters):

    weights               4·N                  float32, as the optimizer sees them
    gradients             4·N
    summed gradients      4·N                  where train.accumulate > 1
    optimizer             its own state        jax.eval_shape of the real one: 8·N for adamw, 4·N for sgd, ...
    weights multiplied    a·(N − embeddings)   where compute.dtype is not float32: cast once a step
    activations           what the backward pass reads of the forward pass, below
    one block again       a block's activations, where compute.remat computes blocks again
    logits                (4 + a)·vocab_size   a token: float32, and their derivative (in pieces, see cross_entropy.py)

Activations, numbers a token: norm(x), d_model, and 1 / rms(x), a float32, before attention and before the MLP (where
a norm has a gain or centres, x and norm(x)); q, k, v and z, (2·n_head + 2·n_kv_head)·head_dim, and lse, n_head
float32; act(x·W_in) of the MLP, d_mlp, and for gelu x·W_in as well.
attention_kept keeps x, z and lse of a block, block keeps x. Tokens are those of one pass: batch_size · seq_len /
(accumulate · the mesh's data and fsdp axes).

That is what any implementation needs at one time or another, and nothing besides: what this does not fit into is too
small. The step compiled for an H200 takes as much within 1% (docs/results). tests/test_estimate.py holds it beside what
XLA says about the step on a CPU, which takes up to twice as much in float32, for copies and for what it does not fuse
(2.2 times in bfloat16, which it widens), and more where attention keeps the pattern of short sequences
(attention/short.py).

FLOPs a token: 2 for each weight of a matrix product (W_E and W_P are looked up) and 2·seq_len·n_head·head_dim a layer
for causal attention; the backward pass takes twice the forward (Kaplan et al. 2020, section 2.1, half of it masked).
Computing blocks again is not counted: it is no progress.
"""

import os
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from andrea_jax.config import Experiment
from andrea_jax.counting import parameters_by_part
from andrea_jax.errors import UserError
from andrea_jax.model import abstract
from andrea_jax.training import optimizer
from andrea_jax.training.cross_entropy import AT_ONCE


@dataclass(frozen=True)
class Estimate:
    """parameters: by part · memory: bytes on each device, by part · forward, step: FLOPs a token of the forward pass,
    and of forward and backward · tokens: of the whole run."""

    parameters: dict[str, int]
    memory: dict[str, int]
    forward: int
    step: int
    tokens: int

    @property
    def total(self) -> int:
        """Bytes on each device."""
        return sum(self.memory.values())

    def seconds(self, *, tokens_per_s: float | None = None, tflops: float | None = None) -> float | None:
        """How long the run takes at a throughput: tokens/s, or 10^12 FLOPs/s of the model's own. None where none is."""
        if tflops is not None:
            tokens_per_s = tflops * 1e12 / self.step
        return None if tokens_per_s is None else self.tokens / tokens_per_s


def estimate(e: Experiment) -> Estimate:
    """Counts everything; takes no memory and compiles nothing."""
    parameters = parameters_by_part(e.model)
    multiplied = sum(parameters.values()) - parameters["embeddings"]
    if e.model.tied_embeddings:
        multiplied += e.model.vocab_size * e.model.d_model
    attention = 2 * e.data.seq_len * sum(e.model.layer_heads) * e.model.head_dim
    forward = 2 * multiplied + attention
    tokens = e.train.steps * e.train.batch_size * e.data.seq_len
    return Estimate(parameters, _memory(e, multiplied), forward, 3 * forward, tokens)


def _memory(e: Experiment, multiplied: int) -> dict[str, int]:
    mesh, weights = e.compute.mesh, abstract(e.model)
    parts = mesh.fsdp * mesh.heads  # devices that share the weights
    n_bytes = _bytes(weights)
    state = _bytes(jax.eval_shape(optimizer.make(e.optim, e.train.steps).init, weights))
    passes = e.train.accumulate * mesh.data * mesh.fsdp
    tokens = -(-e.train.batch_size // passes) * e.data.seq_len
    by_layer = [_layer_bytes(e, heads) for heads in e.model.layer_heads]
    again = 0 if e.compute.remat == "none" else max(_layer_bytes(e, heads, "none") for heads in e.model.layer_heads)
    size, logits = jnp.dtype(e.compute.dtype).itemsize, 4 * tokens * e.model.vocab_size
    memory = {
        "weights": n_bytes // parts,
        "gradients": n_bytes // parts,
        "summed gradients": n_bytes // parts if e.train.accumulate > 1 else 0,
        "optimizer": state // parts,
        "weights multiplied": size * multiplied // mesh.heads if size < 4 or mesh.fsdp > 1 else 0,
        "activations": tokens * (sum(by_layer) + _norm_bytes(e)),
        "one block again": tokens * again,
        "logits": logits // -(-logits // AT_ONCE) * (4 + size) // 4,
    }
    return {part: n for part, n in memory.items() if n}


def _bytes(tree) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _layer_bytes(e: Experiment, n_head: int, remat: str | None = None) -> int:
    """What one layer with n_head heads keeps of a token, bytes on each device."""
    m, size, devices = e.model, jnp.dtype(e.compute.dtype).itemsize, e.compute.mesh.heads
    kept, remat = size * m.d_model, remat or e.compute.remat  # x
    z_and_lse = n_head * (size * m.head_dim + 4) // devices
    if remat == "block":
        return kept
    if remat == "attention_kept":
        return kept + z_and_lse
    qkv = (n_head + 2 * (n_head // m.group)) * m.head_dim * size // devices
    wide = m.mlp_width * size * (1 if m.activation == "relu" else 2)
    mlp = wide // devices + (_norm_bytes(e) if m.mlp_width else 0)
    return _norm_bytes(e) + qkv + z_and_lse + mlp


def _norm_bytes(e: Experiment) -> int:
    """What a norm keeps of a token: its result and 1 / rms(x), or x too."""
    result = jnp.dtype(e.compute.dtype).itemsize * e.model.d_model
    return result + 4 if e.model.norm == "rms" and not e.model.norm_weights else 2 * result


# -- does it fit? ------------------------------------------------------------------------------------------------------


def usable(memory: int) -> int:
    """Bytes that JAX takes of a GPU's memory: XLA_PYTHON_CLIENT_MEM_FRACTION of it, 0.75 where nothing is said."""
    return int(memory * float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75")))


def device_memory() -> int | None:
    """Bytes that JAX may use on the first device; None where it does not say, as CPUs."""
    stats = jax.local_devices()[0].memory_stats()
    return stats.get("bytes_limit") if stats else None


def refuse_too_large(e: Experiment, found: Estimate, limit: int, where: str) -> None:
    """UserError where `found` is more than `limit` bytes: the largest parts, and what each key would change."""
    if found.total <= limit:
        return
    largest = sorted(found.memory.items(), key=lambda part: -part[1])[:3]
    parts = ", ".join(f"{part} {in_gb(n)}" for part, n in largest)
    changed = {change: estimate(new).total for change, new in _smaller(e, limit).items()}
    helps = ", ".join(f"{c} ({in_gb(changed[c])})" for c in sorted(changed, key=lambda c: changed[c]))
    text = f"training needs at least {in_gb(found.total)} on a device, and {where} has {in_gb(limit)} to use"
    raise UserError(f"{text}; the largest parts: {parts}; what helps: {helps}")


def in_gb(n: float) -> str:
    """ "18.2 GB" (10^9 bytes), "0.05 GB"."""
    return f"{n / 1e9:.1f} GB" if n >= 1e8 else f"{n / 1e9:.2g} GB"


def _smaller(e: Experiment, limit: int) -> dict[str, Experiment]:
    """Changes of one key that take less memory."""

    def changed(section: str, **new: int | str) -> Experiment:
        return replace(e, **{section: replace(getattr(e, section), **new)})

    found, windows = {}, e.train.batch_size // e.train.accumulate
    halves = [n for n in range(2, windows + 1) if windows % n == 0]
    if halves:
        parts = [changed("train", accumulate=n * e.train.accumulate) for n in halves]
        enough = next((new for new in parts if estimate(new).total <= limit), parts[-1])
        found[f"train.accumulate={enough.train.accumulate}"] = enough
        found[f"train.batch_size={e.train.batch_size // halves[0]}"] = changed(
            "train", batch_size=e.train.batch_size // halves[0]
        )
    order = ("none", "attention_kept", "block")
    for remat in order[order.index(e.compute.remat) + 1 :]:
        found[f"compute.remat={remat}"] = changed("compute", remat=remat)
    if e.compute.dtype == "float32":
        found["compute.dtype=bfloat16"] = changed("compute", dtype="bfloat16")
    if e.optim.name in ("adamw", "lamb", "muon"):
        found["optim.name=adafactor"] = changed("optim", name="adafactor")
    return found
