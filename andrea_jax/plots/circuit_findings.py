"""What circuits say, in sentences, and the tables cut down to what a figure can show."""

import numpy as np
import pandas as pd

from andrea_jax.plots.words import head_name

READS = {"Q": "query", "K": "key", "V": "value"}
EMBEDDINGS = ("token", "position")  # components that are neither a head nor an MLP
SHOWN = 24  # characters of a text
SUMS = "all"  # the row and the column of sums


def circuits(copying: pd.DataFrame, composition: pd.DataFrame) -> str:
    """The strongest pair, how many pass the threshold, and the heads that copy."""
    copies = copying.loc[copying["beyond"] & (copying["copying"] > 0)]
    said = f"{len(copies)} of {len(copying)} heads copy beyond the null"
    if composition.empty:
        return f"{said}; with one layer no head can read another"
    best = composition.loc[composition["z"].idxmax()]
    share = composition["beyond"].mean()
    if not best["beyond"]:
        return f"No head reads another beyond what random weights do (threshold z = {best['threshold']:.1f}); {said}"
    pair = f"{head_name(best['layer_1'], best['head_1'])} → {head_name(best['layer_2'], best['head_2'])}"
    size = f"{best['kind']}-composition {best['composition']:.2f}, z = {best['z']:.0f}"
    return (
        f"Strongest pair: {pair}, by the later head's {READS[best['kind']]} ({size}; {share:.0%} of "
        f"{len(composition):,} pairs pass z = {best['threshold']:.1f}); {said}"
    )


def largest(contributions: pd.DataFrame, n: int) -> pd.DataFrame:
    """The n largest contributions by size, and what is left as one row: columns component, contribution."""
    table = contributions.loc[:, ["component", "contribution"]]
    order = table["contribution"].abs().sort_values(ascending=False, kind="stable").index
    shown, others = table.loc[order[:n]], table.loc[order[n:], "contribution"]
    rest = pd.DataFrame({"component": [f"{len(others)} others"], "contribution": [others.sum()]})
    return pd.concat([shown, rest], ignore_index=True) if len(others) else shown.reset_index(drop=True)


def attribution(
    contributions: pd.DataFrame, lens: pd.DataFrame, *, text: str, token: str, against: str | None, logit: float
) -> str:
    """Which components wrote most of the logit, and where the token came to be the likeliest."""
    what = f"“{token}”" if against is None else f"“{token}” over “{against}”"
    best = largest(contributions, 3).head(3)
    parts = ", ".join(f"{row['component']} {row['contribution']:+.2f}" for row in best.to_dict("records"))
    rank = int(lens["rank"].iloc[-1])
    ahead = lens["rank"].to_numpy() == 1
    since = len(ahead) - int(np.argmin(ahead[::-1])) if not ahead.all() else 0
    place = "at the end" if since == len(lens) - 1 else f"from before layer {since} on"
    said = f"likeliest {place}" if rank == 1 else f"rank {rank} at the end"
    text = text if len(text) <= SHOWN else f"…{text[-SHOWN:]}"
    return f"After “{text}”, the logit of {what} is {logit:.2f}: {parts}; {said}"


def excess_table(pairs: pd.DataFrame, n: int) -> pd.DataFrame:
    """Excess by query component (rows) and key component, the n with most of it on each side, the others as one, and
    sums over all: row and column SUMS."""
    order = list(dict.fromkeys(pairs["query_component"]))  # that in which they wrote
    whole = pairs.pivot(index="query_component", columns="key_component", values="excess").loc[order, order]
    for axis in (0, 1):
        size = whole.abs().sum(axis=1 - axis).sort_values(ascending=False, kind="stable").index
        named = [name for name in whole.axes[axis] if name in set(size[:n])]
        rest = whole.drop(named, axis=axis)
        whole = whole.reindex(named, axis=axis)
        if len(rest.axes[axis]):
            whole = pd.concat([whole, rest.sum(axis=axis).to_frame("others").pipe(lambda x, a=axis: x if a else x.T)],
                              axis=axis)  # fmt: skip
    whole = pd.concat([whole, whole.sum(axis=1).rename(SUMS)], axis=1)
    return pd.concat([whole, whole.sum(axis=0).to_frame(SUMS).T])


def why(pairs: pd.DataFrame, head: str, query: str, key: str, attention: float) -> str:
    """What was written at the key that does most for it, and what at the query meets it."""
    names = list(dict.fromkeys(pairs["query_component"]))
    excess = pairs["excess"].to_numpy(np.float64).reshape(len(names), len(names))  # [query, key]
    written = excess.sum(axis=0).argmax()
    met = excess[:, written].argmax()
    said = [f"the {name}" if name in EMBEDDINGS else name for name in names]
    return (
        f"Head {head}, at {query}, puts {attention:.2f} of its attention on {key}: what {said[written]} wrote at the "
        f"key does {excess[:, written].sum():+.1f} of {excess.sum():+.1f}, most of it where it meets what {said[met]} "
        f"wrote at the query ({excess[met, written]:+.1f})"
    )
