"""Notebooks run in a fresh kernel, are short, answer the question in their title, and carry nothing of a machine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

REPOSITORY = Path(__file__).parent.parent
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
NAMES = {"compare_projections", "development", "explore_ablation", "inspect_heads"}
MOST_CELLS, MOST_BYTES = 25, 1_500_000
TINY = "12"  # training steps
OF_A_MACHINE = re.compile(
    r"(?<![\w.~$}<])/(?:home|root|tmp|work|Users|usr|opt|var|mnt|content)/|[A-Z]:\\\\|site-packages"
)
OF_A_NETWORK = re.compile(r"https?://(?!www\.w3\.org/)")  # the names of XML's own vocabularies are never fetched


def code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in code(notebook) for output in cell.outputs]


def texts(notebook: NotebookNode) -> str:
    """All that a reader or a browser gets, but pictures."""
    parts = [cell.source for cell in notebook.cells]
    for output in outputs(notebook):
        parts += [output.text] if output.output_type == "stream" else []
        parts += [str(value) for kind, value in output.get("data", {}).items() if not kind.startswith("image/")]
    return "\n".join(parts)


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> NotebookNode:
    return nbformat.read(request.param, as_version=4)


def test_the_four_notebooks_are_there():
    assert {path.stem for path in NOTEBOOKS} == NAMES


def test_a_path_of_a_machine_and_a_host_are_recognised():
    for text in ("in /home/me/x", "'/tmp/runs'", r"C:\\Users", "lib/site-packages/jax"):
        assert OF_A_MACHINE.search(text), text
    assert not OF_A_MACHINE.search("runs/tmp/x and n/a and configs/quickstart.toml")
    assert OF_A_NETWORK.search('src="https://cdn.example/x.js"')


def test_it_is_short_and_valid_and_small(notebook, request):
    nbformat.validate(notebook)
    assert len(notebook.cells) <= MOST_CELLS
    path = request.node.callspec.params["notebook"]
    assert path.stat().st_size <= MOST_BYTES


def test_it_was_run_from_top_to_bottom_without_an_error(notebook):
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    assert outputs(notebook)
    assert not [output for output in outputs(notebook) if output.output_type == "error"]
    assert not [output.text for output in outputs(notebook) if output.get("name") == "stderr"]


def test_it_names_no_machine_and_no_host(notebook):
    for pattern in (OF_A_MACHINE, OF_A_NETWORK):
        found = pattern.search(texts(notebook))
        assert found is None, texts(notebook)[max(found.start() - 60, 0) : found.end() + 60]
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert not any(cell.metadata for cell in notebook.cells)


def test_its_title_asks_and_its_last_cell_answers(notebook):
    first, last = notebook.cells[0], notebook.cells[-1]
    assert re.match(r"# .*\?$", first.source.splitlines()[0])
    (said,) = [output.text for output in last.outputs if output.output_type == "stream"]
    assert re.search(r"^Answer: .{20,}\.$", said, re.MULTILINE)
    assert re.search(r"Answer: [^\n]*\{\w+\}", last.source)  # computed, not written


def test_its_first_code_installs_nothing_where_the_package_is_there_and_its_second_sets_the_size(notebook):
    setup, size = code(notebook)[:2]
    assert 'find_spec("andrea_jax") is None' in setup.source and setup.outputs == []
    assert re.search(r'^STEPS = int\(os.environ.get\("ANDREA_NOTEBOOK_STEPS", "\d+"\)\)', size.source, re.MULTILINE)


def test_where_the_package_is_not_installed_the_checkout_beside_the_notebook_is(notebook, tmp_path, monkeypatch):
    """As in Colab, whose servers are not here: a folder with the checkout in it, and a Python without the package."""
    (tmp_path / "checkout").symlink_to(REPOSITORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    commands = []
    monkeypatch.setattr("subprocess.run", lambda command, check: commands.append(command))
    exec(code(notebook)[0].source, {})
    assert [command[1:4] + command[5:] for command in commands] == [
        ["-m", "pip", "install", str(tmp_path / "checkout")]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_on_a_tiny_setting_from_a_folder_beside_the_checkout(path: Path, tmp_path: Path):
    (tmp_path / "checkout").symlink_to(REPOSITORY)
    environment = os.environ | {"ANDREA_NOTEBOOK_STEPS": TINY, "PYTHONPATH": str(REPOSITORY)}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"  # as for the pages, which compile much of the same
    command = [sys.executable, "notebooks/execute.py", "--out", str(tmp_path), str(path)]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    notebook = nbformat.read(tmp_path / path.name, as_version=4)
    test_it_was_run_from_top_to_bottom_without_an_error(notebook)
    test_it_names_no_machine_and_no_host(notebook)
    test_its_title_asks_and_its_last_cell_answers(notebook)


def test_an_error_in_a_cell_is_reported_and_nothing_is_written(tmp_path: Path):
    broken = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0", id="broken")])
    nbformat.write(broken, tmp_path / "broken.ipynb")
    command = [sys.executable, "notebooks/execute.py", "--out", str(tmp_path / "out"), str(tmp_path / "broken.ipynb")]
    (tmp_path / "out").mkdir()
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 1
    assert "broken.ipynb: a cell failed, nothing is written" in done.stderr and "ZeroDivisionError" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []
