"""Attention and its gradients in float64 NumPy, row by row from the definition: what every backend is compared with."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Case:
    """Inputs, and cotangents of all three outputs, float64."""

    q: np.ndarray  # [batch, query, n_head, head_dim]
    k: np.ndarray  # [batch, key, n_kv_head, head_dim]
    v: np.ndarray
    dz: np.ndarray  # as q
    dlse: np.ndarray  # [batch, n_head, query]
    dentropy: np.ndarray


def draw(n_query, n_key=None, *, batch=2, n_head=3, n_kv_head=None, head_dim=16, dtype="float32", seed=0) -> Case:
    """A case of standard normal numbers that `dtype` holds exactly."""
    import jax.numpy as jnp  # for bfloat16

    rng = np.random.default_rng((seed, n_query))
    n_key, n_kv_head = n_key or n_query, n_kv_head or n_head

    def normal(*shape):
        return rng.normal(size=shape).astype(jnp.dtype(dtype)).astype(np.float64)

    q, dz = (normal(batch, n_query, n_head, head_dim) for _ in range(2))
    k, v = (normal(batch, n_key, n_kv_head, head_dim) for _ in range(2))
    dlse, dentropy = (rng.normal(size=(batch, n_head, n_query)).astype(np.float32).astype(float) for _ in range(2))
    return Case(q, k, v, dz, dlse, dentropy)


def attention(case: Case, *, causal=True, scale=None, q_offset=0, kv_length=None) -> dict[str, np.ndarray]:
    """z, lse, entropy and, for the case's cotangents, dq, dk, dv."""
    q, k, v = case.q, case.k, case.v
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    batch, n_query, n_head, _ = q.shape
    group = n_head // k.shape[2]
    out = {"z": np.zeros_like(q), "lse": np.full((batch, n_head, n_query), -np.inf)}
    out |= {"entropy": np.zeros_like(out["lse"]), "dq": np.zeros_like(q)}
    out |= {"dk": np.zeros_like(k), "dv": np.zeros_like(v)}
    for b, h, i in np.ndindex(batch, n_head, n_query):
        n_seen = k.shape[1] if kv_length is None else min(kv_length[b], k.shape[1])
        n_seen = min(n_seen, q_offset + i + 1) if causal else n_seen
        if n_seen <= 0:
            continue
        at = (b, slice(0, n_seen), h // group)
        keys, values, dz = k[at], v[at], case.dz[b, i, h]
        scores = scale * keys @ q[b, i, h]
        lse = scores.max() + np.log(np.exp(scores - scores.max()).sum())
        row = np.exp(scores - lse)
        out["z"][b, i, h] = row @ values
        out["lse"][b, h, i] = lse
        entropy = out["entropy"][b, h, i] = -row @ (scores - lse)
        drow = values @ dz
        dscores = row * (drow - row @ drow) + row * case.dlse[b, h, i]
        dscores -= case.dentropy[b, h, i] * row * (scores - lse + entropy)
        out["dq"][b, i, h] = scale * dscores @ keys
        out["dk"][at] += scale * np.outer(dscores, q[b, i, h])
        out["dv"][at] += np.outer(row, dz)
    return out
