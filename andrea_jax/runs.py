"""A run directory explains itself: `<root>/<name>-<run_id>/` with everything needed to read or continue the run.

    config.toml       the resolved experiment
    provenance.json   format, when, by which command, commit and versions, on what; training adds device, data and
                      `sessions`: the same of every start of training
    metrics.jsonl     one JSON object a line
    tokenizer.json    saved by training, so that the directory can be used without its data
    checkpoints/  heads/  figures/  report.html
    lock              locked while a process trains the run; the file by itself says nothing

Every file but `metrics.jsonl` (appended line by line) is replaced whole, so a reader never sees half of one.
JSON has no nan or infinity: they are written as the strings "nan", "inf" and "-inf" and read back as floats.
"""

import dataclasses
import json
import math
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from andrea_jax import config_files
from andrea_jax.config import Experiment
from andrea_jax.errors import UserError, did_you_mean

FORMAT = 1  # of a run directory; raise it when a reader of the old one would misread the new one
PACKAGES = ("andrea-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers")
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

type Json = bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None


@dataclass(frozen=True)
class Run:
    """A run directory. Make one with `create`, open one with `Run.open`."""

    path: Path
    experiment: Experiment

    @staticmethod
    def open(path: Path | str) -> "Run":
        """The run at `path`. Raises `UserError` where there is none, or half of one, or one of another format."""
        path = Path(path)
        if not path.is_dir():
            raise UserError(f"{path}: no such run{did_you_mean(path.name, _folders(path.parent))}")
        for name in ("provenance.json", "config.toml"):
            if not (path / name).is_file():
                inside = ", ".join(found.parent.name for found in sorted(path.glob("*/provenance.json"))[:3])
                text = f"is not a run directory, or only part of one: it has no {name}"
                raise UserError(f"{path}: {text}{f'; runs in it: {inside}' if inside else ''}")
        found = _read_json(path / "provenance.json").get("format")
        if found != FORMAT:
            raise UserError(f"{path}: was written in run format {found}, and this version reads format {FORMAT}")
        return Run(path, config_files.load(path / "config.toml"))

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def heads(self) -> Path:
        return self.path / "heads"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def provenance(self) -> dict:
        """What `provenance.json` says now."""
        return self.read_json("provenance.json")

    def record(self, **fields: Json) -> None:
        """Merges fields into `provenance.json`: what only training knows (device, data)."""
        self.write_json("provenance.json", {**self.provenance, **fields})

    def metrics(self) -> list[dict]:
        """The lines of `metrics.jsonl`, oldest first; none before the first is written.

        A last line that a killed run left unfinished is skipped with a warning; any other bad line is a `UserError`.
        """
        path = self.path / "metrics.jsonl"
        records: list[dict] = []
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                record = _decode(json.loads(line))
            except ValueError:
                record = None
            if isinstance(record, dict):
                records.append(record)
            elif number == len(lines) and not line.endswith(b"\n"):
                # stacklevel 1: one place for all callers, so that Python shows this once a process
                warnings.warn(f"{path}, line {number}: skipped, the run stopped while writing it", stacklevel=1)
            else:
                raise UserError(f"{path}, line {number}: must be one JSON object")
        return records

    def append_metrics(self, record: Mapping[str, Json]) -> None:
        """Adds one line, after dropping an unfinished last one, and flushes it. Values are plain Python, not arrays."""
        path = self.path / "metrics.jsonl"
        line = _line(record)  # before the file is touched: it raises TypeError for what JSON cannot hold
        if _ends_within_a_line(path):
            write_atomically(path, "".join(map(_line, self.metrics())))
        with path.open("a", encoding="utf-8") as file:
            file.write(line)

    def truncate_metrics(self, after_step: int) -> None:
        """Drops the lines whose "step" is above `after_step`, and an unfinished last line.

        Called with the step of the checkpoint that a run resumes from, so that no step is ever recorded twice.
        """
        kept = [record for record in self.metrics() if "step" not in record or record["step"] <= after_step]
        write_atomically(self.path / "metrics.jsonl", "".join(map(_line, kept)))

    def write_json(self, name: str, obj: Mapping[str, Json]) -> Path:
        """Writes `obj` at `name` ("heads/scores.json") in the run directory; returns its path."""
        text = json.dumps(_encode(obj), indent=2, ensure_ascii=False, allow_nan=False)
        return write_atomically(self.path / name, text + "\n")

    def read_json(self, name: str) -> dict:
        """What `write_json` wrote at `name`. Raises `UserError` where there is none, or no JSON object in it."""
        return _read_json(self.path / name)


def open_or_create(root: Path, experiment: Experiment, name: str) -> Run:
    """The run of an experiment in `root`: the one that is there, or a new one. Raises what either raises.

    One that is there goes on with the `compute` of `experiment`, whose mesh and backend may be others.
    """
    path = root / f"{name}-{config_files.run_id(experiment)}"
    if not path.exists():
        return create(root, experiment, name)
    return Run(path, dataclasses.replace(Run.open(path).experiment, compute=experiment.compute))


def create(root: Path, experiment: Experiment, name: str) -> Run:
    """Makes `<root>/<name>-<run_id>/` with `config.toml` and `provenance.json`, all at once or not at all.

    Raises `UserError` for a name that is no plain file name, and where the run exists (open it instead).
    """
    if not re.fullmatch(r"[A-Za-z0-9_][\w.-]*", name):
        raise UserError(
            f'name = "{name}": must start with a letter or digit and hold only letters, digits, ".", "-", "_"'
        )
    identity = config_files.run_id(experiment)
    path = root / f"{name}-{identity}"
    unfinished = root / f".{path.name}.{os.getpid()}.tmp"
    draft = Run(unfinished, experiment)
    try:
        write_atomically(unfinished / "config.toml", config_files.dump(experiment))
        made = {"format": FORMAT, "name": name, "run_id": identity, "created": now(), **circumstances()}
        draft.write_json("provenance.json", made)
        for folder in (draft.checkpoints, draft.heads, draft.figures):
            folder.mkdir(exist_ok=True)
        unfinished.rename(path)  # refused where `path` exists, unless it is an empty folder
    except OSError as error:
        text = (
            "exists already: open it, or choose another name" if path.exists() else f"cannot be made: {error.strerror}"
        )
        raise UserError(f"{path}: {text}") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # there only where something failed
    return Run(path, experiment)


def find(root: Path | str) -> list[Run]:
    """The runs directly under `root`, oldest first. A folder that cannot be opened as a run is named in a warning."""
    root = Path(root)
    if not root.is_dir():
        raise UserError(f"{root}: no such folder of runs{did_you_mean(root.name, _folders(root.parent))}")
    runs = []
    for name in _folders(root):
        if (root / name / "provenance.json").exists():
            try:
                runs.append(Run.open(root / name))
            except UserError as error:
                warnings.warn(str(error), stacklevel=2)
    return sorted(runs, key=lambda run: (run.provenance["created"], run.name))


def write_atomically(path: Path, content: str | bytes) -> Path:
    """Replaces the file at `path` (folders are made as needed) so that readers see the old or the new, never half.

    An OSError while writing names `path`, not the draft.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(draft, path)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        draft.unlink(missing_ok=True)  # left only where writing failed
    return path


def now() -> str:
    """The time, UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def circumstances() -> dict[str, Json]:
    """By what this process computes: command, commit and dirty (of this code), versions, platform, cpu_count."""
    from importlib import metadata  # slow to import, and seldom needed

    versions: dict[str, Json] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    commit = _git("rev-parse", "HEAD") if _git("ls-files", "--error-unmatch", __file__) else None
    changes = _git("status", "--porcelain", "--", ".") if commit else None
    return {
        "command": shlex.join(sys.argv),
        "commit": commit,  # None: this code is not tracked in a git checkout
        "dirty": None if changes is None else changes != "",
        "versions": versions,
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
    }


def _git(*arguments: str) -> str | None:
    """What git prints about the checkout this file lies in; None where git is missing or refuses."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _encode(value: Json) -> Json:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))  # "nan", "inf" or "-inf"
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):  # json would turn 1 into "1"
            raise TypeError(f"JSON keys must be strings, not {list(value)}")
        return {key: _encode(item) for key, item in value.items()}
    return value


def _decode(value: object) -> object:
    if isinstance(value, str) and value in _NON_FINITE:
        return _NON_FINITE[value]
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if isinstance(value, dict):
        return {key: _decode(item) for key, item in value.items()}
    return value


def _line(record: Mapping[str, Json]) -> str:
    return json.dumps(_encode(record), allow_nan=False) + "\n"  # ASCII, so that a cut never falls inside a character


def _ends_within_a_line(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _read_json(path: Path) -> dict:
    try:
        value = _decode(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except ValueError as error:
        raise UserError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: must hold one JSON object")
    return value


def _folders(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("*") if path.is_dir() and not path.name.startswith("."))
