"""The viewer's page: one self-contained HTML document that cannot reach the network."""

import html
import importlib.util
import json
import re
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal

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

        start = {name: self.payload["start"][name] for name in ("layer", "head", "token")}
        return Widget(title=self.title, html=self.html, **start)

    def at(
        self,
        layer: int | None = None,
        head: int | None = None,
        token: int | None = None,
        *,
        show: Literal["a", "b", "diff"] | None = None,
        weighted: bool | None = None,
    ) -> "View":
        """The same view, opened at another selection; None: as it was. "Copy selection" in a notebook copies this call.

        layer, head: their numbers in the model · token: its position · show, weighted: the side and the weighting.
        UserError for what the view does not have.
        """
        has = {"layer": self.payload["layers"], "head": self.payload["heads"],
               "token": range(len(self.payload["tokens"])),
               "show": ("a", "b", "diff") if len(self.payload["sides"]) > 1 else ("a",)}  # fmt: skip
        asked = {"layer": layer, "head": head, "token": token, "show": show}
        asked = {name: value for name, value in asked.items() if value is not None}
        for name, value in asked.items():
            if value not in has[name]:
                raise UserError(f"at: {name} = {value!r} is none of this view's")
        shown = {} if weighted is None else {"weighted": "yes" if weighted else "no"}
        return View(self.title, self.payload | {"start": self.payload["start"] | asked | shown})

    def _repr_html_(self) -> str:
        """The page in a frame of its own, apart from the notebook's keys and styles; it needs no kernel."""
        return frame(self.title, self.html)

    def __repr__(self) -> str:
        layers, heads, tokens = (len(self.payload[name]) for name in ("layers", "heads", "tokens"))
        return f"View({self.title}: {layers} layers × {heads} heads, {tokens} tokens, {len(self.html) / 1e6:.1f} MB)"


def frame(title: str, page: str) -> str:
    """An element of another page that holds this one."""
    style = f"width: 100%; height: {FRAME_HEIGHT}px; border: 0"
    return f'<iframe title="{html.escape(title)}" style="{style}" srcdoc="{html.escape(page)}"></iframe>'


def in_script(text: str) -> str:
    """JSON as it may stand in a script element: no "<", so neither "</script>" nor "<!--" ends or hides anything."""
    return text.replace("<", "\\u003c")


def static(name: str) -> str:
    """A file of the viewer's static folder."""
    return (resources.files("andrea_jax.viewer") / "static" / name).read_text(encoding="utf-8")
