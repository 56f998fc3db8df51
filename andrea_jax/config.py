"""What an experiment is: frozen dataclasses, the standard library only.

These classes are the schema of the TOML files in `configs/`; a field's comment is its documentation.
`problems(experiment)` returns everything that is wrong with the values, so that nothing can fail later
at run time for a reason that was knowable here. Reading files is in `config_files.py`.
"""

from dataclasses import dataclass, field
from typing import Literal

from andrea_jax.config_mesh import Mesh, misfits
from andrea_jax.errors import did_you_mean

N_BYTES = 256
BOS = 0  # in every vocabulary: BOS, then 256 bytes, then merges; in an imported one BOS and what was 0 change places
CORPORA = ("stdlib", "tiny", "prose")  # what `andrea_jax.data` builds itself; anything with a "/" is a folder of text

FORMS = {"per_head": ("einsum", "loop"), "fused": ("one", "three")}  # projection -> its forms, the default first
Backend = Literal["auto", "reference", "chunked", "cudnn", "mosaic", "triton"]


@dataclass(frozen=True, kw_only=True)
class Model:
    """The ANDREA decoder: x += Attention(norm(x)); x += MLP(norm(x))."""

    vocab_size: int  # merges + 256 bytes + 1 BOS
    seq_len: int  # positions the model has; data.seq_len may be shorter
    d_model: int
    n_layer: int
    n_head: int
    n_kv_head: int | None = None  # None: n_head. Query head h reads key-value head h // (n_head // n_kv_head)
    # heads that pruning left in each layer; None: n_head in all. head_dim stays d_model / n_head
    heads_per_layer: tuple[int, ...] | None = None
    d_mlp: int | None = None  # None: 4 * d_model. 0: an attention-only model
    positions: Literal["learned", "rotary", "none"] = "learned"
    rotary_base: float = 10_000.0
    norm: Literal["rms", "layer"] = "rms"  # epsilon 1e-5
    norm_weights: bool = False  # each norm learns a gain, and a bias where it is "layer" (GPT-2 has them)
    activation: Literal["relu", "gelu"] = "relu"
    biases: bool = False
    tied_embeddings: bool = False
    w_o: Literal["free", "identity", "block_diagonal"] = "free"
    projection: Literal["per_head", "fused"] = "fused"
    # how the projection is computed. per_head: "einsum" (one dot) or "loop" (n_head dots);
    # fused: "one" (W_QKV) or "three" (W_Q, W_K, W_V). None: "einsum" and "one"
    projection_form: Literal["einsum", "loop", "one", "three"] | None = None

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_head

    @property
    def kv_heads(self) -> int:
        return self.n_head if self.n_kv_head is None else self.n_kv_head

    @property
    def group(self) -> int:
        """Query heads that read one key-value head."""
        return self.n_head // self.kv_heads

    @property
    def layer_heads(self) -> tuple[int, ...]:
        """Query heads of each layer; it has a `group`-th of that in key-value heads."""
        return (self.n_head,) * self.n_layer if self.heads_per_layer is None else self.heads_per_layer

    @property
    def shape(self) -> str:
        """ "2 layers × 4 heads", or of a pruned model "2 layers with 3, 4 heads"."""
        if len(set(self.layer_heads)) == 1:
            return f"{self.n_layer} layers × {self.layer_heads[0]} heads"
        return f"{self.n_layer} layers with {', '.join(map(str, self.layer_heads))} heads"

    @property
    def mlp_width(self) -> int:
        return 4 * self.d_model if self.d_mlp is None else self.d_mlp

    @property
    def form(self) -> str:
        return self.projection_form or FORMS[self.projection][0]


@dataclass(frozen=True, kw_only=True)
class Data:
    """Which text, cut into which tokens and windows."""

    corpus: str = "stdlib"  # "stdlib", "tiny", "prose", or a folder of text files (a path with a "/" in it)
    # bpe: byte-level, model.vocab_size - 257 merges, brackets isolated; imported: what came with another's model
    tokenizer: Literal["bytes", "bpe", "imported"] = "bpe"
    seq_len: int = 1024  # tokens a window, BOS included
    repeat_share: float = 0.0  # share of the training windows that repeat their first part
    # what the repeated part is: text; ids drawn uniformly from those the text uses; or "mixed": window by window in
    # turn text, ids as frequent as in the text, uniform ids
    repeat_kind: Literal["text", "random", "mixed"] = "text"
    repeat_periods: tuple[int, ...] = (8, 31)  # shortest and longest period; probe.periods are never drawn
    # the text of each training window in random order, before it repeats: as frequent as it was, and nothing to predict
    # but that. Held-out text stays as it is
    shuffled: bool = False


@dataclass(frozen=True, kw_only=True)
class Optim:
    """The optimizer (from optax) and its learning-rate schedule."""

    name: Literal["adamw", "sgd", "lion", "muon", "adafactor", "lamb"] = "adamw"
    learning_rate: float = 3e-4  # the peak
    weight_decay: float = 0.0
    b1: float = 0.9  # first-moment decay, momentum for sgd and muon
    b2: float = 0.95
    clip_norm: float = 1.0  # global gradient norm; 0: no clipping
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "cosine"  # wsd: warm-up, stable, decay
    warmup_steps: int = 0
    decay_share: float = 0.2  # wsd only: share of the steps spent in the linear decay to 0
    # which matrices it sees: the weights as the projection stores them, or W_QKV and W_O whatever the projection
    matrices: Literal["stored", "fused"] = "stored"


@dataclass(frozen=True, kw_only=True)
class Train:
    steps: int = 1000
    batch_size: int = 32  # windows a step, over all hosts
    accumulate: int = 1  # parts that a step's windows are computed in, one after the other, to save memory
    seed: int = 0  # of initial numbers and of batches
    eval_every: int = 250  # steps between evaluations on held-out documents; each also saves a checkpoint
    log_spaced_checkpoints: bool = False  # also keep steps 0, 1, 2, 4, 8, ...
    # steps between head profiles on few sequences (0: none), skipped where they would take over 3% of the run
    profile_every: int = 0


@dataclass(frozen=True, kw_only=True)
class Compute:
    """How the numbers are computed, not what they mean."""

    dtype: Literal["float32", "bfloat16"] = "float32"  # of activations; weights, softmax, norms and loss are float32
    backend: Backend = "auto"  # of attention
    # what of a block is computed again in the backward pass, to save memory. none: nothing; attention_kept: all but
    # what attention gives, z and lse; block: all
    remat: Literal["none", "attention_kept", "block"] = "none"
    mesh: Mesh = field(default_factory=Mesh)  # devices, {data = 2, heads = 4}; an axis left out is 1


@dataclass(frozen=True, kw_only=True)
class Probe:
    """How heads are scored."""

    n_sequences: int = 256  # a probe; half of them choose the best head, the other half report it
    periods: tuple[int, ...] = (11, 17, 23, 29)  # of the induction probe, in tokens


@dataclass(frozen=True, kw_only=True)
class Experiment:
    model: Model
    data: Data = field(default_factory=Data)
    optim: Optim = field(default_factory=Optim)
    train: Train = field(default_factory=Train)
    compute: Compute = field(default_factory=Compute)
    probe: Probe = field(default_factory=Probe)


@dataclass(frozen=True)
class Problem:
    """Something wrong with a value: `key` is dotted ("model.d_model"), `text` says what was expected."""

    key: str
    text: str


def problems(experiment: Experiment) -> list[Problem]:
    """Everything wrong with the values of `experiment` (types and choices are `config_files`' business)."""
    found = _not_positive(experiment)
    named = {problem.key for problem in found}
    if not named & {"model.d_model", "model.n_head", "model.n_kv_head"}:
        found += _model_problems(experiment.model)
    if not any(problem.key.startswith("model.") for problem in found):
        found += _mesh_problems(experiment)
    return found + _data_problems(experiment) + _schedule_problems(experiment)


def _not_positive(e: Experiment) -> list[Problem]:
    m, values = e.model, {
        "data.seq_len": e.data.seq_len, "optim.learning_rate": e.optim.learning_rate, "train.steps": e.train.steps,
        "train.batch_size": e.train.batch_size, "train.accumulate": e.train.accumulate,
        "train.eval_every": e.train.eval_every,
    }  # fmt: skip
    for name in ("vocab_size", "seq_len", "d_model", "n_layer", "n_head", "n_kv_head", "rotary_base"):
        values[f"model.{name}"] = getattr(m, name)
    found = [Problem(key, f"must be above 0, not {n}") for key, n in values.items() if n is not None and n <= 0]
    if m.d_mlp is not None and m.d_mlp < 0:
        found.append(Problem("model.d_mlp", f"must be 0 (attention only) or more, not {m.d_mlp}"))
    if e.train.profile_every < 0:
        found.append(Problem("train.profile_every", f"must be 0 (none) or more, not {e.train.profile_every}"))
    if not 0 <= e.train.seed < 2**32:
        found.append(Problem("train.seed", f"must be from 0 to 2**32 - 1, not {e.train.seed}"))
    return found


def _model_problems(m: Model) -> list[Problem]:
    found = []
    if m.d_model % m.n_head:
        found.append(Problem("model.n_head", f"must divide d_model = {m.d_model}, and {m.n_head} does not"))
    elif m.positions == "rotary" and m.head_dim % 2:
        text = f"gives head_dim = d_model / n_head = {m.d_model} / {m.n_head} = {m.head_dim}: rotary needs an even one"
        found.append(Problem("model.n_head", text))
    if m.n_head % m.kv_heads:
        found.append(Problem("model.n_kv_head", f"must divide n_head = {m.n_head}, and {m.kv_heads} does not"))
    elif m.heads_per_layer is not None:
        found += _pruned_problems(m, m.heads_per_layer)
    if m.form not in (forms := FORMS[m.projection]):
        text = f'must be "{forms[0]}" or "{forms[1]}" where projection = "{m.projection}", not "{m.form}"'
        found.append(Problem("model.projection_form", text))
    return found


def _pruned_problems(m: Model, left: tuple[int, ...]) -> list[Problem]:
    key, found = "model.heads_per_layer", []
    if len(left) != m.n_layer:
        found.append(Problem(key, f"must have one number a layer, n_layer = {m.n_layer}, not {len(left)}"))
    if not all(0 < n <= m.n_head for n in left):
        found.append(Problem(key, f"must have numbers from 1 to n_head = {m.n_head}, not {list(left)}"))
    elif any(n % m.group for n in left):
        text = f"must have multiples of n_head / n_kv_head = {m.group}, whole groups of heads, not {list(left)}"
        found.append(Problem(key, text))
    elif m.w_o != "free" and min(left) < m.n_head:
        text = f'must be left out where w_o = "{m.w_o}", in which each head has its own place in the stream'
        found.append(Problem(key, text))
    return found


def _mesh_problems(e: Experiment) -> list[Problem]:
    kv_heads = [n // e.model.group for n in e.model.layer_heads]
    texts = misfits(
        e.compute.mesh,
        batch_size=e.train.batch_size,
        accumulate=max(e.train.accumulate, 1),
        kv_heads=kv_heads,
        mlp_width=e.model.mlp_width,
    )
    return [Problem("compute.mesh", text) for text in texts]


def _data_problems(e: Experiment) -> list[Problem]:
    found = []
    n_special = N_BYTES + 1
    if e.data.tokenizer == "bytes" and e.model.vocab_size != n_special:
        found.append(Problem("model.vocab_size", f'must be {n_special} where data.tokenizer = "bytes"'))
    if e.data.tokenizer == "bpe" and not n_special < e.model.vocab_size <= 2**16:
        text = f'must be above {n_special} and at most 65536 where data.tokenizer = "bpe", not {e.model.vocab_size}'
        found.append(Problem("model.vocab_size", text))
    if e.data.tokenizer == "imported" and e.model.vocab_size > 2**16:
        text = f'must be at most 65536 where data.tokenizer = "imported", not {e.model.vocab_size}'
        found.append(Problem("model.vocab_size", text))
    if e.data.corpus not in CORPORA and "/" not in e.data.corpus:
        text = f'must be "{'", "'.join(CORPORA)}" or a folder with a "/" in it, not "{e.data.corpus}"'
        found.append(Problem("data.corpus", f"{text}{did_you_mean(e.data.corpus, CORPORA)}"))
    if e.data.seq_len > e.model.seq_len:
        text = f"must be at most model.seq_len = {e.model.seq_len}, not {e.data.seq_len}"
        found.append(Problem("data.seq_len", text))
    if e.probe.n_sequences < 4:
        found.append(Problem("probe.n_sequences", f"must be 4 or more, not {e.probe.n_sequences}"))
    return found + _period_problems(e)


def _period_problems(e: Experiment) -> list[Problem]:
    found = []
    longest = (e.data.seq_len - 1) // 2  # BOS, then at least two copies
    if len(set(e.probe.periods)) < 2 or min(e.probe.periods) < 2 or max(e.probe.periods) > longest:
        text = f"must be two or more different periods from 2 to {longest} = (data.seq_len - 1) // 2"
        found.append(Problem("probe.periods", f"{text}, not {list(e.probe.periods)}"))
    if not 0 <= e.data.repeat_share <= 1:
        found.append(Problem("data.repeat_share", f"must be from 0 to 1, not {e.data.repeat_share}"))
    periods = e.data.repeat_periods
    if not e.data.repeat_share:
        return found
    if len(periods) != 2 or not 2 <= periods[0] <= periods[1] <= longest:
        text = f"must be the shortest and the longest period, from 2 to {longest} = (data.seq_len - 1) // 2"
        found.append(Problem("data.repeat_periods", f"{text}, not {list(periods)}"))
    elif not set(range(periods[0], periods[1] + 1)) - set(e.probe.periods):
        found.append(Problem("data.repeat_periods", "leaves no period for training besides probe.periods"))
    return found


def _schedule_problems(e: Experiment) -> list[Problem]:
    found = []
    if not 0 <= e.optim.warmup_steps <= e.train.steps:
        text = f"must be from 0 to train.steps = {e.train.steps}, not {e.optim.warmup_steps}"
        found.append(Problem("optim.warmup_steps", text))
    if e.train.accumulate > 0 and e.train.batch_size % e.train.accumulate:
        text = f"must divide train.batch_size = {e.train.batch_size}, and {e.train.accumulate} does not"
        found.append(Problem("train.accumulate", text))
    for key, value in {"optim.b1": e.optim.b1, "optim.b2": e.optim.b2}.items():
        if not 0 <= value < 1:  # at 1 the bias correction divides by 0
            found.append(Problem(key, f"must be from 0 to below 1, not {value}"))
    if not 0 <= e.optim.decay_share <= 1:
        found.append(Problem("optim.decay_share", f"must be from 0 to 1, not {e.optim.decay_share}"))
    for key, value in {"optim.clip_norm": e.optim.clip_norm, "optim.weight_decay": e.optim.weight_decay}.items():
        if value < 0:
            found.append(Problem(key, f"must be 0 or more, not {value}"))
    return found
