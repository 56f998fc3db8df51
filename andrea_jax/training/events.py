"""The lines of metrics.jsonl as TensorBoard event files too, in `<run>/tensorboard/`.

Written by tensorboardX, which does without TensorFlow and brings only numpy, packaging and protobuf.

    tensorboard --logdir runs        shows every run below runs/
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec

import numpy as np

from andrea_jax.errors import UserError
from andrea_jax.runs import Json, Run

PACKAGE = "tensorboardX"


@dataclass(frozen=True)
class WithEvents(Run):
    """A run whose metrics are written as events as well. Those of a run that had none are written at its start; after a
    resume the events of steps that are trained again are marked as void."""

    _writers: list = field(default_factory=list)  # one, from the first use on

    def append_metrics(self, record: Mapping[str, Json]) -> None:
        super().append_metrics(record)
        if self._writers:
            self._write(record)

    def truncate_metrics(self, after_step: int) -> None:
        """Training begins with this."""
        super().truncate_metrics(after_step)
        folder = self.path / "tensorboard"
        first_time = not folder.is_dir()
        n = 0 if first_time else len(list(folder.iterdir()))
        self._writers.append(
            import_module(PACKAGE).SummaryWriter(
                str(folder),
                purge_step=None if first_time else after_step + 1,
                filename_suffix=f".{n:04}",  # else two starts within a second would write the same file
            )
        )
        for record in self.metrics() if first_time else ():
            self._write(record)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def _write(self, record: Mapping[str, Json]) -> None:
        step = record["step"]
        for name, value in scalars(record):
            self._writers[-1].add_scalar(name, value, step)


@contextlib.contextmanager
def mirrored(run: Run) -> Iterator[Run]:
    """`run` with events, closed at the end. UserError where tensorboardX is not installed."""
    if find_spec(PACKAGE) is None:
        text = "needs the package tensorboardX, which is not installed: pip install 'andrea-jax[tensorboard]'"
        raise UserError(f"--tensorboard: {text}")
    with contextlib.closing(WithEvents(run.path, run.experiment)) as with_events:
        yield with_events


def scalars(record: Mapping[str, Json]) -> Iterator[tuple[str, float]]:
    """The numbers of a line of metrics.jsonl by their names in TensorBoard: loss -> train/loss, eval_loss -> eval/loss,
    head_grad_norm -> head_grad_norm/<layer>.<head>. Positions and counts are left out."""
    for name, value in record.items():
        if name == "head_grad_norm":
            norms = np.array(value, np.float64)  # [n_layer, n_head]
            yield from ((f"{name}/{layer}.{head}", float(norm)) for (layer, head), norm in np.ndenumerate(norms))
        elif isinstance(value, float):
            yield f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}", value
