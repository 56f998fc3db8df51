"""From arrays to a view: everything is checked here, packed, and handed to the page."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from andrea_jax.errors import UserError
from andrea_jax.viewer import pack
from andrea_jax.viewer.badges import Badge, badges
from andrea_jax.viewer.pack import ArrayLike
from andrea_jax.viewer.page import Payload, View

MEASURES = ("value_norms", "norms", "logits")


@dataclass(frozen=True)
class Side:
    """What the heads of one model did on the text; a view shows one side, or two and their difference.

    patterns [layer, head, query, key]; value_norms: ‖v_k·W_O^h‖ of each key, norms: ‖z_h·W_O^h‖ of each token, logits:
    what each head adds to the logit of each token's successor, all [layer, head, token] or None where unknown.
    """

    name: str
    patterns: ArrayLike
    value_norms: ArrayLike | None = None
    norms: ArrayLike | None = None
    logits: ArrayLike | None = None


def view(
    tokens: Sequence[str | bytes],
    patterns: ArrayLike,
    *,
    value_norms: ArrayLike | None = None,
    norms: ArrayLike | None = None,
    logits: ArrayLike | None = None,
    scores: pd.DataFrame | None = None,
    against: ArrayLike | Side | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    successors: Sequence[str | bytes] | None = None,
    title: str = "Attention patterns",
) -> View:
    """An attention viewer for one text, from numpy, jax or torch arrays.

    patterns [layer, head, query, key]: rows sum to 1 and see no later token. value_norms, norms, logits [layer, head,
    token]: see `Side`. against: the patterns of another model on the same tokens, or a `Side`. The rest: see
    `view_sides`. Raises UserError where sizes disagree or a row is not attention.
    """
    sides = [Side("A", patterns, value_norms, norms, logits)]
    if against is not None:
        sides.append(against if isinstance(against, Side) else Side("B", against))
    return view_sides(tokens, sides, scores=scores, layers=layers, heads=heads, successors=successors, title=title)


def view_sides(
    tokens: Sequence[str | bytes],
    sides: Sequence[Side],
    *,
    scores: pd.DataFrame | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    successors: Sequence[str | bytes] | None = None,
    title: str,
) -> View:
    """An attention viewer for one side, or for two and their difference.

    tokens: one a position; bytes that are no UTF-8 are shown as \\xNN. scores: the table of a head profile. layers,
    heads: the numbers that the patterns' first axes have in the model (None: from 0). successors: the token whose
    logit `logits` is about, for each position. Raises UserError as `view` does.
    """
    if not tokens:
        raise UserError("tokens: there must be at least one")
    if successors is not None and len(successors) != len(tokens):
        raise UserError(f"successors: there must be one a token, {len(tokens)}, not {len(successors)}")
    arrays = [_arrays(side, len(tokens)) for side in sides]
    shapes = [found["patterns"].shape for found in arrays]
    if len(set(shapes)) > 1:
        raise UserError(f"against: must have the shape of the patterns, {shapes[0]}, not {shapes[1]}")
    numbers = _numbers("layers", layers, shapes[0][0]), _numbers("heads", heads, shapes[0][1])
    known = badges(scores) if scores is not None else {}
    payload: Payload = {
        "title": title,
        "tokens": [pack.shown(token) for token in tokens],
        "successors": None if successors is None else [pack.shown(token) for token in successors],
        "layers": numbers[0],
        "heads": numbers[1],
        "badges": [[_badge(known.get((layer, head))) for head in numbers[1]] for layer in numbers[0]],
        "start": _start(arrays, numbers, known),
        "sides": [_packed(side.name, found) for side, found in zip(sides, arrays, strict=True)],
    }
    return View(title, payload)


def _arrays(side: Side, n_tokens: int) -> dict[str, np.ndarray]:
    """The side's arrays, float32 and checked."""
    patterns = pack.as_array(side.patterns)
    pack.check_patterns(f"patterns of {side.name}", patterns, n_tokens)
    found = {"patterns": patterns}
    for name in MEASURES:
        values = getattr(side, name)
        if values is not None:
            found[name] = pack.as_array(values)
            pack.check_shape(f"{name} of {side.name}", found[name], patterns.shape[:3])
    return found


def _packed(name: str, arrays: dict[str, np.ndarray]) -> Payload:
    packed: Payload = {"name": name}
    packed["patterns"] = [[pack.pack_pattern(pattern) for pattern in layer] for layer in arrays["patterns"]]
    return packed | {key: pack.pack_numbers(arrays[key]) if key in arrays else None for key in MEASURES}


def _numbers(name: str, given: Sequence[int] | None, n: int) -> list[int]:
    numbers = list(range(n)) if given is None else [int(number) for number in given]
    if len(numbers) != n or len(set(numbers)) != n:
        raise UserError(f"{name}: must be {n} different numbers, one for each along that axis, not {numbers}")
    return numbers


def _badge(badge: Badge | None) -> Payload | None:
    if badge is None:
        return None
    return {**vars(badge), "score": round(badge.score, 3), "baseline": round(badge.baseline, 3)}


def _start(
    sides: list[dict[str, np.ndarray]], numbers: tuple[list[int], list[int]], known: dict[tuple[int, int], Badge]
) -> Payload:
    """What is selected at first: of two sides the row that differs most; of one, the head with the best badge, but
    for those that look at the first token or at themselves, which are dull to look at."""
    n_tokens = sides[0]["patterns"].shape[2]
    if len(sides) == 2:
        changed = np.abs(sides[1]["patterns"] - sides[0]["patterns"]).sum(axis=-1)
        layer, head = np.unravel_index(changed.mean(axis=-1).argmax(), changed.shape[:2])
        token = int(changed[layer, head].argmax())
        return {"layer": numbers[0][layer], "head": numbers[1][head], "token": token}
    places = [(layer, head) for layer in numbers[0] for head in numbers[1]]
    lively = {place: badge for place, badge in known.items() if badge.short not in ("first", "self")}
    gains = [lively[place].score - lively[place].baseline if place in lively else 0.0 for place in places]
    layer, head = places[int(np.argmax(gains))]
    return {"layer": layer, "head": head, "token": 2 * n_tokens // 3}
