"""Writing an experiment, reading it back, and the id of its run."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea_jax.config import Compute, Data, Experiment, Model, Optim, Probe, Train, problems
from andrea_jax.config_files import dump, load, run_id
from andrea_jax.config_mesh import Mesh


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base.toml"
    sizes = "vocab_size = 307\nseq_len = 128\nd_model = 96\nn_layer = 3\nn_head = 6\n"
    path.write_text(f"[model]\n{sizes}[data]\nseq_len = 67", encoding="utf-8")
    return path


def one_of(*choices):
    return st.sampled_from(choices)


SHARE, DECAY = st.floats(0, 1), st.floats(0, 1, exclude_max=True)
POSITIVE, WHOLE = st.floats(1e-300, 1e300), st.integers(1, 999)
LETTERS = st.text(st.characters(exclude_categories=("C", "Z")))  # without control characters and spaces


@st.composite
def models(draw: st.DrawFn, vocab_sizes: st.SearchStrategy[int], shortest: int) -> Model:
    n_kv_head, group, projection = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(one_of("per_head", "fused"))
    forms = {"per_head": ("einsum", "loop"), "fused": ("one", "three")}[projection]
    n_layer, w_o = draw(WHOLE), draw(one_of("free", "identity", "block_diagonal"))
    left = (draw(st.integers(1, n_kv_head)) * group,) * n_layer
    return Model(
        vocab_size=draw(vocab_sizes), seq_len=draw(st.integers(shortest, 300)), n_layer=n_layer,
        d_model=8 * draw(st.integers(1, 9)) * n_kv_head * group, n_head=n_kv_head * group,
        n_kv_head=draw(one_of(None, n_kv_head)) if group == 1 else n_kv_head, d_mlp=draw(st.none() | WHOLE),
        positions=draw(one_of("learned", "rotary", "none")), rotary_base=draw(POSITIVE),
        norm=draw(one_of("rms", "layer")), norm_weights=draw(st.booleans()),
        activation=draw(one_of("relu", "gelu")), biases=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()), w_o=w_o,
        heads_per_layer=draw(one_of(None, left)) if w_o == "free" else None,
        projection=projection, projection_form=draw(one_of(None, *forms)),
    )  # fmt: skip


@st.composite
def experiments(draw: st.DrawFn) -> Experiment:
    """Valid experiments, every key drawn."""
    tokenizer, seq_len, steps = draw(one_of("bytes", "bpe")), draw(st.integers(40, 200)), draw(WHOLE)
    vocab_sizes = st.just(257) if tokenizer == "bytes" else st.integers(258, 2**16)
    data = st.builds(
        Data, corpus=one_of("stdlib", "tiny") | st.builds("{}/{}".format, LETTERS, LETTERS),
        tokenizer=st.just(tokenizer), seq_len=st.just(seq_len), repeat_share=SHARE,
        repeat_kind=one_of("text", "random"), repeat_periods=st.tuples(st.integers(2, 9), st.integers(12, 19)),
        shuffled=st.booleans(),
    )  # fmt: skip
    optim = st.builds(
        Optim, name=one_of("adamw", "sgd", "lion", "muon", "adafactor", "lamb"), learning_rate=POSITIVE,
        weight_decay=st.floats(0, 1e300), b1=DECAY, b2=DECAY, clip_norm=st.floats(0, 1e300),
        schedule=one_of("constant", "linear", "cosine", "wsd"), warmup_steps=st.integers(0, steps), decay_share=SHARE,
    )  # fmt: skip
    train = st.builds(
        Train, steps=st.just(steps), batch_size=st.sampled_from([12, 24, 996]), accumulate=st.sampled_from([1, 2]),
        seed=st.integers(0, 2**31 - 1), eval_every=WHOLE,
        log_spaced_checkpoints=st.booleans(), profile_every=st.integers(0, 999),
    )  # fmt: skip
    backends = one_of("auto", "reference", "chunked", "cudnn")
    mesh = st.sampled_from([Mesh(), Mesh(data=2), Mesh(data=3, fsdp=2)])
    compute = st.builds(Compute, dtype=one_of("float32", "bfloat16"), backend=backends, mesh=mesh,
        remat=one_of("none", "attention_kept", "block"),
    )  # fmt: skip
    periods = st.tuples(st.integers(2, 9), st.integers(10, 19))
    probe = st.builds(Probe, n_sequences=st.integers(4, 999), periods=periods)
    model = draw(models(vocab_sizes, seq_len))
    return Experiment(
        model=model, data=draw(data), optim=draw(optim), train=draw(train), compute=draw(compute), probe=draw(probe)
    )


@settings(max_examples=150, deadline=None)
@given(experiment=experiments())
def test_loading_a_dumped_experiment_gives_it_back(tmp_path_factory: pytest.TempPathFactory, experiment: Experiment):
    assert problems(experiment) == []
    path = tmp_path_factory.getbasetemp() / "dumped.toml"
    path.write_text(dump(experiment), encoding="utf-8")
    read = load(path)
    assert read == experiment
    assert run_id(read) == run_id(experiment)


def test_a_dumped_file_says_every_value_in_the_order_of_the_schema(base: Path):
    lines = dump(load(base)).splitlines()
    assert lines[:6] == ["[model]", "vocab_size = 307", "seq_len = 128", "d_model = 96", "n_layer = 3", "n_head = 6"]
    assert "repeat_periods = [8, 31]" in lines
    assert "learning_rate = 0.0003" in lines


def test_a_run_id_changes_with_every_value_that_can_change_the_numbers(base: Path):
    changes = ["model.n_head=12", "data.corpus=./text", "optim.b2=0.99", "train.seed=1", "compute.dtype=bfloat16"]
    ids = {run_id(load(base)), *(run_id(load(base, [change])) for change in changes)}
    assert len(ids) == 6
    assert all(len(identity) == 8 and int(identity, 16) >= 0 for identity in ids)


def test_a_run_id_is_the_same_on_every_backend_and_for_every_spelling(base: Path):
    spelt_out = [
        "model.n_kv_head=6",
        "model.d_mlp=384",
        "model.projection_form=one",
        "compute.backend=chunked",
        "compute.remat=block",
    ]
    assert load(base, spelt_out) != load(base)
    assert run_id(load(base, spelt_out)) == run_id(load(base))


def test_keys_that_came_later_leave_the_ids_of_older_runs_as_they_were(base: Path):
    assert run_id(load(base)) == "d5c93dca"  # computed before model.norm_weights existed
    assert run_id(load(base, ["model.norm_weights=false"])) == "d5c93dca"
    assert run_id(load(base, ["model.norm_weights=true"])) != "d5c93dca"


def test_all_heads_written_out_are_the_experiment_without_them_and_fewer_are_another(base: Path):
    assert run_id(load(base, ["model.heads_per_layer=[6,6,6]"])) == run_id(load(base))
    assert run_id(load(base, ["model.heads_per_layer=[6,3,6]"])) != run_id(load(base))


def test_a_run_id_is_the_hash_of_the_dumped_experiment_with_everything_spelt_out(base: Path):
    spelt_out = load(base, ["model.n_kv_head=6", "model.d_mlp=384", "model.projection_form=one"])
    hashed = dump(spelt_out)
    for later in (
        "norm_weights = false\n",
        'matrices = "stored"\n',
        "shuffled = false\n",
        "mesh = {data = 1, fsdp = 1, heads = 1}\n",
        'remat = "none"\n',
        "profile_every = 0\n",
        "accumulate = 1\n",
    ):
        hashed = hashed.replace(later, "")
    assert run_id(load(base)) == hashlib.sha256(hashed.encode()).hexdigest()[:8]
