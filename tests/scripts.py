"""The scripts of experiments/, as modules."""

import importlib.util
from pathlib import Path
from types import ModuleType

EXPERIMENTS = Path(__file__).parent.parent / "experiments"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXPERIMENTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
