"""Run directories that were never trained: metrics and head profiles by hand."""

from pathlib import Path

import numpy as np
import pandas as pd

from andrea_jax import runs
from andrea_jax.config import Data, Experiment, Model, Optim, Probe, Train
from andrea_jax.heads import Profile
from andrea_jax.runs import Run

BASELINE, STEP = 0.2, 100
BEHAVIOURS = ("previous_token", "induction", "bracket")
# seven heads of known shares of attention beyond the baseline, in the order of BEHAVIOURS
SHARES = np.array([[0.9, 0, 0], [0, 0.8, 0], [0, 0, 0.7], [0.5, 0.5, 0], [0, 0.4, 0.6], [0.1, 0.1, 0.1], [0.6, 0, 0.3]])
COMMIT = "0123456789abcdef"


def profile(shares: np.ndarray) -> Profile:
    """All heads in layer 0; the best head of a behaviour is that with the largest share."""
    rows = []
    for j, probe in enumerate(BEHAVIOURS):
        for head, share in enumerate(shares[:, j]):
            score = BASELINE + share * (1 - BASELINE)
            rows.append({"probe": probe, "layer": 0, "head": head, "score": score, "low": score - 0.02,
                         "high": score + 0.02, "baseline": BASELINE, "control": None, "n": 9, "undefined": False,
                         "reason": "", "offset": None})  # fmt: skip
    table = pd.DataFrame(rows).astype({"control": float, "offset": "Int64"})
    best = table.sort_values("score", ascending=False, kind="stable").drop_duplicates("probe").reset_index(drop=True)
    nothing = pd.DataFrame({"none": []})
    return Profile(table, best, nothing, nothing, nothing)


def made(
    root: Path,
    seed: int = 0,
    n_head: int = 7,
    w_o: str = "free",
    *,
    loss: float = 2.0,
    shares: np.ndarray = SHARES,
    commit: str = COMMIT,
    rate: float = 1e-3,
) -> Run:
    """A finished run at step `STEP`, trained on clean code."""
    model = Model(vocab_size=300, seq_len=64, d_model=56, n_layer=1, n_head=n_head, w_o=w_o)  # pyright: ignore[reportArgumentType]
    experiment = Experiment(model=model, data=Data(seq_len=61), optim=Optim(learning_rate=rate),
                            train=Train(steps=STEP, batch_size=5, seed=seed), probe=Probe(periods=(5, 7)))  # fmt: skip
    run = runs.create(root, experiment, "made")
    session = {"commit": commit, "dirty": False, "versions": {"python": "3.12.1", "jax": "0.12.0"},
               "device": {"platform": "cpu", "kind": "one", "count": 1}}  # fmt: skip
    run.record(**session, sessions=[session], data_hash="ab", n_params=41, tokens_per_s=1e4 + seed, finished=True)
    run.append_metrics({"step": STEP, "loss": loss + 0.1})
    run.append_metrics({"step": STEP, "eval_loss": loss, "eval_loss_per_byte": loss / 2, "eval_in_context": -0.1})
    (run.checkpoints / str(STEP)).mkdir()
    profile(shares).save(run.heads, STEP)
    return run
