"""Reading JSON that others wrote, and writing what is large: whole or not at all."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from andrea_jax.errors import UserError, did_you_mean


def read_object(path: Path) -> dict:
    """The JSON object in a file; UserError where there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        neighbours = [file.name for file in path.parent.glob("*")]
        raise UserError(f"{path}: {error.strerror}{did_you_mean(path.name, neighbours)}") from None
    except ValueError as error:  # no JSON, or no UTF-8
        raise UserError(f"{path}: is not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: must hold one JSON object")
    return value


def sha256(path: Path) -> str:
    """Of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A name beside `path` to write a file or a folder at; it gets its own name when the block ends well, or goes.

    UserError where `path` is there already: what others made is not replaced.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"{path}: exists already; choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield draft
        os.replace(draft, path)
    finally:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        draft.unlink(missing_ok=True)
