"""Types of command-line arguments: text in, a value out, or argparse.ArgumentTypeError that says what was expected."""

import argparse
import math
from pathlib import Path


def positive(text: str) -> int:
    """A whole number, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, not {text}")
    return int(text)


def seed(text: str) -> int:
    """What JAX and numpy take for a seed."""
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 2**32 - 1, not {text}")
    return int(text)


def token(text: str) -> int:
    """A token id."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a token id, a whole number, not {text}")
    return int(text)


def above_0(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text}")
    return value


UNITS = {"GB": 10**9, "GiB": 2**30, "MB": 10**6, "MiB": 2**20}


def memory(text: str) -> int:
    """Bytes: 24GB -> 24,000,000,000; also GiB, MB, MiB."""
    number = text.rstrip("GMiB")
    unit = text[len(number) :].strip()
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if unit not in UNITS or not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a size such as 24GB ({', '.join(UNITS)}), not {text}")
    return int(value * UNITS[unit])


def temperature(text: str) -> float:
    """0 or more, and finite."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number, 0 or more, not {text}")
    return value


def head(text: str) -> tuple[int, int]:
    """Layer and head: 0.3 -> (0, 3)."""
    layer, dot, head = text.partition(".")
    if not (dot and layer.isdecimal() and head.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be layer.head, for example 0.3, not {text}")
    return int(layer), int(head)


def heads(text: str) -> list[tuple[int, int]]:
    """Heads with commas between them: 0.3,1.2 -> [(0, 3), (1, 2)]."""
    return [head(part) for part in text.split(",")]


def share(text: str) -> float:
    """Above 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be a number above 0 and below 1, not {text}")
    return value


def step(text: str) -> int | str:
    """A checkpoint: last, best or the number of a step."""
    if text in ("last", "best"):
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'must be "last", "best" or a step, not "{text}"') from None


def run_at(text: str) -> tuple[Path, int | str | None]:
    """A run directory and, after an @, one of its checkpoints: runs/a@3 -> (Path("runs/a"), 3); None where none is."""
    run, at, name = text.rpartition("@")
    if not at or "/" in name:  # an @ in the name of a folder above; a run's own name has none
        return Path(text), None
    return Path(run), step(name)
