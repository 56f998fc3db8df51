from pathlib import Path

import pytest

from andrea_jax.config_files import expand, load
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


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def errors(path: Path, *overrides: str, read=expand) -> list[str]:
    """The lines of the one error, with the folder of `path` cut off."""
    with pytest.raises(UserError) as raised:
        read(path, overrides)
    return str(raised.value).replace(f"{path.parent}/", "").splitlines()


def test_a_sweep_expands_to_the_product_with_the_last_key_fastest(tmp_path: Path):
    write(tmp_path, "base.toml", BASE)
    path = write(
        tmp_path, "grid.toml",
        'extends = "base.toml"\n[sweep]\n"model.n_head" = [6, 12]\n"optim.learning_rate" = [1, 0.5, 0.25]',
    )  # fmt: skip
    points = [(e.model.n_head, e.optim.learning_rate, e.train.seed) for e in expand(path, ["train.seed=3"])]
    assert points == [(6, 1.0, 3), (6, 0.5, 3), (6, 0.25, 3), (12, 1.0, 3), (12, 0.5, 3), (12, 0.25, 3)]


def test_a_sweep_may_list_tuples_and_give_required_keys(tmp_path: Path):
    text = BASE.replace("n_head = 6\n", "") + '[sweep]\n"model.n_head" = [6, 12]\n"probe.periods" = [[5, 7], [9, 11]]'
    points = [(e.model.n_head, e.probe.periods) for e in expand(write(tmp_path, "grid.toml", text))]
    assert points == [(6, (5, 7)), (6, (9, 11)), (12, (5, 7)), (12, (9, 11))]


def test_a_file_without_a_sweep_expands_to_itself(tmp_path: Path):
    base = write(tmp_path, "base.toml", BASE)
    assert expand(base) == [load(base)]


def test_load_refuses_a_sweep_and_names_what_to_use(tmp_path: Path):
    text = BASE.replace("n_head = 6\n", "") + '[sweep]\n"model.n_head" = [6, 12]\n"train.seed" = [0, 1]'
    (line,) = errors(write(tmp_path, "grid.toml", text), read=load)
    assert line.startswith('grid.toml: sweep."model.n_head" = [6, 12]: is a sweep')
    assert "config_files.expand()" in line
    assert "expand()" in line


@pytest.mark.parametrize(
    ("sweep", "line"),
    [
        ('"train.seed" = []', 'sweep."train.seed" = []: must be a list of one or more values'),
        ('"train.seed" = 3', 'sweep."train.seed" = 3: must be a list of one or more values'),
        ('"train.seeds" = [1]', 'sweep."train.seeds" = [1]: unknown key (did you mean "train.seed"?)'),
        (
            "train.seed = [1]",
            'sweep."train" = {seed = [1]}: unknown key: a sweep quotes the whole key, "model.n_head" = [1, 2]',
        ),
        ('"train.seed" = [1, "2"]', 'sweep."train.seed" = [1, "2"]: each value must be an integer, and "2" is not'),
        ('"optim.b1" = [1, 1.0]', 'sweep."optim.b1" = [1, 1.0]: has 1.0 twice'),
        ('"train.seed" = [0, -1]', "train.seed = -1: must be from 0 to 2**32 - 1, not -1"),
    ],
)
def test_a_wrong_sweep_is_refused(tmp_path: Path, sweep: str, line: str):
    path = write(tmp_path, "grid.toml", f'{BASE}[sweep]\n{sweep}\n"train.steps" = [10, 20]')
    assert errors(path) == [f"grid.toml: {line}"]


def test_a_sweep_over_nothing_is_refused(tmp_path: Path):
    path = write(tmp_path, "grid.toml", f"{BASE}[sweep]\n")
    assert errors(path) == ["grid.toml: sweep = {}: must be a table of one or more keys"]


def test_an_override_of_a_swept_key_is_refused(tmp_path: Path):
    path = write(tmp_path, "grid.toml", f'{BASE}[sweep]\n"train.seed" = [0, 1]')
    (line,) = errors(path, "train.seed=4")
    assert line.endswith("is swept, so train.seed cannot be set on the command line too")


def test_points_that_are_one_experiment_are_refused(tmp_path: Path):
    path = write(tmp_path, "grid.toml", f'{BASE}[sweep]\n"compute.backend" = ["chunked", "cudnn"]')
    (line,) = errors(path)
    assert line.startswith(
        'grid.toml: [sweep]: (compute.backend = "chunked") and (compute.backend = "cudnn") are the same'
    )
