"""Runs notebooks from top to bottom and keeps their outputs.

    make notebooks                                       all of them, in place
    python notebooks/execute.py notebooks/development.ipynb
    ANDREA_NOTEBOOK_STEPS=20 python notebooks/execute.py --out somewhere notebooks/*.ipynb

Each runs in a fresh kernel whose folder is the repository's root, or --out. What a machine adds to a notebook (times,
its Python, its kernel's name) is left out, so that running twice changes only the numbers that change.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
          "language_info": {"name": "python"}}  # fmt: skip
TIMEOUT = 1800  # seconds a cell


def execute(source: Path, target: Path, folder: Path) -> None:
    """Runs the notebook at `source` in `folder` and writes it, outputs included, to `target`."""
    notebook = nbformat.read(source, as_version=4)
    client = NotebookClient(
        notebook, timeout=TIMEOUT, kernel_name="python3", record_timing=False, resources={"metadata": {"path": folder}}
    )
    client.execute()
    notebook.metadata = nbformat.from_dict(KERNEL)
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, help="run there and write there (default: run in the root, write in place)")
    args = parser.parse_args(argv)
    for path in args.notebooks:
        begin = time.monotonic()
        target = args.out / path.name if args.out else path
        try:
            execute(path, target, args.out or Path(__file__).parent.parent)
        except CellExecutionError as error:
            print(f"{path}: a cell failed, nothing is written\n{error}", file=sys.stderr)
            return 1
        print(f"{path.name}: {time.monotonic() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
