"""Attention through cuDNN's fused kernels (`jax.nn.dot_product_attention(..., implementation="cudnn")`).

z and its gradients are cuDNN's. The log-sum-exp is not: jax (0.11.2 and 0.12) can return cuDNN's, but rounds it to
q's dtype and drops its cotangent, too coarse for an entropy and wrong for a gradient. So lse and entropy come from
the chunked backend, in float32, with values of width 0. Under `jit` XLA removes that pass, forward and backward,
wherever nothing reads its results: a training step does not pay for it.
"""

import jax
import jax.numpy as jnp

from andrea_jax.attention import chunked
from andrea_jax.attention.backends import Backend, Call


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool,
    scale: float,
    q_offset: int | jax.Array,
    kv_length: jax.Array | None,
    entropy: bool,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """(z, lse, entropy or None); arguments and shapes as in `andrea_jax.attention.attention`."""
    z = _z(q, k, v, causal, scale, kv_length)
    _, lse, row_entropy = chunked.attention(
        q, k, v[..., :0], causal=causal, scale=scale, q_offset=q_offset, kv_length=kv_length, entropy=entropy
    )
    return z, lse, row_entropy


def _z(q, k, v, causal: bool, scale: float, kv_length: jax.Array | None) -> jax.Array:
    n_query, n_key = q.shape[1], k.shape[1]
    # jax refuses gradients of odd lengths on its way to cuDNN (seen with 0.11.2): one row of zeros makes them even.
    # A causal mask hides the added key from every query before its position; elsewhere the length must say so.
    q, k, v = (jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0))) for x in (q, k, v))
    if kv_length is None and k.shape[1] > n_key and not (causal and n_query <= n_key):
        kv_length = jnp.full(q.shape[:1], n_key, jnp.int32)
    # cuDNN does not promise anything about a sequence without keys: show it one, and take 0 instead. The zero
    # cotangent that `where` sends back makes its gradients exactly 0.
    seen = None if kv_length is None else jnp.clip(kv_length, 1, n_key)
    z = jax.nn.dot_product_attention(
        q, k, v, scale=scale, is_causal=causal, key_value_seq_lengths=seen, implementation="cudnn"
    )[:, :n_query]
    return z if kv_length is None else jnp.where((kv_length > 0)[:, None, None, None], z, 0)


def _why_not(call: Call) -> str | None:
    # the limits that jax 0.12 checks itself, said before it traces; cuDNN's flash kernels begin with Ampere
    if call.cuda is None:
        return f"needs a CUDA device, and this one is {call.device}"
    if call.cuda < (8, 0):
        return "needs compute capability 8.0, and {} has {}.{}".format(call.device, *call.cuda)
    if call.dtype not in ("bfloat16", "float16"):
        return f"needs bfloat16 or float16 inputs, not {call.dtype}"
    widest = 256 if call.cuda >= (9, 0) else 128
    if call.head_dim % 8 or call.head_dim > widest:
        return f"needs a head_dim that is a multiple of 8 up to {widest} on {call.device}, not {call.head_dim}"
    if call.causal and not call.from_zero:
        return "has a causal mask that starts at position 0, and q_offset is not known to be 0 while tracing"
    return None


BACKEND = Backend("cudnn", attention, _why_not)
