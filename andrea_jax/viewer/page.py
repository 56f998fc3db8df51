"""The viewer's page: one self-contained HTML document that cannot reach the network."""

import html
import importlib.util
import json
import re
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from andrea_jax.errors import UserError
from andrea_jax.runs import write_atomically

if TYPE_CHECKING:
    from andrea_jax.viewer.widget import Widget

SCRIPTS = ("data", "colours", "text", "grid", "matrix", "panel", "main")  # in this order, as one module
FRAME_HEIGHT = 780  # pixels of the page inside a notebook

type Payload = dict  # what `assemble.view` makes and static/data.js reads


@dataclass(frozen=True)
class View:
    """An attention viewer for one text. Notebooks show it; `save` writes it as a page that opens from disk."""

    title: str
    payload: Payload

    @cached_property
    def html(self) -> str:
        """The whole document: styles, scripts and data; its content security policy forbids every request."""
        parts = {
            "title": html.escape(self.title),
            "style": static("viewer.css") + static("parts.css"),
            "script": "\n".join(static(f"{name}.js") for name in SCRIPTS),
            "data": in_script(json.dumps(self.payload, ensure_ascii=False, allow_nan=False)),
        }
        pieces = re.split(r"\{\{(\w+)\}\}", static("viewer.html"))  # text, name, text, name, ... text
        return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))

    def save(self, path: Path | str) -> Path:
        """Writes the page atomically; returns its path."""
        return write_atomically(Path(path), self.html)

    def widget(self) -> "Widget":
        """The viewer as a widget whose `layer`, `head` and `token` are those selected. UserError without anywidget."""
        if importlib.util.find_spec("anywidget") is None:
            raise UserError('a viewer whose selection comes back to Python needs anywidget: pip install "anywidget"')
        from andrea_jax.viewer.widget import Widget

        return Widget(title=self.title, html=self.html, **self.payload["start"])

    def _repr_html_(self) -> str:
        """The page in a frame of its own, apart from the notebook's keys and styles; it needs no kernel."""
        style = f"width: 100%; height: {FRAME_HEIGHT}px; border: 0"
        return f'<iframe title="{html.escape(self.title)}" style="{style}" srcdoc="{html.escape(self.html)}"></iframe>'

    def __repr__(self) -> str:
        layers, heads, tokens = (len(self.payload[name]) for name in ("layers", "heads", "tokens"))
        return f"View({self.title}: {layers} layers × {heads} heads, {tokens} tokens, {len(self.html) / 1e6:.1f} MB)"


def in_script(text: str) -> str:
    """JSON as it may stand in a script element: no "<", so neither "</script>" nor "<!--" ends or hides anything."""
    return text.replace("<", "\\u003c")


def static(name: str) -> str:
    """A file of the viewer's static folder."""
    return (resources.files("andrea_jax.viewer") / "static" / name).read_text(encoding="utf-8")
