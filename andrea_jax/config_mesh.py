"""`compute.mesh`: over how many devices training is spread. The standard library only, as `config.py`."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """data · fsdp · heads devices, the first of those that JAX sees."""

    data: int = 1  # devices that share the windows of a batch, each with all the weights
    fsdp: int = 1  # that share the windows too, and each keeps a part of the weights and of the optimizer's state
    heads: int = 1  # that share the heads of every layer, the MLP's width and, where it divides, the vocabulary

    @property
    def size(self) -> int:
        return self.data * self.fsdp * self.heads

    @property
    def shape(self) -> str:
        """ "data 2 × heads 4": the axes that are cut."""
        return " × ".join(f"{axis} {n}" for axis, n in vars(self).items() if n > 1) or "one device"


def misfits(mesh: Mesh, *, batch_size: int, accumulate: int, kv_heads: Sequence[int], mlp_width: int) -> list[str]:
    """What does not divide evenly; kv_heads: key-value heads of each layer. Each text names the keys it depends on."""
    if not all(n > 0 for n in vars(mesh).values()):
        return ["must have numbers above 0"]
    found, n = [], mesh.heads
    parts = mesh.data * mesh.fsdp
    if parts > 1 and batch_size % (parts * accumulate):
        product = f"data · fsdp · train.accumulate = {parts} · {accumulate}"
        found.append(f"{product} must divide train.batch_size = {batch_size}")
    if any(of_layer % n for of_layer in kv_heads):
        shown = ", ".join(str(of_layer) for of_layer in dict.fromkeys(kv_heads))
        text = f"heads = {n} must divide the key-value heads of every layer, {shown}"
        found.append(f"{text} (model.n_kv_head, by default model.n_head; model.heads_per_layer)")
    if mlp_width % n:
        found.append(f"heads = {n} must divide model.d_mlp = {mlp_width} (by default 4 · model.d_model)")
    return found
