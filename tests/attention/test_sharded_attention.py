"""Attention on a mesh of eight simulated devices, in a process of its own because their number is fixed at start-up."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from andrea_jax.attention import attention, attention_fused, chunked

chunked.CHUNK = {chunk}
assert jax.device_count() == 8
mesh = jax.make_mesh((4, 2), ("data", "heads"), axis_types=(AxisType.Auto, AxisType.Auto))
inputs, rows = P("data", None, "heads"), P("data", "heads")
rng = np.random.default_rng(0)
q, k, v = (jnp.asarray(rng.normal(size=(4, 37, n_head, 16)), jnp.float32) for n_head in (6, 2, 2))
forward = partial(attention, backend="{backend}", entropy=True)

def gradients(forward):
    def loss(q, k, v):
        z, lse, entropy = forward(q, k, v)
        return jnp.sum(jnp.sin(z)) + jnp.sum(jnp.sin(lse)) + jnp.sum(entropy ** 2)
    return jax.jit(jax.grad(loss, (0, 1, 2)))

want = gradients(forward)(q, k, v)
placed = [jax.device_put(x, NamedSharding(mesh, inputs)) for x in (q, k, v)]
mapped = jax.shard_map(forward, mesh=mesh, in_specs=(inputs,) * 3, out_specs=(inputs, rows, rows))
for function in (gradients(forward), gradients(mapped)):
    text = function.lower(*placed).compile().as_text()
    assert not any(word in text for word in ("all-gather", "all-to-all", "collective-permute")), "data moved"
    for x, y in zip(function(*placed), want, strict=True):
        assert x.sharding.spec == inputs, x.sharding
        np.testing.assert_allclose(x, y, atol=1e-5)

def of_one_array(qkv):
    z, lse, entropy = attention_fused(qkv, 6, backend="{backend}", entropy=True)
    return jnp.sum(jnp.sin(z)) + jnp.sum(jnp.sin(lse)) + jnp.sum(entropy ** 2)

placed = jax.device_put(jnp.concatenate((q, k, v), axis=2), NamedSharding(mesh, P("data")))  # the heads are not cut
function = jax.jit(jax.grad(of_one_array))
text = function.lower(placed).compile().as_text()
assert not any(word in text for word in ("all-gather", "all-to-all", "collective-permute")), "data moved"
assert function(placed).sharding.spec[0] == "data"
np.testing.assert_allclose(function(placed), jnp.concatenate(want, axis=2), atol=1e-5)
cut = jax.device_put(placed, NamedSharding(mesh, inputs))  # no device has the parts of the same heads: gathered first
np.testing.assert_allclose(function(cut), jnp.concatenate(want, axis=2), atol=1e-5)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend, chunk", [("reference", 256), ("chunked", 256), ("chunked", 16)])
def test_sharding_over_batch_and_heads_moves_no_data(backend, chunk):
    run_on_eight_devices(PROGRAM.format(backend=backend, chunk=chunk))


def run_on_eight_devices(program: str) -> None:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
