"""On this machine: in this process, or in worker processes that share its GPUs and cores."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from andrea_jax.sweeps.board import Board
from andrea_jax.sweeps.jobs import Outcome, fail, work, work_together

PACKAGE_ROOT = str(Path(__file__).parent.parent.parent)
MODULE = "andrea_jax.sweeps.worker"
GPU_MEMORY = 0.9  # the share of a GPU's memory that its workers take together
LAST_WORDS = 4000  # bytes of a dead worker's stderr that are kept


def train_here(groups: Sequence[Sequence[Path]], board: Board) -> None:
    """One group of runs after the other, in this process. Raises KeyboardInterrupt where one is stopped."""
    for paths in groups:
        for path in paths:
            board.began(path)
        outcomes = work_together(paths) if len(paths) > 1 else [work(paths[0])]
        for path, outcome in zip(paths, outcomes, strict=True):
            board.ended(path, outcome)
        if any(outcome.state == "stopped" for outcome in outcomes):
            raise KeyboardInterrupt


class Worker:
    """A slot: a Python process that is given its part of the machine before JAX starts, and another one if it dies.

    It listens on its stdin as long as this process lives, and saves its run and ends when that is closed.
    """

    def __init__(self, cores: Sequence[int], environment: dict[str, str]):
        self._cores, self._environment = cores, environment
        self._process: subprocess.Popen[bytes] | None = None
        self._words: IO[bytes] | None = None  # what the process says on stderr
        self._stopped, self._starting = False, threading.Lock()

    def train(self, path: Path) -> Outcome:
        with self._starting:
            if self._stopped:
                return Outcome("stopped")
            process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # it is dead, or told to stop: so there is no answer
            process.stdin.write(f"{path.resolve()}\n".encode())
            process.stdin.flush()
        answer = process.stdout.readline()
        return Outcome(*json.loads(answer)) if answer else self._died(path)

    def _start(self) -> subprocess.Popen[bytes]:
        command, pipe = [sys.executable, "-m", MODULE, *map(str, self._cores)], subprocess.PIPE
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `_bury`)
        # a session of its own: Ctrl-C reaches this process only, which then says what is to happen
        self._process = subprocess.Popen(
            command, env=self._environment, stdin=pipe, stdout=pipe, stderr=self._words, start_new_session=True
        )
        return self._process

    def _died(self, path: Path) -> Outcome:
        code, words = self._bury()
        if self._stopped:
            return Outcome("stopped")
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        hint = ", perhaps because memory ran out" if code == -9 else ""
        return fail(path, f"its process {how}{hint}", words)

    def _bury(self) -> tuple[int, str]:
        """Waits for the process; returns its exit code and its last words."""
        assert self._process is not None and self._words is not None
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # what was written last is lost with its reader
                pipe.close()  # pyright: ignore[reportOptionalMemberAccess]
        self._words.seek(max(self._words.seek(0, os.SEEK_END) - LAST_WORDS, 0))
        words = self._words.read().decode(errors="replace")
        self._words.close()
        self._process = self._words = None
        return code, words

    def stop(self) -> None:
        with self._starting:
            self._stopped = True
            if self._process is not None and self._process.stdin is not None:
                with contextlib.suppress(OSError):  # it is dead already
                    self._process.stdin.close()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        self.stop()
        if self._process is not None:
            self._bury()


def workers(n: int) -> list[Worker]:
    """n workers. Each has its share of the cores and, where there are GPUs, one of them, shared where n is larger."""
    cores, gpus = _cores(), _gpus()
    path = os.pathsep.join(filter(None, [PACKAGE_ROOT, os.environ.get("PYTHONPATH")]))
    made = []
    for i in range(n):
        environment = os.environ | {"PYTHONPATH": path}
        if gpus:
            sharing = len(range(i % len(gpus), n, len(gpus)))
            environment["CUDA_VISIBLE_DEVICES"] = gpus[i % len(gpus)]
            environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{GPU_MEMORY / sharing:.2f}"
        made.append(Worker(cores[i % len(cores) :: n], environment))
    return made


def _cores() -> list[int]:
    """The cores this process may use."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(os.cpu_count() or 1))


def _gpus() -> list[str]:
    """The NVIDIA GPUs this process may use, as CUDA_VISIBLE_DEVICES names them; asked without loading JAX, which would
    take their memory."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.split() if found.returncode == 0 else []
