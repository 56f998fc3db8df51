"""The documentation says what is so: its examples run, its links lead somewhere, its counts are counted."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from test_layers import LAYERS

from andrea_jax import cli, config_files
from andrea_jax.counting import parameters_by_part

REPOSITORY = Path(__file__).parent.parent
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
RUN = ("bash", "python")  # blocks that are executed, unless a comment says why not
SHOWN = ("text", "toml")  # blocks to read
NOT_RUN = re.compile(r"<!-- not run: (\S.*) -->")
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
TIMEOUT = 300  # seconds a block

PLACES = "|".join(["andrea_jax", "experiments", "configs", "notebooks", "tests", "docs"])
IN_REPOSITORY = re.compile(rf"(?:{PLACES})/[\w./-]*|[\w-]+\.(?:md|toml|txt)|Makefile|LICENSE")
MADE_BY_EXAMPLES = {"config.toml", "failure.txt"}  # names of files that only a run, or a reader, makes
OF_A_MACHINE = re.compile(r"(?<![\w.~$}])/(?:home|root|tmp|work|Users|usr|opt|var|mnt)/")


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is that of its opening fence, `not_run` why it is not executed, or ""."""

    language: str
    source: str
    line: int
    not_run: str


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a Markdown page. A not-run comment belongs to the block that follows it at once."""
    lines = page.splitlines()
    start = None
    for i, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = i
            continue
        reason = NOT_RUN.fullmatch(lines[start - 1]) if start else None
        language, source = lines[start].removeprefix("```"), "\n".join(lines[start + 1 : i]) + "\n"
        yield Block(language, source, start + 1, reason[1] if reason else "")
        start = None
    assert start is None, f"the block that begins in line {start} has no end"


def prose(page: str) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)


def anchors(page: str) -> set[str]:
    """What GitHub makes of the page's headings: lower case, spaces as hyphens, no punctuation."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def runnable(path: Path) -> list[Block]:
    found = blocks(path.read_text(encoding="utf-8"))
    return [block for block in found if block.language in RUN and not block.not_run]


def relative(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def command_names(capsys: pytest.CaptureFixture[str]) -> set[str]:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    return set(re.findall(r"^    ([a-z][a-z-]*)\b", capsys.readouterr().out, re.MULTILINE))


every_page = pytest.mark.parametrize("path", PAGES, ids=relative)


def test_the_block_reader_finds_language_place_and_reason():
    page = "# a\n```bash\nls\n```\n<!-- not run: needs a GPU -->\n```python\nx = 1\n\ny = 2\n```\n"
    assert list(blocks(page)) == [Block("bash", "ls\n", 2, ""), Block("python", "x = 1\n\ny = 2\n", 6, "needs a GPU")]
    assert prose(page) == "# a\n\n<!-- not run: needs a GPU -->\n\n"
    assert anchors("# Two words, one `name`\n```\n# not me\n```\n") == {"two-words-one-name"}


def test_there_is_a_page_of_each_kind():
    required = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/log.md"}
    assert required <= {relative(path) for path in PAGES}


@every_page
def test_every_block_is_executed_or_meant_to_be_read(path: Path):
    found = {block.language for block in blocks(path.read_text(encoding="utf-8"))}
    assert found <= {*RUN, *SHOWN}


@every_page
def test_every_relative_link_leads_somewhere(path: Path):
    page = path.read_text(encoding="utf-8")
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


@every_page
def test_every_path_that_is_named_exists(path: Path):
    page = path.read_text(encoding="utf-8")
    named = {code for code in CODE.findall(prose(page)) if IN_REPOSITORY.fullmatch(code)} - MADE_BY_EXAMPLES
    assert not [name for name in sorted(named) if not (REPOSITORY / name).exists()]


@every_page
def test_no_page_names_a_path_of_one_machine(path: Path):
    assert not OF_A_MACHINE.findall(path.read_text(encoding="utf-8"))


def test_the_pages_name_every_command_and_no_other(capsys: pytest.CaptureFixture[str]):
    used = set()
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        shell = "".join(block.source for block in blocks(page) if block.language in ("bash", "text"))
        code = "\n".join(CODE.findall(prose(page)))
        used |= set(re.findall(r"(?:^|\$\(|\| )andrea ([a-z][a-z-]*)", f"{shell}\n{code}", re.MULTILINE))
    assert used == command_names(capsys)


@pytest.mark.parametrize("path", [REPOSITORY / "docs" / "how-to" / "run-on-a-gpu.md"], ids=relative)
def test_commands_that_are_not_run_here_are_still_valid(path: Path):
    """Their arguments parse, and their configs load with their overrides."""
    checked = 0
    for block in blocks(path.read_text(encoding="utf-8")):
        for line in re.findall(r"^andrea .+$", block.source, re.MULTILINE) if block.language == "bash" else ():
            args = cli._parse(shlex.split(line)[1:])
            if "config" in args and (REPOSITORY / args.config).is_file():
                config_files.load(REPOSITORY / args.config, args.overrides)
                checked += 1
    assert checked


def test_the_layers_of_the_architecture_page_are_the_enforced_ones():
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (`.+) \|$", page, re.MULTILINE)
    written = {int(layer): {code.removesuffix("/") for code in CODE.findall(parts)} for layer, parts in rows}
    assert written == {layer: parts - {"__init__", "__main__"} for layer, parts in enumerate(LAYERS)}


def test_every_how_to_page_is_in_the_readme():
    page = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert {relative(path) for path in PAGES if path.parent.name == "how-to"} <= set(LINK.findall(page))


def test_the_readmes_parameter_counts_are_those_of_the_models():
    page = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(configs/[\w-]+\.toml)` \|.*\| ([\d,]+) \| ([\d,]+) \|$", page, re.MULTILINE)
    assert {file for file, *_ in rows} == {relative(file) for file in (REPOSITORY / "configs").glob("*.toml")}
    for file, attention, total in rows:
        parts = parameters_by_part(config_files.load(REPOSITORY / file).model)
        assert int(total.replace(",", "")) == sum(parts.values())
        assert int(attention.replace(",", "")) == sum(parts[f"W_{name}"] for name in "QKVO")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The surroundings of the examples: `andrea` and `python` are this checkout's; tokens are shared by all test
    processes, compilations by all tests, the smallest ones too."""
    own, root = tmp_path_factory.mktemp("docs"), tmp_path_factory.getbasetemp()
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    commands = {"andrea": "-m andrea_jax.cli ", "python": ""}
    for name, arguments in commands.items():
        shim = own / "bin" / name
        shim.parent.mkdir(exist_ok=True)
        shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments}"$@"\n')
        shim.chmod(0o755)
    return os.environ | {
        "PATH": f"{own / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "ANDREA_CACHE": str(shared / "cache-of-the-pages"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in PAGES if runnable(path)], ids=relative)
def test_the_examples_of_a_page_run_one_after_the_other(path: Path, environment: dict[str, str], tmp_path: Path):
    shutil.copytree(REPOSITORY / "configs", tmp_path / "configs")
    for block in runnable(path):
        interpreter = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}[block.language]
        done = subprocess.run(
            [*interpreter, block.source], cwd=tmp_path, env=environment, timeout=TIMEOUT, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{relative(path)}, line {block.line}:\n{block.source}\n{done.stdout[-4000:]}"
