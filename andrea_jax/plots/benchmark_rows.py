"""Reading the rows of a benchmark: plain dicts in the order of measuring; "us" is None where there is no time."""

from collections.abc import Sequence

type Rows = Sequence[dict]

SHAPE = ("batch", "seq", "n_head", "head_dim")


def timed(rows: Rows) -> list[dict]:
    """Those that have a time."""
    return [row for row in rows if row["us"] is not None]


def where(rows: Rows, **values: object) -> list[dict]:
    """Those that have these values."""
    return [row for row in rows if all(row[key] == value for key, value in values.items())]


def by(rows: Rows, *keys: str) -> dict[tuple, list[dict]]:
    """Groups of equal values of `keys`, in order of appearance."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def column(rows: Rows, key: str) -> list:
    return [row[key] for row in rows]


def distinct(rows: Rows, key: str) -> list:
    """The values of a column, each once, in order of appearance."""
    return list(dict.fromkeys(column(rows, key)))


def fastest(rows: Rows) -> dict:
    return min(rows, key=lambda row: row["us"])


def shape_name(row: dict) -> str:
    return " × ".join(str(row[key]) for key in SHAPE)


def span(values: Sequence[float], how: str) -> str:
    """ "0.9 to 1.2", or one number where both ends read the same."""
    low, high = (format(value, how) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def listed(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
