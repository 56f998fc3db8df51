"""The keys of an experiment ("model.d_model") and the TOML values they take, read off the types in `config.py`."""

import json
import sys
from dataclasses import MISSING, asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

from andrea_jax.config import Experiment
from andrea_jax.errors import did_you_mean, nearest

SECTIONS: dict[str, type] = get_type_hints(Experiment)
ANNOTATIONS: dict[str, object] = {
    f"{section}.{name}": annotation
    for section, cls in SECTIONS.items()
    for name, annotation in get_type_hints(cls).items()
}
REQUIRED = {
    f"{section}.{part.name}"
    for section, cls in SECTIONS.items()
    for part in fields(cls)
    if part.default is MISSING and part.default_factory is MISSING
}
WORDS: dict[object, str] = {
    int: "an integer",
    float: "a finite number",
    bool: "true or false",
    str: "a string of printable characters",
}


def build(values: dict[str, object]) -> Experiment:
    """The experiment with these values by dotted key; keys left out take their defaults."""
    by_section: dict[str, dict[str, object]] = {section: {} for section in SECTIONS}
    for key, value in values.items():
        section, _, name = key.partition(".")
        by_section[section][name] = value
    return Experiment(**{section: SECTIONS[section](**entries) for section, entries in by_section.items()})


def value_of(experiment: Experiment, key: str) -> object:
    section, _, name = key.partition(".")
    return getattr(getattr(experiment, section), name)


def convert(key: str, value: object) -> object:
    """A TOML value as the type of `key`, an integer as a float where one is wanted.

    Raises ValueError("must be ...") where the value does not fit.
    """
    return _convert(value, ANNOTATIONS[key])


def _convert(value: object, annotation: object) -> object:
    args = get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):  # X | None: TOML has no null, so a file can only say X
        (annotation,) = (arg for arg in args if arg is not NoneType)
        return _convert(value, annotation)
    if get_origin(annotation) is Literal:
        if isinstance(value, str) and value in args:
            return value
        hint = did_you_mean(value, args) if isinstance(value, str) else ""
        raise ValueError(f"must be one of {', '.join(map(toml, args))}{hint}")
    if get_origin(annotation) is tuple:
        if isinstance(value, list) and all(type(item) is args[0] for item in value):
            return tuple(value)
        raise ValueError(f"must be a list, each item {WORDS[args[0]]}")
    if isinstance(annotation, type) and is_dataclass(annotation):
        return _table(value, annotation)
    if annotation is float and isinstance(value, int | float) and _is_finite_number(value):
        return float(value)
    if annotation is str and isinstance(value, str) and value.isprintable():
        return value
    if annotation in (int, bool) and type(value) is annotation:  # True is an instance of int
        return value
    raise ValueError(f"must be {WORDS[annotation]}")


def _table(value: object, cls: type) -> object:
    """An inline table of whole numbers, any of the fields of `cls`."""
    names = [part.name for part in fields(cls)]
    if isinstance(value, dict) and all(name in names and type(n) is int for name, n in value.items()):
        return cls(**value)
    unknown = next((name for name in value if name not in names), "") if isinstance(value, dict) else ""
    raise ValueError(f"must be a table of integers for any of {', '.join(names)}{did_you_mean(unknown, names)}")


def _is_finite_number(value: int | float) -> bool:
    return type(value) is not bool and abs(value) <= sys.float_info.max  # math.isfinite fails on very long integers


def toml(value: object) -> str:
    """`value` as TOML writes it, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {toml(item)}' for key, item in value.items())}}}"
    return str(value)


def nearest_key(key: str) -> str | None:
    """The known key that `key` resembles: one of its own section (or the section it resembles), else of another, else
    the one with these initials ("lr")."""
    section, _, name = key.rpartition(".")
    home = nearest(section, SECTIONS)
    names = {known.partition(".")[2]: known for known in reversed(ANNOTATIONS)}  # of two, the first section's
    close = nearest(name, [known.partition(".")[2] for known in ANNOTATIONS if known.startswith(f"{home}.")])
    if close:
        return f"{home}.{close}"
    close = nearest(name, names) or next((full for full in names if _initials(full) == name), None)
    return names[close] if close else None


def what_there_is(key: str) -> str:
    """Where nothing resembles `key`: '; [model] has vocab_size, ...', or '; sections are ...' outside of them."""
    section = key.partition(".")[0]
    if section not in SECTIONS:
        return f"; sections are {', '.join(SECTIONS)}"
    return f"; [{section}] has {', '.join(part.name for part in fields(SECTIONS[section]))}"


def _initials(name: str) -> str:
    return "".join(word[0] for word in name.split("_"))
