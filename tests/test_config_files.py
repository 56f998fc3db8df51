import subprocess
import sys
from pathlib import Path

import pytest

from andrea_jax.config import Data, Experiment, Model
from andrea_jax.config_files import load
from andrea_jax.config_mesh import Mesh
from andrea_jax.errors import UserError

BASE = """
[model]
vocab_size = 307
seq_len = 128
d_model = 96
n_layer = 3
n_head = 6
[data]
seq_len = 67
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write(tmp_path, "base.toml", BASE)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def errors(path: Path, *overrides: str) -> list[str]:
    """The lines of the one error, with the folder of `path` cut off."""
    with pytest.raises(UserError) as raised:
        load(path, overrides)
    return str(raised.value).replace(f"{path.parent}/", "").splitlines()


# reading


def test_keys_come_from_the_file_and_the_rest_from_the_defaults(base: Path):
    model = Model(vocab_size=307, seq_len=128, d_model=96, n_layer=3, n_head=6)
    assert load(base) == Experiment(model=model, data=Data(seq_len=67))


def test_what_comes_later_wins_through_a_chain_of_files(base: Path, tmp_path: Path):
    (tmp_path / "deep").mkdir()
    middle = write(tmp_path / "deep", "middle.toml", 'extends = "../base.toml"\n[model]\nn_head = 12\nn_layer = 5')
    top = write(tmp_path, "top.toml", 'extends = "deep/middle.toml"\n[model]\nn_layer = 7')
    assert (load(middle).model.n_head, load(middle).model.n_layer, load(middle).data.seq_len) == (12, 5, 67)
    assert (load(top).model.n_head, load(top).model.n_layer) == (12, 7)
    assert load(top, ["model.n_layer=11", "model.n_layer=13"]).model.n_layer == 13


def test_overrides_are_toml_and_a_bare_word_is_a_string(base: Path):
    overrides = [
        "model.projection=per_head", 'model.norm="layer"', "optim.learning_rate = 1e-3", "optim.weight_decay=1",
        "model.biases=true", "probe.periods=[5, 7]", "data.corpus=./some/text", "model.n_kv_head=2",
    ]  # fmt: skip
    read = load(base, overrides)
    assert (read.model.projection, read.model.norm, read.model.biases, read.model.n_kv_head) == (
        "per_head", "layer", True, 2,
    )  # fmt: skip
    assert (read.optim.learning_rate, read.optim.weight_decay, type(read.optim.weight_decay)) == (1e-3, 1.0, float)
    assert (read.probe.periods, read.data.corpus) == ((5, 7), "./some/text")


# what can be wrong


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.n_layer=2.0", "must be an integer"),
        ("model.n_layer=true", "must be an integer"),
        ('model.n_layer="2"', "must be an integer"),
        ("model.n_kv_head=none", "must be an integer"),
        ("model.biases=1", "must be true or false"),
        ("optim.learning_rate=fast", "must be a finite number"),
        ("optim.learning_rate=true", "must be a finite number"),
        ("optim.learning_rate=nan", "must be a finite number"),
        (f"optim.learning_rate={10**400}", "must be a finite number"),
        ("data.corpus=3", "must be a string of printable characters"),
        (r'data.corpus="a\u0007"', "must be a string of printable characters"),
        ("probe.periods=11", "must be a list, each item an integer"),
        ("probe.periods=[11, 13.0]", "must be a list, each item an integer"),
        ("probe.periods=[true, false]", "must be a list, each item an integer"),
        ("model.norm=RMS", 'must be one of "rms", "layer"'),
        ("model.norm=layers", 'must be one of "rms", "layer" (did you mean "layer"?)'),
        ("model.projection_form=lop", 'must be one of "einsum", "loop", "one", "three" (did you mean "loop"?)'),
        ("model.n_head.x=1", "must be an integer"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(base: Path, override: str, expected: str):
    (line,) = errors(base, override)
    assert line.startswith(f"command line: {override[:8]}")
    assert line.endswith(f": {expected}")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("model.n_heads=4", 'model.n_heads = 4: unknown key (did you mean "model.n_head"?)'),
        ("model.learning_rate=1", 'model.learning_rate = 1: unknown key (did you mean "optim.learning_rate"?)'),
        ("optim.lr=4", 'optim.lr = 4: unknown key (did you mean "optim.learning_rate"?)'),
        ("train.learning_rte=4", 'train.learning_rte = 4: unknown key (did you mean "optim.learning_rate"?)'),
        ("probe.zzz=4", "probe.zzz = 4: unknown key; [probe] has n_sequences, periods"),
        ("d_model=96", 'd_model = 96: unknown key outside the sections (did you mean "model.d_model"?)'),
        ("modle.n_head=6", 'modle.n_head = 6: unknown section "modle" (did you mean "model"?)'),
        ("zzz.x=6", 'zzz.x = 6: unknown section "zzz"'),
        ("model=6", "model = 6: must be a table of one or more keys"),
        (
            "zzz=1",
            "zzz = 1: unknown key outside the sections; sections are model, data, optim, train, compute, probe",
        ),
        ("model.n_head", "model.n_head: must have the form section.key=value"),
        ("#model.n_head=4", "#model.n_head=4: must have the form section.key=value"),
        ("=4", "=4: must have the form section.key=value"),
        (
            "data.corpus=./my text",
            "data.corpus=./my text: is not valid TOML; a string needs quotes that the shell keeps: "
            "'data.corpus=\"./my text\"'",
        ),
    ],
)
def test_an_override_that_cannot_be_placed_is_refused(base: Path, override: str, line: str):
    assert errors(base, override) == [f"command line: {line}"]


def test_everything_wrong_is_said_at_once_and_by_whom(tmp_path: Path):
    write(tmp_path, "base.toml", BASE.replace("n_head = 6", "n_head = 7") + "corpus = 3\n[optim]\nb1 = 1.5")
    top = write(tmp_path, "top.toml", 'extends = "base.toml"\n[model]\nn_lyer = 2\nnorm = "rns"\n[trian]\nsteps = 5')
    assert errors(top, "train.seed=-1", "model.biases=maybe", "probe.x=1") == [
        'top.toml: model.n_lyer = 2: unknown key (did you mean "model.n_layer"?)',
        'top.toml: trian.steps = 5: unknown section "trian" (did you mean "train"?)',
        "command line: probe.x = 1: unknown key; [probe] has n_sequences, periods",
        "base.toml: data.corpus = 3: must be a string of printable characters",
        'top.toml: model.norm = "rns": must be one of "rms", "layer" (did you mean "rms"?)',
        'command line: model.biases = "maybe": must be true or false',
        "command line: train.seed = -1: must be from 0 to 2**32 - 1, not -1",
        "base.toml: model.n_head = 7: must divide d_model = 96, and 7 does not",
        "base.toml: optim.b1 = 1.5: must be from 0 to below 1, not 1.5",
    ]


def test_the_problem_of_a_value_names_the_file_or_override_that_set_it(base: Path, tmp_path: Path):
    assert errors(base, "model.n_head=7")[0].startswith("command line: model.n_head = 7: must divide d_model = 96")
    top = write(tmp_path, "top.toml", 'extends = "base.toml"\n[model]\nn_head = 7')
    assert errors(top)[0].startswith("top.toml: model.n_head = 7: must divide")
    (line,) = errors(base, "data.seq_len=40", "data.repeat_periods=[2, 3]")
    assert line.startswith("base.toml (by default): probe.periods = [11, 17, 23, 29]: must be")


def test_no_problem_is_invented_where_the_value_it_depends_on_is_in_doubt(base: Path):
    # 257 ids are wrong for the default tokenizer, and right for the one that was meant
    misspelt = ["model.vocab_size=257", "data.tokeniser=bytes"]
    assert errors(base, *misspelt) == [
        'command line: data.tokeniser = "bytes": unknown key (did you mean "data.tokenizer"?)'
    ]
    bad_choice = ["model.vocab_size=257", "data.tokenizer=byte"]
    assert errors(base, *bad_choice) == [
        'command line: data.tokenizer = "byte": must be one of "bytes", "bpe", "imported" (did you mean "bytes"?)'
    ]


def test_missing_keys_are_listed_once_each(tmp_path: Path):
    path = write(tmp_path, "few.toml", "[model]\nn_head = 6\n[optim]\nb1 = 2.0")
    assert errors(path) == [
        *(
            f"few.toml: model.{key} is missing: must be an integer"
            for key in ("vocab_size", "seq_len", "d_model", "n_layer")
        ),
        "few.toml: optim.b1 = 2.0: must be from 0 to below 1, not 2.0",
    ]


def test_a_missing_file_names_its_nearest_neighbour(base: Path, tmp_path: Path):
    assert errors(tmp_path / "bsae.toml") == ['bsae.toml: no such file (did you mean "base.toml"?)']
    top = write(tmp_path, "top.toml", 'extends = "bas.toml"\n[model]\nn_headz = 3')
    assert errors(top, "model.norm=rns") == [
        'bas.toml: no such file (did you mean "base.toml"?), extended by top.toml',
        'top.toml: model.n_headz = 3: unknown key (did you mean "model.n_head"?)',
        'command line: model.norm = "rns": must be one of "rms", "layer" (did you mean "rms"?)',
    ]
    assert errors(tmp_path / "nowhere" / "x.toml") == ["x.toml: no such file"]
    assert errors(tmp_path)[0].endswith("cannot be read: Is a directory")


def test_malformed_files_are_named_with_the_line(tmp_path: Path):
    (line,) = errors(write(tmp_path, "bad.toml", "[model]\nn_head = 6\nd_model == 96\n"))
    assert line.startswith("bad.toml: is not valid TOML: ")
    assert "line 3" in line
    (tmp_path / "latin.toml").write_bytes(b'[data]\ncorpus = "caf\xe9"')
    assert errors(tmp_path / "latin.toml")[0].startswith("latin.toml: is not valid TOML: ")
    assert errors(write(tmp_path, "deep.toml", f"[model]\nn_head = {'[' * 5000}"))[0].startswith(
        "deep.toml: is not valid"
    )


def test_files_that_extend_each_other_in_a_circle_are_refused(tmp_path: Path):
    one = write(tmp_path, "one.toml", 'extends = "two.toml"')
    write(tmp_path, "two.toml", 'extends = "one.toml"')
    assert errors(one) == ["one.toml: extends itself, extended by two.toml, extended by one.toml"]
    assert errors(write(tmp_path, "self.toml", 'extends = "self.toml"')) == [
        "self.toml: extends itself, extended by self.toml"
    ]


def test_extends_must_be_one_path(tmp_path: Path):
    (line,) = errors(write(tmp_path, "two.toml", 'extends = ["a.toml", "b.toml"]'))
    assert (
        line == 'two.toml: extends = ["a.toml", "b.toml"]: must be a string, the path of one file, relative to this one'
    )


def test_a_wrong_config_answers_without_importing_anything_slow(tmp_path: Path):
    program = """
import sys
from andrea_jax.config_files import load
from andrea_jax.errors import UserError
try:
    load(sys.argv[1])
except UserError:
    print(sorted({"jax", "numpy", "flax", "asyncio", "subprocess", "andrea_jax.runs"} & sys.modules.keys()))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "none.toml")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_axes_of_the_mesh_are_set_one_by_one_and_what_is_not_said_stays(tmp_path: Path):
    path = tmp_path / "mesh.toml"
    sizes = "vocab_size = 307\nseq_len = 128\nd_model = 96\nn_layer = 3\nn_head = 6\n"
    path.write_text(f"[model]\n{sizes}[data]\nseq_len = 67\n[compute]\nmesh = {{data = 4, heads = 2}}")
    assert load(path).compute.mesh == Mesh(data=4, heads=2)
    assert load(path, ["compute.mesh.fsdp=2", "compute.mesh={heads=3}"]).compute.mesh == Mesh(data=4, fsdp=2, heads=3)
    for wrong in ("compute.mesh.hosts=2", "compute.mesh=2", "compute.mesh.data=true", "compute.mesh.data=1.5"):
        with pytest.raises(UserError, match=r"must be a table of integers for any of data, fsdp, heads"):
            load(path, [wrong])
    with pytest.raises(UserError, match=r'compute.mesh = .*head = 2.*did you mean "heads"'):
        load(path, ["compute.mesh.head=2"])
