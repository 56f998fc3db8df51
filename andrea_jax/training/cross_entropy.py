"""The training loss straight from the last residual: unembedding and cross-entropy in one differentiable function.

    loss = mean over tokens of  logsumexp(x·W_U) − (x·W_U)[target]         nats a token

The derivative by the logits, (softmax(x·W_U) − onehot(target)) / n_tokens, is at hand as soon as the logits are, so
both gradients are computed in the forward pass: the logits are made once, and neither they nor their float32 derivative
is kept for the backward pass. Automatic differentiation of the same loss multiplies that derivative as float32,
whatever the dtype of x; here it is rounded to x's dtype first, as all other activations' derivatives are.
"""

import jax
import jax.numpy as jnp
from jax import Array

from andrea_jax import kernels

ALIGNED = 64  # columns: products of bfloat16 whose rows do not begin at multiples of 16 bytes run several times slower
AT_ONCE = 2**30  # bytes of float32 logits at most, where the sequence can be cut that fine


@jax.custom_vjp
def mean_loss(x: Array, w_u: Array, targets: Array) -> Array:
    """x [batch, seq, d_model], W_U float32 [d_model, vocab], targets int [batch, seq] -> float32, nats a token."""
    return _loss_and_gradients(x, w_u, targets)[0]


def _forward(x: Array, w_u: Array, targets: Array) -> tuple[Array, tuple[Array, Array]]:
    loss, dx, dw = _loss_and_gradients(x, w_u, targets)
    return loss, (dx, dw)


def _backward(gradients: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array, None]:
    dx, dw = gradients
    return (cotangent * dx).astype(dx.dtype), cotangent * dw, None


mean_loss.defvjp(_forward, _backward)


def _loss_and_gradients(x: Array, w_u: Array, targets: Array) -> tuple[Array, Array, Array]:
    """The loss and its derivatives by x (in its dtype) and by W_U (float32)."""
    seq, vocab = x.shape[1], w_u.shape[1]
    w = w_u.astype(x.dtype)
    if x.dtype == jnp.bfloat16:
        w = jnp.pad(w, ((0, 0), (0, -vocab % ALIGNED)))
    pieces = _pieces(seq, 4 * x.shape[0] * seq * vocab)
    loss, dxs, dw = jnp.float32(0), [], jnp.zeros(w.shape, jnp.float32)
    for i in range(pieces):  # of the sequence: the batch may lie on several devices
        piece = slice(i * seq // pieces, (i + 1) * seq // pieces)
        part, d_logits = _of_logits(x[:, piece], w, targets[:, piece], vocab)
        loss += part
        dxs.append(jnp.einsum("btv,dv->btd", d_logits, w))
        by_row = (
            y.reshape(-1, y.shape[-1]) for y in (x[:, piece], d_logits)
        )  # one axis to sum over: `functions.matmul`
        dw += jnp.einsum("nd,nv->dv", *by_row, preferred_element_type=jnp.float32)
    n = targets.size
    return loss / n, jnp.concatenate(dxs, axis=1) / n, dw[:, :vocab] / n


def _of_logits(x: Array, w: Array, targets: Array, vocab: int) -> tuple[Array, Array]:
    """Σ over tokens of the loss, and its derivative by the logits, in x's dtype; columns from vocab on are no words."""
    logits = jnp.matmul(x, w, preferred_element_type=jnp.float32)
    loss, d_logits = kernels.cross_entropy(logits, targets, vocab, x.dtype)
    return loss.sum(), d_logits


def _pieces(seq: int, n_bytes: int) -> int:
    """Into how many parts of the sequence the logits, of so many bytes in all, are cut."""
    return max(1, min(seq, -(-n_bytes // AT_ONCE)))
