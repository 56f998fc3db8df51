"""A whole comparison of the projections: what was compared, on what, what was found, as tables, JSON and files."""

import dataclasses
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pandas as pd
from rich.table import Table

from andrea_jax import comparison, config_files, model
from andrea_jax.comparison import FORMS, Progress, form_name
from andrea_jax.config import BOS, Experiment
from andrea_jax.data import heldout_windows
from andrea_jax.loaded import load_run
from andrea_jax.model import Params
from andrea_jax.plots import equality_table, projection_timing, timing_table
from andrea_jax.runs import circumstances, now, write_atomically
from andrea_jax.training import device

WINDOWS = 8  # on which equality is checked
# Floating-point operations at most of a check and of a timed forward pass, so that two cores are done in a minute
EQUALITY_FLOPS, TIMING_FLOPS = {"cpu": 5e10, "gpu": 5e13}, {"cpu": 2.5e9, "gpu": math.inf}


@dataclass(frozen=True)
class Comparison:
    """equality, timing: see `comparison`. about: what was compared, when and on what."""

    equality: pd.DataFrame
    timing: pd.DataFrame
    about: dict

    @property
    def equal(self) -> bool:
        """Whether every difference is within its tolerance (a nan is not)."""
        return bool((self.equality["max_difference"] <= self.equality["tolerance"]).all())

    def tables(self) -> list[Table]:
        """For the terminal."""
        return [
            equality_table(self.equality, self.about["equality_of"]),
            timing_table(self.timing, self.about["timing_of"]),
        ]

    def as_json(self) -> dict:
        """`about`, `equal`, and both tables as lists of rows; a number that is not finite is null."""
        return {**self.about, "equal": self.equal, "equality": _rows(self.equality), "timing": _rows(self.timing)}

    def save(self, folder: Path) -> None:
        """Writes equality and timing (.csv, .parquet), projections (.png, .svg), comparison.json; each atomically."""
        figure = projection_timing(self.timing, f"{self.about['timing_of']}; {self.about['device']['kind']}")
        for kind in ("png", "svg"):
            write_atomically(folder / f"projections.{kind}", figure.encode(kind))
        for name in ("equality", "timing"):
            frame = getattr(self, name)
            write_atomically(folder / f"{name}.parquet", frame.to_parquet(index=False))
            write_atomically(folder / f"{name}.csv", frame.to_csv(index=False))
        write_atomically(folder / "comparison.json", json.dumps(self.as_json(), indent=2) + "\n")


def compare_projections(source: Experiment | Path, repeats: int = 20, progress: Progress | None = None) -> Comparison:
    """Equality and cost of every projection form.

    source: an experiment (fresh weights, random tokens) or the path of a run (its trained weights, held-out windows).
    As many tokens as a step of its training has, fewer on a CPU. repeats, progress: of `comparison.timing`.
    """
    e, params, tokens, weights = _from_experiment(source) if isinstance(source, Experiment) else _from_run(source)
    others = [form for form in FORMS if form != (e.model.projection, e.model.form)]
    equality = comparison.equality(e.model, params, tokens, others)
    a_token = comparison.flops_per_token(e.model)
    batch, seq = fitting(e.train.batch_size, e.data.seq_len, a_token, TIMING_FLOPS)
    timing = comparison.timing(e.model, e.compute, batch=batch, seq=seq, repeats=repeats, progress=progress)
    shape = f"{tokens.shape[0]} × {tokens.shape[1] - 1} tokens"
    asked = e.train.batch_size * e.data.seq_len
    of_step = "a training step's" if batch * seq == asked else f"a training step has {asked:,}"
    about = {
        "weights": weights,
        "equality_of": f"{weights}; {shape}, float32; from {form_name(e.model.projection, e.model.form)}",
        "timing_of": f"one layer, B·T = {batch} × {seq} = {batch * seq:,} tokens ({of_step}), {e.compute.dtype}",
        "timed": {"batch": batch, "seq": seq, "dtype": e.compute.dtype, "repeats": repeats},
        **_machine(),
        "run_id": config_files.run_id(e),
        "config": dataclasses.asdict(e),
    }
    return Comparison(equality, timing, about)


def fitting(batch: int, seq: int, flops_a_token: int, most: dict[str, float]) -> tuple[int, int]:
    """(batch, seq) of at most `most[backend]` floating-point operations, and at least 16 tokens: fewer windows first,
    then a shorter one."""
    tokens = int(min(batch * seq, max(most["cpu" if jax.default_backend() == "cpu" else "gpu"] / flops_a_token, 16)))
    seq = min(seq, tokens)
    return min(batch, tokens // seq), seq


type _Source = tuple[Experiment, Params, np.ndarray, str]  # tokens int32 [window, seq + 1]; what the weights are


def _from_experiment(e: Experiment) -> _Source:
    """Fresh weights; random tokens of the vocabulary after BOS."""
    params = model.initialise(e.model, e.train.seed)
    n, seq = _equality_windows(e, params)
    tokens = np.random.default_rng(e.train.seed).integers(BOS + 1, e.model.vocab_size, (n, seq + 1), np.int32)
    tokens[:, 0] = BOS
    return e, params, tokens, f"fresh weights (seed {e.train.seed}), random tokens"


def _from_run(path: Path) -> _Source:
    """Trained weights; held-out windows of the run's data."""
    loaded = load_run(path)
    n, seq = _equality_windows(loaded.experiment, loaded.params)
    tokens = heldout_windows(loaded.dataset, seq, n, seed=1)
    return loaded.experiment, loaded.params, tokens, f"{loaded.run.name} after step {loaded.step}, held-out text"


def _equality_windows(e: Experiment, params: Params) -> tuple[int, int]:
    a_token = 6 * sum(weight.size for weight in jax.tree.leaves(params))  # forward and backward
    return fitting(WINDOWS, e.data.seq_len, a_token, EQUALITY_FLOPS)


def _rows(table: pd.DataFrame) -> list[dict]:
    rows = table.to_dict("records")
    return [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in rows]


def _machine() -> dict:
    """When and on what."""
    flags = os.environ.get("XLA_FLAGS", "")
    merger = re.search(r"--xla_gpu_dot_merger_threshold_mb=(\d+)", flags)
    return {
        "date": now(),
        "device": device(),
        **circumstances(),
        "xla_flags": flags,
        # dots of one input that XLA joins on a GPU, by size; None: its default. On a CPU it joins none
        "dot_merger_threshold_mb": int(merger[1]) if merger else None,
    }
