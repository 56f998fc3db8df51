import dataclasses
import re
from types import NoneType
from typing import get_args

import pytest

from andrea_jax.config import Experiment, Model, problems
from andrea_jax.config_keys import ANNOTATIONS, REQUIRED, build, value_of
from andrea_jax.config_mesh import Mesh

# valid, with numbers that differ wherever two of them could be mixed up
VALID: dict[str, object] = {
    "model.vocab_size": 307, "model.seq_len": 128, "model.d_model": 96, "model.n_layer": 3, "model.n_head": 6,
    "model.n_kv_head": 2, "data.seq_len": 67,
}  # fmt: skip


def problem_keys(**changes: object) -> list[str]:
    """The keys of the problems of VALID with changes; a key is written data__seq_len."""
    values = VALID | {key.replace("__", ".", 1): value for key, value in changes.items()}
    return [problem.key for problem in problems(build(values))]


def test_a_valid_experiment_has_no_problems():
    assert problems(build(VALID)) == []


def test_derived_sizes_of_a_model():
    model = Model(vocab_size=307, seq_len=128, d_model=96, n_layer=3, n_head=6)
    assert (model.head_dim, model.kv_heads, model.mlp_width, model.form) == (16, 6, 384, "one")
    other = dataclasses.replace(model, n_kv_head=2, d_mlp=40, projection="per_head")
    assert (other.head_dim, other.kv_heads, other.mlp_width, other.form) == (16, 2, 40, "einsum")
    assert dataclasses.replace(model, projection_form="three").form == "three"
    assert (model.layer_heads, model.group, model.shape) == ((6, 6, 6), 1, "3 layers × 6 heads")
    pruned = dataclasses.replace(model, n_kv_head=2, heads_per_layer=(6, 3, 6))
    assert (pruned.layer_heads, pruned.group, pruned.head_dim) == ((6, 3, 6), 3, 16)
    assert pruned.shape == "3 layers with 6, 3, 6 heads"


WRONG: list[tuple[str, dict[str, object]]] = [
    ("model.n_head", {"model.n_head": 7, "model.n_kv_head": 7}),  # 96 / 7
    ("model.n_head", {"model.n_head": 32, "model.n_kv_head": 32, "model.positions": "rotary"}),  # head_dim 3: no pairs
    ("model.n_kv_head", {"model.n_kv_head": 4}),  # 6 / 4
    ("model.heads_per_layer", {"model.heads_per_layer": (6, 3)}),  # of three layers
    ("model.heads_per_layer", {"model.heads_per_layer": (6, 9, 3)}),  # more than n_head
    ("model.heads_per_layer", {"model.heads_per_layer": (6, 0, 3)}),
    ("model.heads_per_layer", {"model.heads_per_layer": (6, 4, 3)}),  # one key-value head of three is cut apart
    ("model.heads_per_layer", {"model.heads_per_layer": (6, 6, 3), "model.w_o": "identity"}),
    ("model.vocab_size", {"model.vocab_size": 257}),  # bpe without a merge
    ("model.vocab_size", {"model.vocab_size": 2**16 + 1}),  # ids are uint16
    ("model.vocab_size", {"data.tokenizer": "imported", "model.vocab_size": 2**16 + 1}),
    ("model.vocab_size", {"data.tokenizer": "bytes"}),  # 307 ids where bytes make 257
    ("model.projection_form", {"model.projection": "per_head", "model.projection_form": "three"}),
    ("model.projection_form", {"model.projection_form": "loop"}),
    ("model.d_mlp", {"model.d_mlp": -8}),
    ("model.rotary_base", {"model.rotary_base": 0.0}),
    ("model.n_layer", {"model.n_layer": 0}),
    ("data.corpus", {"data.corpus": "stdlibs"}),
    ("data.seq_len", {"data.seq_len": 129}),
    ("data.repeat_share", {"data.repeat_share": 1.01}),
    ("data.repeat_share", {"data.repeat_share": -0.01}),
    ("data.repeat_periods", {"data.repeat_periods": (8, 34), "data.repeat_share": 0.5}),  # (67 - 1) // 2 = 33
    ("data.repeat_periods", {"data.repeat_periods": (9, 8), "data.repeat_share": 0.5}),
    ("data.repeat_periods", {"data.repeat_periods": (8, 9, 10), "data.repeat_share": 0.5}),
    ("data.repeat_periods", {"data.repeat_periods": (11, 11), "data.repeat_share": 0.5}),
    ("probe.periods", {"probe.periods": (11, 34)}),
    ("probe.periods", {"probe.periods": (11, 11)}),
    ("probe.n_sequences", {"probe.n_sequences": 3}),
    ("optim.learning_rate", {"optim.learning_rate": 0.0}),
    ("optim.weight_decay", {"optim.weight_decay": -0.1}),
    ("optim.clip_norm", {"optim.clip_norm": -1.0}),
    ("optim.b1", {"optim.b1": 1.0}),
    ("optim.b2", {"optim.b2": 1.0}),
    ("optim.b2", {"optim.b2": -0.1}),
    ("optim.decay_share", {"optim.decay_share": 1.5}),
    ("optim.warmup_steps", {"optim.warmup_steps": 1001}),
    ("train.steps", {"train.steps": 0}),
    ("train.batch_size", {"train.batch_size": -1}),
    ("train.eval_every", {"train.eval_every": 0}),
    ("train.profile_every", {"train.profile_every": -1}),
    ("train.accumulate", {"train.accumulate": 0}),
    ("train.accumulate", {"train.accumulate": 5}),
    ("train.seed", {"train.seed": -1}),
    ("compute.mesh", {"compute.mesh": Mesh(data=0)}),
    ("compute.mesh", {"compute.mesh": Mesh(data=4, fsdp=3)}),  # 32 windows
    ("compute.mesh", {"compute.mesh": Mesh(data=4, fsdp=4), "train.accumulate": 4}),
    ("compute.mesh", {"compute.mesh": Mesh(heads=3)}),  # two key-value heads
    ("compute.mesh", {"compute.mesh": Mesh(heads=2), "model.heads_per_layer": (6, 3, 6)}),
    ("compute.mesh", {"compute.mesh": Mesh(heads=2), "model.d_mlp": 33}),
]


@pytest.mark.parametrize(("key", "changes"), WRONG, ids=str)
def test_each_wrong_value_is_a_problem_of_its_key_and_of_no_other(key: str, changes: dict[str, object]):
    assert [problem.key for problem in problems(build(VALID | changes))] == [key]


def test_values_at_the_edge_are_valid():
    assert problem_keys(model__vocab_size=258) == []
    assert problem_keys(model__vocab_size=2**16) == []
    assert problem_keys(model__vocab_size=257, data__tokenizer="bytes") == []
    assert problem_keys(model__d_mlp=0) == []
    assert problem_keys(data__seq_len=128, data__repeat_periods=(2, 63)) == []
    assert problem_keys(data__repeat_periods=(8, 99)) == []  # not used where nothing repeats
    assert problem_keys(data__repeat_share=1.0, data__repeat_periods=(11, 12)) == []
    assert problem_keys(optim__warmup_steps=1000, optim__clip_norm=0.0) == []
    assert problem_keys(data__corpus="./text") == []


def test_independent_problems_are_found_together():
    found = problem_keys(model__n_kv_head=4, data__corpus="x", optim__b1=2.0)
    assert found == ["model.n_kv_head", "data.corpus", "optim.b1"]


OTHER_VALUES: dict[str, object] = {
    "model.vocab_size": 401, "model.seq_len": 256, "model.d_model": 192, "model.n_head": 12, "model.n_kv_head": 1,
    "model.projection": "per_head", "data.seq_len": 127, "data.tokenizer": "bytes", "train.steps": 5000,
    "data.repeat_periods": (5, 6), "data.repeat_share": 0.25, "probe.periods": (7, 13),
}  # fmt: skip


@pytest.mark.parametrize(("key", "changes"), WRONG, ids=str)
def test_a_problem_names_every_key_it_depends_on(key: str, changes: dict[str, object]):
    # config_files relies on this: it withholds a problem only where a key that its text names is in doubt
    (problem,) = [problem for problem in problems(build(VALID | changes)) if problem.key == key]
    words = re.findall(r"\w+(?:\.\w+)?", problem.text)
    named = {key} | set(words) | {f"{key.partition('.')[0]}.{word}" for word in words}
    for other, value in OTHER_VALUES.items():
        if other not in named:
            still = [found.key for found in problems(build(VALID | changes | {other: value}))]
            assert key in still, f"{problem} depends on {other}, which its text does not name"


def test_required_keys_are_integers_and_optional_ones_default_to_none():
    # config_files stands in any integer for a missing required key, and a dumped file leaves out what is None
    assert {key for key in REQUIRED if ANNOTATIONS[key] is int} == REQUIRED
    defaults = build(dict.fromkeys(REQUIRED, 8))
    optional = {key for key, annotation in ANNOTATIONS.items() if NoneType in get_args(annotation)}
    assert optional == {"model.n_kv_head", "model.heads_per_layer", "model.d_mlp", "model.projection_form"}
    assert {key for key in ANNOTATIONS if value_of(defaults, key) is None} == optional


def test_experiments_are_values():
    assert build(VALID) == build(VALID)
    assert hash(build(VALID)) == hash(build(VALID))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(build(VALID), "model", None)  # noqa: B010 (pyright rejects the plain assignment)


def test_the_schema_stays_small_enough_to_read():
    assert (
        len(ANNOTATIONS) <= 48
    )  # 40; pruned models, GPT-2, claims C2 and C8, many devices and long runs need the rest
    assert [part.name for part in dataclasses.fields(Experiment)] == [
        "model", "data", "optim", "train", "compute", "probe",
    ]  # fmt: skip
