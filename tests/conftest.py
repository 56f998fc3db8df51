"""For every test: arrays of different rank must be broadcast explicitly, and what one test process has compiled the
others look up, which is most of the time of a run. For tests of whole commands: a tiny run."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

KEPT = {  # before JAX is imported, and for the processes that tests start
    "JAX_COMPILATION_CACHE_DIR": str(Path(__file__).parent.parent / ".pytest_cache" / "programs"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
}
os.environ.update({name: value for name, value in KEPT.items() if name not in os.environ})
os.environ["PYTHONDONTWRITEBYTECODE"] = ""  # of those processes the first one compiles our modules, too

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture(autouse=True)
def _a_log_that_nobody_shows():
    """The command line shows the log on stderr from its first training on; each test begins without that."""
    logger = logging.getLogger("andrea_jax")
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


@pytest.fixture(autouse=True, scope="session")
def _explicit_rank_promotion():
    jax.config.update("jax_numpy_rank_promotion", "raise")


TINY = """
[model]
vocab_size = 257
seq_len = 37
d_model = 24
n_layer = 2
n_head = 3
[data]
corpus = "{corpus}"
tokenizer = "bytes"
seq_len = 31
repeat_share = 0.4
repeat_kind = "random"
repeat_periods = [4, 13]
[optim]
learning_rate = 1e-2
[train]
steps = 5
batch_size = 7
eval_every = 3
[compute]
backend = "reference"
[probe]
n_sequences = 6
periods = [5, 7]
"""


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """tiny.toml: a few steps of two layers × three heads on a folder of 90 made-up texts; its cache is its own."""
    root = tmp_path_factory.mktemp("tiny")
    rng, words = np.random.default_rng(0), ["def ", "return ", "x = ", "(a, [b])", "{c}", "\n", "    ", "self."]
    (root / "corpus").mkdir()
    for i in range(90):
        text = "".join(words[j] for j in rng.integers(len(words), size=60))
        (root / "corpus" / f"{i:02}.txt").write_text(text)
    (root / "tiny.toml").write_text(TINY.format(corpus=root / "corpus"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANDREA_CACHE", str(root / "cache"))
        yield root / "tiny.toml"


@pytest.fixture(scope="session")
def tiny_run(tiny_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of `tiny_config`, trained once through the command line; tests that write to it copy it."""
    from andrea_jax import cli

    runs = tmp_path_factory.mktemp("runs")
    assert cli.main(["train", str(tiny_config), "--runs", str(runs)]) == 0
    (run,) = runs.iterdir()
    return run


@pytest.fixture
def andrea(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """andrea(words...) -> (exit code, stdout, stderr)."""
    from andrea_jax import cli

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = cli.main([str(word) for word in words])
        except SystemExit as stopped:  # argparse
            code = int(stopped.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run
