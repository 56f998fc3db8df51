"""A browser, and the pages it opens."""

from collections.abc import Iterator

import chromium
import numpy as np
import pytest
from chromium import Browser
from view_data import HOSTILE, TOKENS, one_key, table, uniform

from andrea_jax import viewer

N = len(TOKENS)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    executable = chromium.find()
    if executable is None:
        pytest.skip(f"no Chromium found (looked for {', '.join(chromium.NAMES)})")
    browser = Browser(executable, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """name -> address of a saved page."""
    folder = tmp_path_factory.mktemp("pages")
    seven = np.arange(1, 2 * 3 * N + 1).reshape(2, 3, N)
    parked = np.ones((2, 3, N))
    parked[..., 0] = 0  # what the first token says is nothing
    mixed = 0.5 * one_key(2, 3, N) + 0.5 * np.eye(N)[0][None, None, None]
    mixed[:, :, 0, :] = np.eye(N)[0][None, None]
    moved = one_key(2, 3, N).copy()
    moved[1, 2] = one_key(1, 1, N)[0, 0]
    views = {
        "one": viewer.view(TOKENS, one_key(2, 3, N), norms=seven, logits=-seven, scores=table((4, 6)), layers=[4, 6],
                           successors=[*TOKENS[1:], "!"], title="one"),
        "weighted": viewer.view(TOKENS, mixed, value_norms=parked, title="weighted"),
        "diff": viewer.view(TOKENS, one_key(2, 3, N), against=moved, title="diff"),
        "hostile": viewer.view(HOSTILE, uniform(1, 1, len(HOSTILE)), title="intact"),
    }  # fmt: skip
    return {name: view.save(folder / f"{name}.html").as_uri() for name, view in views.items()}
