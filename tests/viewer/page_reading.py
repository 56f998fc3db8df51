"""What a test reads from a page in the browser."""

import json
import re

from chromium import Browser
from view_data import TOKENS


def texts(browser: Browser, selector: str) -> list[str]:
    found = browser.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")
    assert isinstance(found, list)
    return found


def ground(browser: Browser, token: int) -> str:
    """The colour behind a token of the text: "to" (blue), "from" (orange), "less" (purple), "more" (green), ""."""
    colour = str(browser.run(f"document.getElementById('token-{token}').style.backgroundColor"))
    names = {(0, 114, 178): "to", (230, 120, 0): "from", (140, 70, 165): "less", (45, 145, 70): "more"}
    return names[tuple(int(c) for c in re.findall(r"\d+", colour)[:3])] if colour else ""


def pixel(browser: Browser, query: int, key: int) -> tuple[int, ...]:
    """The colour in the middle of an entry of the large pattern."""
    found = browser.run(f"""(() => {{
        const canvas = document.getElementById("matrix"), side = canvas.height - 2 * devicePixelRatio;
        const at = (i) => Math.floor((i + 0.5) * side / {len(TOKENS)});
        return [...canvas.getContext("2d").getImageData(at({key}), at({query}), 1, 1).data];
    }})()""")
    assert isinstance(found, list)
    return tuple(found)
