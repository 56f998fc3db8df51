"""From a loaded run to its report: the texts to show heads on, the equality check, the page."""

from pathlib import Path

import numpy as np
import pandas as pd

from andrea_jax import comparison, data
from andrea_jax.data import heldout_windows
from andrea_jax.heads import Profile, Progress, Targets, targets
from andrea_jax.heads import brackets as bracket_probe
from andrea_jax.kept import kept
from andrea_jax.loaded import LoadedRun, profiled_steps
from andrea_jax.plots import Asked, Pattern, intervention_figures, write_report
from andrea_jax.trace import trace

SNIPPET = 40  # tokens of the text on which patterns are shown
BLOCK = 14  # tokens of the snippet's repeated part, for induction
SECTIONS = {"Without each head": "ablation", "Importance": "importance", "Pruning": "pruning"}
TABLES = (*SECTIONS.values(), "correlations")
SHOWN = ("previous_token", "induction", "bracket", "duplicate_token", "current_token", "first_token")


def report(loaded: LoadedRun, progress: Progress | None = None) -> Path:
    """Writes the run's report.html, with its head profile (computed where it was not yet) and the equality check.

    Heads through training are shown where three or more checkpoints have a profile: `loaded.profiles()` makes them.
    """
    profile = loaded.profile(progress)
    return write_report(
        loaded.run,
        profile,
        step=loaded.step,
        patterns=patterns(loaded, profile),
        checks=equality(loaded),
        profiles={step: Profile.load(loaded.run.heads, step) for step in profiled_steps(loaded.run)},
        asked=asked(loaded),
    )


def asked(loaded: LoadedRun) -> list[Asked]:
    """What was asked of this checkpoint's heads before, from the tables kept in the run; nothing is computed."""
    figures = intervention_figures.drawn({name: kept(loaded.run, name, loaded.step) for name in TABLES})
    command = f"andrea heads {loaded.run.path} {{}} --step {loaded.step}"
    return [
        Asked(section, name, command.format(name), intervention_figures.READING[name], figures[name])
        for section, name in SECTIONS.items()
    ]


def equality(loaded: LoadedRun) -> pd.DataFrame:
    """Fused against per-head with the run's own weights, on eight held-out windows."""
    e = loaded.experiment
    windows = heldout_windows(loaded.dataset, e.data.seq_len, 8, seed=1)
    return comparison.equality(e.model, loaded.params, windows)


def patterns(loaded: LoadedRun, profile: Profile) -> list[Pattern]:
    """The best head of each probe that beats its baseline, on a held-out snippet of the run's own data.

    Induction is shown on the first tokens of the snippet, repeated; brackets on a window that holds some.
    """
    shown = []
    for probe in SHOWN:
        best = profile.best.loc[profile.best["probe"] == probe].to_dict("records")[0]
        if best["n"] == 0 or not best["low"] > best["baseline"]:
            continue
        found = _snippet(loaded, probe)
        if found is None:
            continue
        tokens, wanted = found
        shown.append(_pattern(loaded, best, tokens, wanted))
    return shown


def _snippet(loaded: LoadedRun, probe: str) -> tuple[np.ndarray, Targets] | None:
    """(tokens int32 [1, seq], the probe's targets on them); None where the data hold no such text."""
    seq = min(SNIPPET, loaded.experiment.data.seq_len)
    if probe == "bracket":
        windows = data.bracket_windows(loaded.dataset, seq, 1, seed=0)
        return (windows.tokens, bracket_probe.matches(windows, probe)) if windows.n else None
    text = heldout_windows(loaded.dataset, seq - 1, 2, seed=3)[:1]
    if probe == "induction":
        block = text[:, 1 : 1 + min(BLOCK, (seq - 1) // 2)]
        tokens = np.concatenate([text[:, :1], block, block], axis=1)
        repeat = targets.fixed_offset(tokens, block.shape[1] - 1)
        return tokens, repeat.where(repeat.query > block.shape[1])
    return text, getattr(targets, probe)(text)


def _pattern(loaded: LoadedRun, best: dict, tokens: np.ndarray, wanted: Targets) -> Pattern:
    e, layer, head = loaded.experiment, int(best["layer"]), int(best["head"])
    traced = trace(e.model, loaded.params, tokens, dtype=e.compute.dtype, backend=e.compute.backend)
    outlined = np.zeros((tokens.shape[1],) * 2, bool)
    outlined[wanted.query, wanted.key] = True
    return Pattern(
        layer=layer,
        head=head,
        probe=str(best["probe"]),
        score=float(best["score"]),
        baseline=float(best["baseline"]),
        tokens=loaded.tokenizer.pieces(tokens[0].tolist()),
        pattern=traced.pattern(layer, head),
        targets=outlined,
    )
