"""TOML files and command-line overrides to an `Experiment`, and back. Standard library only: an error must be quick.

A file has the sections of `Experiment`, each with the keys of its dataclass. `extends = "other.toml"` (relative to the
file) starts from another file; `[sweep]` lists values of dotted keys, `"model.n_head" = [1, 2, 4]`. An override is
`section.key=value` in TOML syntax, where a bare word stands for a string (`model.projection=fused`). What comes later
wins: base, file, overrides from left to right. All that is wrong is raised at once, as one `UserError`, a line each.
"""

import dataclasses
import hashlib
import itertools
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from andrea_jax import config_keys
from andrea_jax.config import Experiment, Problem, problems
from andrea_jax.config_keys import ANNOTATIONS, REQUIRED, SECTIONS, WORDS, build, convert, nearest_key, toml, value_of
from andrea_jax.config_mesh import Mesh
from andrea_jax.errors import UserError, did_you_mean

COMMAND_LINE = "command line"
_OVERRIDE = re.compile(r"\s*(?P<key>\w[^=]*?)\s*=\s*(?P<value>.*?)\s*", re.DOTALL)
_BARE_WORD = re.compile(r"[A-Za-z_./~][\w./~-]*")


def load(path: Path | str, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment that the file at `path` and the `section.key=value` overrides describe.

    Raises `UserError` with one line for each thing that is wrong; a file with a [sweep] belongs to `expand`.
    """
    reading = _read(path, overrides)
    for key, setting in itertools.islice(reading.sweep.items(), 1):
        text = "is a sweep, several experiments: `andrea sweep` trains them, config_files.expand() gives them"
        reading.report(setting.source, f'sweep."{key}"', setting.value, text)
    reading.doubtful |= reading.sweep.keys()
    experiment = _experiment(reading, _values(reading), {})
    reading.raise_errors()
    return experiment


def expand(path: Path | str, overrides: Sequence[str] = ()) -> list[Experiment]:
    """Every experiment of a file's [sweep], the last key varying fastest; the file's one experiment where it has none.

    Raises `UserError` as `load` does, and where a list is empty or repeats a value, an override sets a swept key, or
    two points are one experiment (have the same `run_id`).
    """
    reading = _read(path, overrides)
    axes, values = _axes(reading), _values(reading)
    points = [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]
    experiments = [_experiment(reading, values, point) for point in points]
    reading.raise_errors()
    seen: dict[str, str] = {}
    for point, experiment in zip(points, experiments, strict=True):
        label = ", ".join(f"{key} = {toml(setting.value)}" for key, setting in point.items())
        identity = run_id(experiment)
        if identity in seen:
            same = f"({seen[identity]}) and ({label}) are the same experiment, run {identity}"
            reading.errors.append(f"{reading.path}: [sweep]: {same}")
        seen[identity] = label
    reading.raise_errors()
    return experiments


def override(experiment: Experiment, overrides: Sequence[str], source: str) -> Experiment:
    """An experiment that is in no file, with `section.key=value` overrides; `source` says in errors where it is from.

    Raises `UserError` as `load` does, for what the experiment itself has wrong too.
    """
    reading = _Reading(source)
    reading.add_table(tomllib.loads(dump(experiment)), source)
    for text in overrides:
        reading.add_override(text)
    changed = _experiment(reading, _values(reading), {})
    reading.raise_errors()
    return changed


def dump(experiment: Experiment) -> str:
    """The resolved experiment as TOML, defaults included; loading it gives an equal experiment."""
    tables = []
    for section in SECTIONS:
        entries = vars(getattr(experiment, section)).items()
        lines = [f"{name} = {toml(value)}\n" for name, value in entries if value is not None]  # TOML has no null
        tables.append(f"[{section}]\n{''.join(lines)}")
    return "\n".join(tables)


def run_id(experiment: Experiment) -> str:
    """The first 8 hex digits of the sha256 of the resolved experiment.

    Everything that can change the numbers counts, `data.corpus` and `compute.dtype` too. `compute.backend` does not:
    it says which device's kernel evaluates the same function, so a run can move to another machine and continue. Nor
    do `compute.mesh` and `compute.remat`.
    Keys left to their derived value (n_kv_head, d_mlp, projection_form) count as that value written out,
    heads_per_layer as left out where every layer has n_head, and keys that came after the first runs (`later`) as left
    out where they are at their defaults.
    """
    m = experiment.model
    pruned = m.heads_per_layer if sum(m.layer_heads) < m.n_layer * m.n_head else None
    model = dataclasses.replace(
        m, n_kv_head=m.kv_heads, heads_per_layer=pruned, d_mlp=m.mlp_width, projection_form=m.form
    )
    compute = dataclasses.replace(experiment.compute, backend="auto", mesh=Mesh(), remat="none")
    resolved = dump(dataclasses.replace(experiment, model=model, compute=compute))
    for later in (
        "norm_weights = false\n",
        'matrices = "stored"\n',
        "shuffled = false\n",
        f"mesh = {toml(Mesh())}\n",
        'remat = "none"\n',
        "profile_every = 0\n",
        "accumulate = 1\n",
    ):
        resolved = resolved.replace(later, "")
    return hashlib.sha256(resolved.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class _Setting:
    value: object  # as TOML has it
    source: str  # the file that says so, or COMMAND_LINE


@dataclass
class _Reading:
    """What the files and overrides say, and what is wrong with it so far."""

    path: str
    settings: dict[str, _Setting] = field(default_factory=dict)
    sweep: dict[str, _Setting] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    doubtful: set[str] = field(default_factory=set)  # keys whose intended value an error hides
    complete: bool = True  # False: a file could not be read, and may have set any key

    def report(self, source: str, key: str, value: object, text: str) -> None:
        shown = toml(value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        line = f"{source}: {key} = {shown}: {text}"
        if line not in self.errors:  # the points of a sweep share most of their settings
            self.errors.append(line)

    def unreadable(self, source: str, text: str) -> None:
        self.errors.append(f"{source}: {text}")
        self.complete = False

    def raise_errors(self) -> None:
        if self.errors:
            raise UserError("\n".join(self.errors))

    def doubt(self, key: str) -> str:
        """Notes which key an unknown one was probably meant to be; says so as ' (did you mean "x"?)', or what is."""
        if (meant := nearest_key(key)) is None:
            return config_keys.what_there_is(key)
        self.doubtful.add(meant)
        return f' (did you mean "{meant}"?)'

    def add_file(self, path: Path, extended_by: tuple[Path, ...] = ()) -> None:
        because = "".join(f", extended by {file}" for file in reversed(extended_by))
        if path.resolve() in [file.resolve() for file in extended_by]:
            return self.unreadable(str(path), f"extends itself{because}")
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            neighbours = sorted(file.name for file in path.parent.glob("*.toml"))
            return self.unreadable(str(path), f"no such file{did_you_mean(path.name, neighbours)}{because}")
        except OSError as error:
            return self.unreadable(str(path), f"cannot be read: {error.strerror}{because}")
        except (ValueError, RecursionError) as error:  # TOMLDecodeError, which names the line; or not UTF-8
            return self.unreadable(str(path), f"is not valid TOML: {error}")
        base = table.pop("extends", None)
        if isinstance(base, str) and base.isprintable():
            self.add_file(path.parent / base, (*extended_by, path))
        elif base is not None:
            text = "must be a string, the path of one file, relative to this one"
            self.unreadable(str(path), f"extends = {toml(base)}: {text}")
        return self.add_table(table, str(path))

    def add_override(self, text: str) -> None:
        parts = _OVERRIDE.fullmatch(text)
        if parts is None:
            self.doubt(text)
            return self.errors.append(f"{COMMAND_LINE}: {text}: must have the form section.key=value")
        key, value = parts["key"], parts["value"]
        quoted = f"{key} = {toml(value)}"
        for attempt in (text, quoted) if _BARE_WORD.fullmatch(value) else (text,):
            try:
                return self.add_table(tomllib.loads(attempt), COMMAND_LINE)
            except (ValueError, RecursionError):
                continue
        self.doubt(key)
        advice = f"is not valid TOML; a string needs quotes that the shell keeps: '{key}={toml(value)}'"
        return self.errors.append(f"{COMMAND_LINE}: {text}: {advice}")

    def add_table(self, table: dict[str, object], source: str) -> None:
        for section, entries in table.items():
            if section in (*SECTIONS, "sweep") and isinstance(entries, dict) and (entries or section != "sweep"):
                self.add_section(section, entries, source)
            elif section in (*SECTIONS, "sweep"):
                self.unreadable(source, f"{section} = {toml(entries)}: must be a table of one or more keys")
            elif isinstance(entries, dict):
                self.doubtful |= {key for key in (nearest_key(f"{section}.{name}") for name in entries) if key}
                text = f'unknown section "{section}"{did_you_mean(section, [*SECTIONS, "sweep"])}'
                name, value = next(iter(entries.items()), ("", {}))  # one line for the section, not one a key
                self.report(source, f"{section}.{name}".rstrip("."), value, text)
            else:
                self.report(source, section, entries, f"unknown key outside the sections{self.doubt(section)}")

    def add_section(self, section: str, entries: dict[str, object], source: str) -> None:
        for name, value in entries.items():
            key = f"{section}.{name}"
            if section == "sweep":
                self.sweep[name] = _Setting(value, source)
            elif key in ANNOTATIONS:
                before = self.settings[key].value if key in self.settings else {}
                if isinstance(value, dict) and isinstance(before, dict):  # compute.mesh: what is not said stays
                    value = before | value
                self.settings[key] = _Setting(value, source)
            else:
                self.report(source, key, value, f"unknown key{self.doubt(key)}")


def _read(path: Path | str, overrides: Sequence[str]) -> _Reading:
    reading = _Reading(str(path))
    reading.add_file(Path(path))
    for text in overrides:
        reading.add_override(text)
    return reading


def _values(reading: _Reading) -> dict[str, object]:
    """The settings converted to their keys' types; wrong and missing ones are reported and left out."""
    values = {}
    for key, setting in reading.settings.items():
        try:
            values[key] = convert(key, setting.value)
        except ValueError as error:
            reading.report(setting.source, key, setting.value, str(error))
            reading.doubtful.add(key)
    for key in ANNOTATIONS if reading.complete else ():
        if key in REQUIRED and not any(key in known for known in (reading.settings, reading.sweep, reading.doubtful)):
            reading.errors.append(f"{reading.path}: {key} is missing: must be {WORDS[ANNOTATIONS[key]]}")
    return values


def _axes(reading: _Reading) -> dict[str, list[_Setting]]:
    """The lists of [sweep] by key; wrong ones are reported and left out."""
    axes = {}
    for key, setting in reading.sweep.items():
        try:
            axes[key] = [_Setting(value, setting.source) for value in _axis(reading, key, setting.value)]
        except ValueError as error:
            reading.report(setting.source, f'sweep."{key}"', setting.value, str(error))
            reading.doubtful.add(key)
    return axes


def _axis(reading: _Reading, key: str, values: object) -> list[object]:
    if key in SECTIONS:
        raise ValueError('unknown key: a sweep quotes the whole key, "model.n_head" = [1, 2]')
    if key not in ANNOTATIONS:
        raise ValueError(f"unknown key{reading.doubt(key)}")
    if key in reading.settings and reading.settings[key].source == COMMAND_LINE:
        raise ValueError(f"is swept, so {key} cannot be set on the command line too")
    if not isinstance(values, list) or not values:
        raise ValueError("must be a list of one or more values")
    converted = []
    for value in values:
        try:
            converted.append(convert(key, value))
        except ValueError as error:
            raise ValueError(f"each value {error}, and {toml(value)} is not") from None
        if converted[-1] in converted[:-1]:
            raise ValueError(f"has {toml(value)} twice")
    return values


def _experiment(reading: _Reading, values: dict[str, object], point: dict[str, _Setting]) -> Experiment:
    """Builds one experiment and reports the problems of its values that no other error can have caused."""
    settings = reading.settings | point
    values = values | {key: convert(key, setting.value) for key, setting in point.items()}
    unknown = (reading.doubtful | REQUIRED if reading.complete else ANNOTATIONS.keys()) - values.keys()
    stand_ins = dict.fromkeys(REQUIRED, 8)  # any integer: only there so that the other values can be judged
    experiment = build(stand_ins | values)
    for problem in problems(experiment):
        if unknown & _keys_named(problem):
            continue
        if problem.key not in settings:
            settings[problem.key] = _Setting(value_of(experiment, problem.key), f"{reading.path} (by default)")
        reading.report(settings[problem.key].source, problem.key, settings[problem.key].value, problem.text)
    return experiment


def _keys_named(problem: Problem) -> set[str]:
    """The keys a problem depends on: its own and those its text names, "d_model" in its section or "data.seq_len"."""
    section = problem.key.partition(".")[0]
    words = re.findall(r"\w+(?:\.\w+)?", problem.text)
    return {problem.key, *(key for word in words for key in (word, f"{section}.{word}") if key in ANNOTATIONS)}
