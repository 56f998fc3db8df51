"""Why a run's heads do what they do: circuits in the weights, logits and scores taken apart on a text, what goes
through them from one prompt to another, and which are similar.

    explained.circuits(run).composition
    explained.attribution(run, "def f(x):")               who wrote the logit of the likeliest next token
    explained.why(run, "def f(x):", (1, 2), query=5)      why head 1.2 attends from token 5 to where it does
    explained.patching(run, [Pair("(a", "[a", ")", "]")])  through which heads the difference between prompts goes
    explained.similarity(run).heads

Tables of a saved run are kept in its heads/ folder; those about a text are replaced by those about the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from andrea_jax import circuits as measures
from andrea_jax import similarity as likeness
from andrea_jax.data import heldout_windows
from andrea_jax.errors import UserError
from andrea_jax.heads import Progress
from andrea_jax.interventions import Head, LogitDifference, patch, path_patch, untouched
from andrea_jax.kept import keep
from andrea_jax.loaded import LoadedRun
from andrea_jax.plots import Figure, circuit_figures, patching_figures
from andrea_jax.plots.words import head_name
from andrea_jax.similarity import Similarity
from andrea_jax.training import restore, steps


@dataclass(frozen=True)
class Circuits:
    """The tables of `circuits.copying` and `circuits.composition`."""

    copying: pd.DataFrame
    composition: pd.DataFrame

    def figure(self) -> Figure:
        return circuit_figures.circuits(self.copying, self.composition)


@dataclass(frozen=True)
class Explained:
    """What wrote the logit of a token after `position` of a text, and what each layer would have said.

    pieces: the text's tokens, BOS first · token, against: pieces · logit: of token, or of token minus against ·
    contributions: `circuits.Attribution.table` · lens: `circuits.lens_table`, with a column top_piece.
    """

    pieces: list[str]
    position: int
    token: str
    against: str | None
    logit: float
    contributions: pd.DataFrame
    lens: pd.DataFrame

    def figure(self) -> Figure:
        asked = {"token": self.token, "against": self.against, "logit": self.logit}
        text = "".join(self.pieces[1 : self.position + 1])
        return circuit_figures.attribution(self.contributions, self.lens, text=text, **asked)


@dataclass(frozen=True)
class Attended:
    """`why` one head attends from one token to another, and the text's tokens, BOS first."""

    pieces: list[str]
    why: measures.Why

    def piece(self, position: int) -> str:
        """ "“f” (3)": the token, and where it is."""
        return f"“{self.pieces[position]}” ({position})"

    def names(self) -> tuple[str, str, str]:
        """Head, query and key."""
        asked = self.why
        return head_name(asked.layer, asked.head), self.piece(asked.query), self.piece(asked.key)

    def figure(self) -> Figure:
        asked = self.why
        return circuit_figures.why(
            asked.pairs, *self.names(), asked.attention, score=asked.score, mean=asked.mean_score
        )


class Pair(NamedTuple):
    """Two prompts of as many tokens, and the token that should follow each: `answer` after clean, `wrong` after
    corrupted."""

    clean: str
    corrupted: str
    answer: str
    wrong: str


@dataclass(frozen=True)
class Patching:
    """table: that of `interventions.patch` or `path_patch`, its metric the logit of the answer less that of the wrong
    token after the prompts' last · by: "head", "position", "head_position", or "path" · clean, corrupted: the metric of
    the unpatched runs, mean over pairs · pieces: tokens of the first clean prompt, BOS first · n: pairs."""

    table: pd.DataFrame
    by: str
    clean: float
    corrupted: float
    pieces: list[str]
    n: int

    def figure(self) -> Figure:
        return patching_figures.patching(self.table, self.by, self.pieces, (self.clean, self.corrupted))


def circuits(loaded: LoadedRun) -> Circuits:
    """Copying and composition of all heads; composition beside that at step 0, where the run keeps that checkpoint.

    Kept as the tables "copying" and "composition". From the weights alone: no data are needed.
    """
    config, run = loaded.experiment.model, loaded.run
    initial = restore(run, 0)[0] if loaded.saved and loaded.step and 0 in steps(run) else None
    found = Circuits(measures.copying(config, loaded.params), measures.composition(config, loaded.params, initial))
    if loaded.saved:
        keep(run, "copying", loaded.step, found.copying)
        keep(run, "composition", loaded.step, found.composition)
    return found


def attribution(
    loaded: LoadedRun, text: str, position: int | None = None, token: str | None = None, against: str | None = None
) -> Explained:
    """The logit of a token for what follows `position` of the text (BOS is 0; None: the last), as a sum; and the lens.

    token: None for the one that follows there, or, at the end, for the likeliest. against: minus another token's logit.
    Kept as the tables "attribution" and "lens". UserError for a position or a token that is none.
    """
    config, params = loaded.experiment.model, loaded.params
    tokens, backend = loaded.tokens(text)[0], _backend(loaded)
    position = len(tokens) - 1 if position is None else position
    log_probs = measures.lens(config, params, tokens, [position], backend)[:, 0]
    after = tokens[position + 1] if position + 1 < len(tokens) else log_probs[-1].argmax()
    asked = int(after) if token is None else _one_token(loaded, token)
    other = None if against is None else _one_token(loaded, against)
    found = measures.attribution(config, params, tokens, position, asked, other, backend)
    lens = measures.lens_table(log_probs, asked)
    lens["top_piece"] = loaded.tokenizer.pieces(lens["top"].tolist())
    if loaded.saved:
        keep(loaded.run, "attribution", loaded.step, found.table)
        keep(loaded.run, "lens", loaded.step, lens)
    pieces = loaded.tokenizer.pieces(tokens.tolist())
    names = [None if i is None else loaded.tokenizer.pieces([i])[0] for i in (asked, other)]
    return Explained(pieces, position, str(names[0]), names[1], found.logit, found.table, lens)


def why(
    loaded: LoadedRun, text: str, head: tuple[int, int], query: int | None = None, key: int | None = None
) -> Attended:
    """Why head (layer, head) attends from token `query` of the text to token `key`: see `circuits.why`.

    query: None for the last; BOS is 0. key: None for the one it attends to most. Kept as the table "why".
    """
    config, tokens = loaded.experiment.model, loaded.tokens(text)[0]
    query, backend = len(tokens) - 1 if query is None else query, _backend(loaded)
    if key is None:
        row = measures.why(config, loaded.params, tokens, *head, query, 0, backend).keys["attention"]
        key = int(row.to_numpy().argmax())
    found = measures.why(config, loaded.params, tokens, *head, query, key, backend)
    if loaded.saved:
        keep(loaded.run, "why", loaded.step, found.pairs)
    return Attended(loaded.tokenizer.pieces(tokens.tolist()), found)


def patching(
    loaded: LoadedRun,
    pairs: Sequence[Pair],
    *,
    by: Literal["head", "position", "head_position"] = "head",
    receivers: Sequence[Head] | Literal["logits"] | None = None,
    inputs: Sequence[Literal["q", "k", "v"]] = ("q", "k", "v"),
    progress: Progress | None = None,
) -> Patching:
    """What of the difference between the prompts goes through which heads, or positions.

    Clean z into the corrupted run (`interventions.patch`); with receivers, each head's corrupted z into the clean run
    along the paths to their inputs alone (`interventions.path_patch`). Kept as the table "patching". UserError for
    prompts of different lengths, and for answers that are no single token.
    """
    config, params = loaded.experiment.model, loaded.params
    clean, corrupted = np.split(_prompts(loaded, [*(p.clean for p in pairs), *(p.corrupted for p in pairs)]), 2)
    answer, wrong = (
        np.array([_one_token(loaded, getattr(pair, name)) for pair in pairs]) for name in ("answer", "wrong")
    )
    metric = LogitDifference(answer, wrong, np.full(len(pairs), clean.shape[1] - 1))
    asked = config, params, clean, corrupted, metric
    settings: dict = {"backend": _backend(loaded), "progress": progress}
    if receivers is None:
        table = patch(*asked, by=by, **settings)
    else:
        table = path_patch(*asked, receivers, inputs=inputs, **settings)
    compute = config, "float32", settings["backend"]
    means = {
        name: float(untouched(compute, params, tokens, metric).mean())
        for name, tokens in (("clean", clean), ("corrupted", corrupted))
    }
    if loaded.saved:
        keep(loaded.run, "patching", loaded.step, table)
    pieces = loaded.tokenizer.pieces(clean[0].tolist())
    return Patching(table, "path" if receivers is not None else by, **means, pieces=pieces, n=len(pairs))


def _prompts(loaded: LoadedRun, texts: Sequence[str]) -> np.ndarray:
    """int32 [prompt, seq]."""
    tokens = [loaded.tokens(text)[0] for text in texts]
    for text, found in zip(texts, tokens, strict=True):
        if len(found) != len(tokens[0]):
            lengths = f"{len(tokens[0])} and {len(found)} tokens with BOS"
            raise UserError(f'prompts "{texts[0]}" and "{text}": must have as many tokens, not {lengths}')
    return np.stack(tokens)


def similarity(loaded: LoadedRun, progress: Progress | None = None) -> Similarity:
    """Which heads are alike, on the held-out text that the head profile uses: probe.n_sequences windows.

    Kept as the tables "similarity" (a row a head) and "similar_pairs".
    """
    e = loaded.experiment
    tokens = heldout_windows(loaded.dataset, e.data.seq_len - 1, e.probe.n_sequences, 0)
    settings = {"dtype": e.compute.dtype, "backend": e.compute.backend, "progress": progress}
    found = likeness.summarise(likeness.measure(e.model, loaded.params, tokens, **settings))
    if loaded.saved:
        keep(loaded.run, "similarity", loaded.step, found.heads)
        keep(loaded.run, "similar_pairs", loaded.step, found.pairs)
    return found


def _backend(loaded: LoadedRun) -> str:
    """Of a pass in float32: the run's own, where it was chosen for float32."""
    compute = loaded.experiment.compute
    return compute.backend if compute.dtype == "float32" else "auto"


def _one_token(loaded: LoadedRun, text: str) -> int:
    ids = loaded.tokenizer.encode(text)
    if len(ids) != 1:
        cut = " · ".join(loaded.tokenizer.pieces(ids))
        raise UserError(f'token "{text}": must be one token of this run\'s tokenizer, and it is {len(ids)}: {cut}')
    return ids[0]
