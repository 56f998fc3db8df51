"""Where the arrays of a training run lie: on one device, or cut over the mesh that `compute.mesh` asks for.

    batches                   windows over data and fsdp
    activations               windows over data and fsdp; q, k, v and z their heads over heads
    W_Q, W_K, W_V, W_O        heads over heads, in both projections
    W_in, W_out               d_mlp over heads
    W_E, W_U                  the vocabulary over heads, where it divides
    any of these              also its d_model axis over fsdp, and its optimizer state as itself

XLA derives the rest. A step gathers the weights that fsdp has cut once, in the dtype they are multiplied in, and its
gradients come back cut (Rajbhandari et al. 2020, "ZeRO", section 5; here the gathered copies last until the backward
is through). W_QKV cannot be cut by columns: its q | k | v would end inside a device's part. It is kept cut by rows
instead, and a step moves it to W_Q, W_K and W_V cut by heads: 3·d_model² numbers a layer, next to nothing.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from andrea_jax.config import Model
from andrea_jax.config_mesh import Mesh
from andrea_jax.devices import ROWS
from andrea_jax.errors import UserError
from andrea_jax.model import Params, Tap, no_tap

# which axis of a parameter the heads axis of the mesh cuts, by name and number of axes
HEADS_AXIS = {
    ("W_Q", 3): 0, ("W_K", 3): 0, ("W_V", 3): 0, ("W_O", 3): 0, ("b_Q", 2): 0, ("b_K", 2): 0, ("b_V", 2): 0,
    ("W_Q", 2): 1, ("W_K", 2): 1, ("W_V", 2): 1, ("W_O", 2): 0, ("b_Q", 1): 0, ("b_K", 1): 0, ("b_V", 1): 0,
    ("W_QKV", 2): 0, ("W_in", 2): 1, ("b_in", 1): 0, ("W_out", 2): 0, ("W_E", 2): 0, ("W_U", 2): 1,
}  # fmt: skip
# which one the fsdp axis cuts: d_model
FSDP_AXIS = {
    ("W_Q", 3): 1, ("W_K", 3): 1, ("W_V", 3): 1, ("W_O", 3): 2, ("W_Q", 2): 0, ("W_K", 2): 0, ("W_V", 2): 0,
    ("W_O", 2): 1, ("W_QKV", 2): 0, ("W_in", 2): 0, ("W_out", 2): 1, ("W_E", 2): 1, ("W_P", 2): 1, ("W_U", 2): 0,
}  # fmt: skip
POINTS = {
    **dict.fromkeys(("resid_pre", "attention_out", "mlp_out", "resid_final"), P(ROWS)),
    **dict.fromkeys(("q", "k", "v", "z"), P(ROWS, None, "heads")),
}

Tree = TypeVar("Tree", Params, optax.OptState)


@dataclass(frozen=True)
class Placement:
    """`mesh` with axes data, fsdp and heads; None: everything lies on the default device, and nothing here acts."""

    mesh: jax.sharding.Mesh | None = None

    @staticmethod
    def of(mesh: Mesh) -> "Placement":
        """On the first devices. Raises UserError where there are fewer, or where a process would be left out."""
        devices = jax.devices()
        if mesh.size > len(devices) or (jax.process_count() > 1 and mesh.size != len(devices)):
            there = f"there {'is' if len(devices) == 1 else 'are'} {len(devices)}"
            if jax.process_count() > 1:
                there += f" in {jax.process_count()} processes, all of which must be used"
            raise UserError(f"compute.mesh: {mesh.shape} needs {mesh.size} devices, and {there}")
        if mesh.size == 1:
            return Placement()
        # heads innermost: devices beside each other talk fastest, and heads wait for each other in every layer
        grid = np.array(devices[: mesh.size]).reshape(mesh.data, mesh.fsdp, mesh.heads)
        return Placement(jax.sharding.Mesh(grid, ("data", "fsdp", "heads")))

    def __str__(self) -> str:
        """ "4 devices (data 2 × heads 2)"."""
        if self.mesh is None:
            return "one device"
        return f"{self.mesh.size} devices ({Mesh(**self.mesh.shape).shape})"

    @property
    def rows(self) -> int:
        """Into how many parts a batch is cut."""
        return 1 if self.mesh is None else self.mesh.shape["data"] * self.mesh.shape["fsdp"]

    def shardings(self, tree: Tree) -> Tree:
        """How parameters or an optimizer's state (arrays or shapes) are kept."""
        if self.mesh is None:
            here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
            return jax.tree.map(lambda _: here, tree)
        return jax.tree_util.tree_map_with_path(lambda path, x: self._sharding(path, x.shape), tree)

    def place(self, tree: Tree) -> Tree:
        """Whole arrays, the same in every process, as they are kept."""
        if self.mesh is None:
            return tree

        def cut(x: Array, sharding: NamedSharding) -> Array:
            whole = np.asarray(x)
            return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

        return jax.tree.map(cut, tree, self.shardings(tree))

    def on_each_host(self, params: Params) -> Params:
        """All of the parameters on one device of every process."""
        if self.mesh is None:
            return params
        everywhere = jax.jit(lambda tree: tree, out_shardings=NamedSharding(self.mesh, P()))(params)
        return jax.tree.map(lambda x: x.addressable_data(0), everywhere)

    @property
    def batches(self) -> jax.sharding.Sharding:
        """How the windows of a batch are cut."""
        if self.mesh is None:
            return jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return NamedSharding(self.mesh, P(ROWS))

    def batch(self, shape: tuple[int, int], make: Callable[[slice], np.ndarray]) -> Array:
        """The windows [batch, seq + 1] of a step: `make(rows)` makes those that this process needs."""
        if self.mesh is None:
            return jax.device_put(make(slice(None)))
        sharding = self.batches
        places = sharding.addressable_devices_indices_map(shape).values()
        mine = [place[0].indices(shape[0]) for place in places if place]
        first, last = min(start for start, _, _ in mine), max(stop for _, stop, _ in mine)
        windows = make(slice(first, last))

        def part(place) -> np.ndarray:  # of one device: its rows and all columns
            start, stop, _ = place[0].indices(shape[0])
            return windows[start - first : stop - first]

        return jax.make_array_from_callback(shape, sharding, part)

    def gathered(self, config: Model, params: Params, dtype: str) -> tuple[Model, Params]:
        """Inside a step: (config, parameters) to bind, equal to those given, as the forward pass uses them."""
        if self.mesh is None:
            return config, params
        params = jax.tree_util.tree_map_with_path(functools.partial(self._gathered, dtype), params)
        if self.mesh.shape["heads"] == 1 or config.form != "one":
            return config, params
        layers = {i: self._split(config, layer) for i, layer in params["layers"].items()}
        return dataclasses.replace(config, projection_form="three"), {**params, "layers": layers}

    @property
    def tap(self) -> Tap:
        """For the model, where heads are cut: keeps activations as the page above says. `no_tap` elsewhere, where XLA
        derives them from the windows, and the model knows that nobody asks for q, k and v apart."""
        return no_tap if self.mesh is None or self.mesh.shape["heads"] == 1 else self._tap

    def _tap(self, layer: int, point: str, value: Array) -> Array:
        return self._as(POINTS[point], value) if point in POINTS else value

    def kept(self, tree: Tree) -> Tree:
        """Inside a step: parameters, gradients or an optimizer's state, kept as `shardings` says."""
        return tree if self.mesh is None else jax.lax.with_sharding_constraint(tree, self.shardings(tree))

    def whole(self, x: Array) -> Array:
        """Inside a step: `x` in full on every device, so that every process can read it."""
        return self._as(P(), x)

    def _as(self, spec: P, x: Array) -> Array:
        return x if self.mesh is None else jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))

    def _sharding(self, path: tuple, shape: tuple[int, ...]) -> NamedSharding:
        """How a parameter, or what an optimizer keeps of it, is kept: its name is the last key of its path."""
        assert self.mesh is not None
        return NamedSharding(self.mesh, _spec(self.mesh, _name(path), shape, cut=("heads", "fsdp")))

    def _gathered(self, dtype: str, path: tuple, x: Array) -> Array:
        assert self.mesh is not None
        name = _name(path)
        if self.mesh.shape["fsdp"] == 1 or (name, x.ndim) not in FSDP_AXIS:
            return x
        if path[0].key == "layers" or name == "W_U":  # embeddings are added up in float32
            x = x.astype(dtype)
        spec, kept = (_spec(self.mesh, name, x.shape, cut) for cut in (("heads",), ("heads", "fsdp")))
        return _gather(NamedSharding(self.mesh, spec), NamedSharding(self.mesh, kept), x)

    def _split(self, config: Model, layer: Params) -> Params:
        """A layer with W_Q, W_K, W_V cut by heads in place of W_QKV."""
        weights = dict(layer["attention"]["projection"])
        for kind in ("W", "b"):
            if f"{kind}_QKV" in weights:
                joined = weights.pop(f"{kind}_QKV")
                kv = joined.shape[-1] // (config.group + 2)  # columns of W_K and of W_V
                parts = jnp.split(joined, [config.group * kv, (config.group + 1) * kv], axis=-1)
                by_rows, by_heads = (P("heads"), P(None, "heads")) if kind == "W" else (P(), P("heads"))
                # first by rows: in the backward the parts are joined again along columns that nothing cuts
                parts = [self._as(by_heads, self._as(by_rows, part)) for part in parts]
                weights |= {f"{kind}_{x}": part for x, part in zip("QKV", parts, strict=True)}
        return {**layer, "attention": {"projection": weights}}


ONE_DEVICE = Placement()


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gather(whole: NamedSharding, kept: NamedSharding, x: Array) -> Array:
    """`x` cut as `whole` says; its gradient is summed and cut as `kept` says, which makes one reduce-scatter."""
    x = jax.lax.with_sharding_constraint(x, kept)  # else XLA may gather weights before they are cast, twice the bytes
    return jax.lax.with_sharding_constraint(x, whole)


def _gather_forward(whole: NamedSharding, kept: NamedSharding, x: Array) -> tuple[Array, None]:
    return _gather(whole, kept, x), None


def _gather_backward(whole: NamedSharding, kept: NamedSharding, _: None, gradient: Array) -> tuple[Array]:
    # by way of `whole`: an embedding's gradient would move the gradients of all its rows there, once a token
    whole_gradient = jax.lax.with_sharding_constraint(gradient, whole)
    return (jax.lax.with_sharding_constraint(whole_gradient, kept),)


_gather.defvjp(_gather_forward, _gather_backward)


def _name(path: tuple) -> str:
    return path[-1].key if path and isinstance(path[-1], jax.tree_util.DictKey) else ""


def _spec(mesh: jax.sharding.Mesh, name: str, shape: tuple[int, ...], cut: tuple[str, ...]) -> P:
    """The axes of a parameter called `name`, each with the axes of the mesh in `cut` that cut it."""
    axes: list[tuple[str, ...]] = [() for _ in shape]
    for mesh_axis, places in (("heads", HEADS_AXIS), ("fsdp", FSDP_AXIS)):
        place = places.get((name, len(shape)))
        if mesh_axis in cut and place is not None:
            parts = mesh.shape[mesh_axis] * int(np.prod([mesh.shape[axis] for axis in axes[place]]))
            if shape[place] % parts == 0:
                axes[place] += (mesh_axis,)
    return P(*axes)
