"""The viewer as a notebook widget: the same page in a frame, and the selection in Python.

    shown = run.view("def f(x): return x").widget()
    shown                                     # click a head, then
    shown.layer, shown.head, shown.token      # what is selected; setting one moves the viewer

Needs `anywidget`. The frame keeps the viewer's keys from the notebook, where an arrow changes cells and "d d" deletes
one.
"""

import anywidget  # pyright: ignore[reportMissingImports]
import traitlets

from andrea_jax.viewer.page import FRAME_HEIGHT, frame, static


class Widget(anywidget.AnyWidget):
    """`layer`, `head`: the numbers they have in the model; `token`: its position. All three follow the page."""

    _esm = static("widget.js")
    title = traitlets.Unicode().tag(sync=True)
    html = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(FRAME_HEIGHT).tag(sync=True)
    layer = traitlets.Int().tag(sync=True)
    head = traitlets.Int().tag(sync=True)
    token = traitlets.Int().tag(sync=True)

    def _repr_mimebundle_(self, **kwargs: dict) -> tuple[dict, dict] | None:
        """The widget, and beside it the page alone, for what shows notebooks without widgets, as an HTML export does.

        JupyterLab takes the widget even where its kernel is gone and no widget state was saved: "model not found".
        """
        shown = super()._repr_mimebundle_(**kwargs)
        return None if shown is None else (shown[0] | {"text/html": frame(self.title, self.html)}, shown[1])
