"""The notebook widget: one page, and a selection that goes both ways."""

import importlib.util

import pytest
from view_data import uniform

from andrea_jax import viewer
from andrea_jax.errors import UserError


@pytest.fixture
def view() -> viewer.View:
    return viewer.view(list("abcdef"), uniform(2, 3, 6), layers=[4, 5], heads=[7, 8, 9], title="six")


def test_without_anywidget_the_error_says_what_to_install(view, monkeypatch: pytest.MonkeyPatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "anywidget" else real(name))
    with pytest.raises(UserError, match="pip install"):
        view.widget()


def test_the_selection_begins_where_the_page_does_and_follows_the_front_end(view):
    pytest.importorskip("anywidget", reason="anywidget is not installed (it is an extra of notebooks)")
    shown = view.widget()
    assert (shown.layer, shown.head, shown.token) == (4, 7, 4)
    seen = []
    shown.observe(lambda change: seen.append((change["name"], change["new"])), ["layer", "head", "token"])
    shown.set_state({"layer": 5, "head": 9, "token": 2})  # what a message of the front end does
    assert (shown.layer, shown.head, shown.token) == (5, 9, 2)
    assert sorted(seen) == [("head", 9), ("layer", 5), ("token", 2)]
    assert shown.html == view.html


def test_a_widget_without_a_kernel_is_the_page_alone(view):
    pytest.importorskip("anywidget", reason="anywidget is not installed (it is an extra of notebooks)")
    data, _ = view.widget()._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data and data["text/html"] == view._repr_html_()
