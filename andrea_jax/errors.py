"""What a user can get wrong, said in one sentence."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input. The message names the file, key or argument, the value, and what was expected.

    The command line prints it after "error: " and exits with code 2, without a traceback.
    """


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that `name` most resembles, or None where none is close."""
    close = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return close[0] if close else None


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """' (did you mean "x"?)', or nothing where no choice is close."""
    close = nearest(name, choices)
    return f' (did you mean "{close}"?)' if close else ""
