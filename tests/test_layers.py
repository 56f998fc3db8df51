"""Imports point downwards only, and files and functions stay short enough to read at once."""

import ast
import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
PACKAGE = REPOSITORY / "andrea_jax"
LAYERS = (
    {"allocation", "arguments", "errors", "config", "config_keys", "config_files", "config_mesh", "runs"},
    {"attention", "compiled", "data", "devices", "functions", "kernels", "seeds"},
    {"projections"},
    {"model"},
    {"conversion", "counting", "estimate", "generate", "trace", "training"},
    {"circuits", "heads", "interop", "interventions", "plots", "similarity", "viewer"},
    {"comparison", "kept", "loaded", "profiled", "redundancy"},
    # __init__, above, loads what it offers only when asked
    {
        "ablated",
        "annotations",
        "benchmarks",
        "claims",
        "compared",
        "exchange",
        "explained",
        "reporting",
        "side_by_side",
        "sweeps",
    },
    {"__init__", "cli", "__main__"},
)
LAYER_OF = {part: layer for layer, parts in enumerate(LAYERS) for part in parts}
MAX_FILE, MAX_FUNCTION = 300, 40
# "path" or "path:function" -> why it may be longer
EXCEPTIONS: dict[str, str] = {}

FILES = sorted(PACKAGE.rglob("*.py"))
SHORT_FILES = sorted(
    file for folder in ("andrea_jax", "experiments", "tests") for file in (REPOSITORY / folder).rglob("*.py")
)


def relative(file: Path) -> str:
    return file.relative_to(REPOSITORY).as_posix()


def part_of(file: Path) -> str:
    """The module or folder right under the package that `file` is or lies in."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(source: str, package: str) -> Iterator[str]:
    """Full names of what `source`, a module of `package`, imports, at the top or inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*parents, *filter(None, [node.module])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def imported_parts(file: Path) -> set[str]:
    package = ".".join(file.relative_to(REPOSITORY).parent.parts)
    names = [name.split(".") for name in imports(file.read_text(encoding="utf-8"), package)]
    return {name[1] if len(name) > 1 else "__init__" for name in names if name[0] == "andrea_jax"}


def too_long(source: str) -> Iterator[tuple[str, int]]:
    """Functions of more than MAX_FUNCTION lines, docstring included, with their length."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION:
                yield node.name, length


def test_the_import_reader_sees_every_form():
    source = "import andrea_jax.model\ndef f():\n    from .. import data\n    from ..heads.probes import score\n"
    expected = {"andrea_jax.model", "andrea_jax.data", "andrea_jax.heads.probes.score"}
    assert set(imports(source, "andrea_jax.training")) == expected


def test_the_length_reader_counts_from_def_to_the_last_line():
    body = "    x = 1\n" * MAX_FUNCTION
    assert list(too_long(f"def f():\n{body}")) == [("f", MAX_FUNCTION + 1)]
    assert list(too_long(f"def f():\n{body[:-10]}")) == []


@pytest.mark.parametrize("file", FILES, ids=relative)
def test_imports_point_downwards(file: Path):
    assert part_of(file) in LAYER_OF, f"{relative(file)} has no layer: add {part_of(file)} to LAYERS"
    above = {part for part in imported_parts(file) if LAYER_OF[part] > LAYER_OF[part_of(file)]}
    assert not above, f"{relative(file)} imports from a layer above its own"


def test_parts_of_one_layer_do_not_import_each_other_in_a_circle():
    graph: dict[str, set[str]] = {}
    for file in FILES:
        graph.setdefault(part_of(file), set()).update(imported_parts(file) - {part_of(file)})
    assert {"config", "config_files"} <= set(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


@pytest.mark.parametrize("file", [file for file in FILES if LAYER_OF.get(part_of(file)) == 0], ids=relative)
def test_the_lowest_layer_needs_only_the_standard_library(file: Path):
    roots = {name.split(".")[0] for name in imports(file.read_text(encoding="utf-8"), "andrea_jax")}
    assert roots <= sys.stdlib_module_names | {"andrea_jax"}


@pytest.mark.parametrize("file", SHORT_FILES, ids=relative)
def test_files_and_functions_are_short(file: Path):
    source = file.read_text(encoding="utf-8")
    if relative(file) not in EXCEPTIONS:
        assert len(source.splitlines()) <= MAX_FILE
    long = {f"{relative(file)}:{name}": length for name, length in too_long(source)}
    assert not long.keys() - EXCEPTIONS.keys(), long


def test_every_exception_is_still_needed():
    for exception in EXCEPTIONS:
        path, _, function = exception.partition(":")
        source = (REPOSITORY / path).read_text(encoding="utf-8")
        needed = function in dict(too_long(source)) if function else len(source.splitlines()) > MAX_FILE
        assert needed, f"{exception} is short enough now: take it off the list"
