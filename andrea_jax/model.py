"""The ANDREA decoder on one screen. Nothing about training, scoring or plotting.

    x = W_E[tokens] + W_P[position]
    per layer:  x += Attention(norm(x));  x += MLP(norm(x))
    logits = norm(x)·W_U

Pre-norm; by default norms without gain, no biases, untied unembedding. Modules only hold parameters;
training works on the plain nested dict that `parameters` returns and `bind` puts back.

A `tap` is called at every named point of the forward pass and returns the value that goes on: it may record
(`trace.py`), replace (interventions) or extend (the key–value cache of `generate.py`).
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from andrea_jax.attention import attention, attention_fused, keeping
from andrea_jax.config import Model
from andrea_jax.errors import UserError
from andrea_jax.functions import beside_norm, matmul, norm, relu_matmul, rotate
from andrea_jax.projections import PROJECTIONS, Projection

Params = dict  # nested: {"layers": {"0": {"attention": {"W_QKV": Array, ...}, "mlp": ...}}, "W_E": ..., "W_U": ...}
Tap = Callable[[int, str, Array], Array]  # (layer, point, value) -> the value to go on with
LayerTap = Callable[[str, Array], Array]  # the same, inside one layer
REMAT = {  # compute.remat -> what wraps a block, so that its backward pass computes again what was not kept
    "none": lambda block: block,
    "attention_kept": functools.partial(jax.checkpoint, policy=keeping.policy),
    "block": jax.checkpoint,
}


def no_tap(layer: int, point: str, value: Array) -> Array:
    return value


def _nobody(point: str, value: Array) -> Array:
    """The tap of a layer that nobody looks into, whose queries and keys begin at position 0."""
    return value


class Norm(nnx.Module):
    """norm(x), by `norm_weights` times a learned gain and, for kind "layer", plus a bias b_norm, both [d_model]."""

    def __init__(self, config: Model):
        self.config = config
        if config.norm_weights:
            self.gain = nnx.Param(jnp.ones(config.d_model))
            if config.norm == "layer":
                self.b_norm = nnx.Param(jnp.zeros(config.d_model))

    @jax.named_scope("norm")
    def __call__(self, x: Array) -> Array:
        if not self.config.norm_weights:
            return norm(x, self.config.norm)
        y = norm(x.astype(jnp.float32), self.config.norm) * self.gain[...][None, None]
        if self.config.norm == "layer":
            y = y + self.b_norm[...][None, None]
        return y.astype(x.dtype)

    @jax.named_scope("norm")
    def beside(self, x: Array) -> tuple[Array, Array]:
        """(x, norm(x)): what goes past a layer, and what goes into it."""
        return beside_norm(x) if self.config.norm == "rms" and not self.config.norm_weights else (x, self(x))


class Attention(nnx.Module):
    """Five steps: three matmuls touch the input, one attention call serves all heads, one matmul mixes them."""

    def __init__(self, config: Model, layer: int, key: Array, backend: str):
        self.config, self.backend = config, backend
        self.projection: Projection = PROJECTIONS[config.projection](config, key, layer)

    def __call__(self, x: Array, offset: Array | int, tap: Callable[[str, Array], Array], entropy: bool) -> Array:
        apart = tap is not _nobody or self.config.positions == "rotary"  # are q, k and v needed one by one?
        if not apart and (qkv := self.projection.project_fused(x)) is not None:
            with jax.named_scope("attention"):  # reads them where the one matmul has left them
                z, *_ = attention_fused(qkv, self.projection.n_head, backend=self.backend)
            return self.projection.combine(z)
        q, k, v = self.projection.project(x)  # steps 1 to 3: W_Q, W_K, W_V
        if self.config.positions == "rotary":
            positions = offset + jnp.arange(x.shape[1])
            q, k = (rotate(heads, positions, self.config.rotary_base) for heads in (q, k))
        q, k, v = tap("q", q), tap("k", k), tap("v", v)
        with jax.named_scope("attention"):  # step 4: every head in one call
            z, *statistics = attention(q, k, v, backend=self.backend, q_offset=offset, entropy=entropy)
        for point, value in zip(("lse", "entropy"), statistics, strict=False):
            tap(point, value)
        return self.projection.combine(tap("z", z))  # step 5: W_O


class MLP(nnx.Module):
    """act(x·W_in)·W_out, W_in [d_model, d_mlp], W_out [d_mlp, d_model]."""

    def __init__(self, config: Model, key: Array):
        self.config = config
        d, wide = config.d_model, config.mlp_width
        k_in, k_out = jax.random.split(key)
        self.W_in = nnx.Param(jax.random.normal(k_in, (d, wide)) * d**-0.5)
        self.W_out = nnx.Param(jax.random.normal(k_out, (wide, d)) * (wide * 2 * config.n_layer) ** -0.5)
        if config.biases:
            self.b_in, self.b_out = nnx.Param(jnp.zeros(wide)), nnx.Param(jnp.zeros(d))

    @jax.named_scope("mlp")
    def __call__(self, x: Array) -> Array:
        act_matmul = {"relu": relu_matmul, "gelu": lambda x, w: matmul(jax.nn.gelu(x), w)}[self.config.activation]
        wide = matmul(x, self.W_in[...].astype(x.dtype))
        if self.config.biases:
            wide = wide + self.b_in[...].astype(x.dtype)[None, None]
        y = act_matmul(wide, self.W_out[...].astype(x.dtype))
        return y + self.b_out[...].astype(x.dtype)[None, None] if self.config.biases else y


class Block(nnx.Module):
    def __init__(self, config: Model, layer: int, key: Array, backend: str):
        self.config = config
        k_attention, k_mlp = jax.random.split(key)
        self.norm_attention, self.attention = Norm(config), Attention(config, layer, k_attention, backend)
        if config.mlp_width:
            self.norm_mlp, self.mlp = Norm(config), MLP(config, k_mlp)

    def __call__(self, x: Array, offset: Array | int, tap: Callable[[str, Array], Array], entropy: bool) -> Array:
        x, normed = self.norm_attention.beside(tap("resid_pre", x))
        x = x + tap("attention_out", self.attention(normed, offset, tap, entropy))
        if self.config.mlp_width:
            x, normed = self.norm_mlp.beside(x)
            x = x + tap("mlp_out", self.mlp(normed))
        return x


class Andrea(nnx.Module):
    """The decoder: tokens int32 [batch, seq] -> logits float32 [batch, seq, vocab_size].

    `dtype` is that of activations; parameters, norms, softmax and logits are float32.
    """

    def __init__(self, config: Model, key: Array, *, dtype: DTypeLike = jnp.float32, backend: str = "auto"):
        self.config, self.dtype = config, jnp.dtype(dtype)
        k_embed, k_positions, k_unembed, *k_layers = jax.random.split(key, 3 + config.n_layer)
        d, vocab = config.d_model, config.vocab_size
        self.W_E = nnx.Param(jax.random.normal(k_embed, (vocab, d)) * 0.02)
        if config.positions == "learned":
            self.W_P = nnx.Param(jax.random.normal(k_positions, (config.seq_len, d)) * 0.02)
        self.layers = nnx.Dict({str(i): Block(config, i, k, backend) for i, k in enumerate(k_layers)})
        self.norm_final = Norm(config)
        if not config.tied_embeddings:
            self.W_U = nnx.Param(jax.random.normal(k_unembed, (d, vocab)) * 0.02)

    def __call__(
        self, tokens: Array, *, offset: Array | int = 0, tap: Tap = no_tap, entropy: bool = False, remat: str = "none"
    ) -> Array:
        """`offset` is the position of the first token (cuDNN attention needs it to be 0, not an array);
        `entropy` also taps each row's pattern entropy (nats). `remat`: see `config.Compute`; where it is not "none", a
        tap may replace values but not record them."""
        x = self.final(tokens, offset=offset, tap=tap, entropy=entropy, remat=remat)
        with jax.named_scope("unembed"):
            return jnp.matmul(x, self.unembedding.astype(x.dtype), preferred_element_type=jnp.float32)

    @property
    def unembedding(self) -> Array:
        """W_U [d_model, vocab_size], or W_E transposed where they are tied."""
        return self.W_E[...].T if self.config.tied_embeddings else self.W_U[...]

    def final(
        self, tokens: Array, *, offset: Array | int = 0, tap: Tap = no_tap, entropy: bool = False, remat: str = "none"
    ) -> Array:
        """What the unembedding multiplies: norm of the last residual [batch, seq, d_model]."""
        _refuse_misshapen(self.config, tokens)
        with jax.named_scope("embed"):
            x = self.W_E[...][tokens].astype(
                self.dtype
            )  # gather, then cast: a bf16 scatter-add in the backward is slow
            if self.config.positions == "learned":
                x = x + self.W_P[...][offset + jnp.arange(tokens.shape[1])].astype(self.dtype)[None]
        alone = tap is no_tap and isinstance(offset, int) and offset == 0
        for i in range(self.config.n_layer):
            tap_here = _nobody if alone else functools.partial(tap, i)
            settings = {"offset": offset, "tap": tap_here, "entropy": entropy}
            x = REMAT[remat](functools.partial(self.layers[str(i)], **settings))(x)
        return self.norm_final(tap(self.config.n_layer, "resid_final", x))


def _refuse_misshapen(config: Model, tokens: Array) -> None:
    """UserError for what JAX would take, or misread, without a word. A compiled model cannot see the ids themselves."""
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise UserError(f"tokens: must be integers [batch, seq], not {tokens.dtype} {list(tokens.shape)}")
    if config.positions == "learned" and tokens.shape[1] > config.seq_len:
        raise UserError(f"tokens: {tokens.shape[1]} positions, and the model has model.seq_len = {config.seq_len}")


def parameters(model: Andrea) -> Params:
    """The model's parameters as a plain nested dict of arrays (or of shapes, for an abstract model)."""
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


@functools.lru_cache
def _skeleton(config: Model, dtype: jnp.dtype, backend: str) -> tuple:
    def build() -> Andrea:
        return Andrea(config, jax.random.key(0), dtype=dtype, backend=backend)

    return nnx.split(nnx.eval_shape(build))


def abstract(config: Model) -> Params:
    """The parameter tree as `jax.ShapeDtypeStruct`s; nothing is allocated."""
    return nnx.to_pure_dict(_skeleton(config, jnp.dtype(jnp.float32), "auto")[1])


def bind(config: Model, params: Params, *, dtype: DTypeLike = jnp.float32, backend: str = "auto") -> Andrea:
    """A model that holds `params`; cheap, and usable inside jit."""
    graphdef, state = _skeleton(config, jnp.dtype(dtype), backend)
    return nnx.merge(graphdef, nnx.map_state(lambda path, _: functools.reduce(dict.__getitem__, path, params), state))


def initialise(config: Model, seed: int) -> Params:
    """Fresh parameters, float32. Both projections draw the same numbers from the same seed."""
    # not jitted: XLA takes far longer to compile all draws in one program for a CPU than one by one
    return parameters(Andrea(config, jax.random.key(seed)))
