"""The page inside other people's pages: a notebook's frame, and what VS Code and Colab allow in theirs.

Their own programs are not here. What is tested is a host with the content security policy of VS Code's notebook output
(default-src 'none', scripts and styles inline, frames from https and data), and one in a sandbox that grants scripts
and nothing else, which is stricter than Colab's output frame.
"""

import html
from pathlib import Path

import pytest
from view_data import TOKENS, one_key

from andrea_jax import viewer

pytestmark = pytest.mark.slow
VS_CODE = ("default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
           "img-src https: data:; font-src https: data:; connect-src https:; child-src https: data:")  # fmt: skip
HOST = """<!doctype html><title>host</title><meta http-equiv="Content-Security-Policy" content="{policy}">
<body style="margin: 0">{frame}
<script>
window.told = null;
addEventListener("message", (event) => {{ window.told = event.data.andrea; }});
document.querySelector("iframe").addEventListener("load", () => {{ document.documentElement.dataset.ready = "yes"; }});
</script>"""


@pytest.fixture
def host(tmp_path: Path):
    """view, policy, sandbox -> address of a page that shows it as a notebook does."""

    def make(view: viewer.View, policy: str = "", sandbox: str | None = None) -> str:
        frame = view._repr_html_()
        if sandbox is not None:
            frame = frame.replace("<iframe ", f'<iframe sandbox="{sandbox}" ')
        page = tmp_path / "host.html"
        page.write_text(HOST.format(policy=html.escape(policy), frame=frame), encoding="utf-8")
        return page.as_uri()

    return make


@pytest.fixture
def view() -> viewer.View:
    return viewer.view(TOKENS, one_key(2, 3, len(TOKENS)), layers=[4, 6], title="framed")


INSIDE = "document.querySelector('iframe').contentDocument"


@pytest.mark.parametrize(("policy", "sandbox"), [(VS_CODE, None), ("", "allow-scripts")], ids=["vs-code", "sandbox"])
def test_the_page_draws_and_takes_keys_in_a_strict_host_and_asks_for_nothing(browser, host, view, policy, sandbox):
    browser.open(host(view.at(4, 1, 7), policy, sandbox))
    browser.point_at("iframe", click=True, x=0.3, y=0.97)
    browser.press("}", "ArrowRight")
    browser.wait("window.told?.layer === 6 && window.told.head === 1 && window.told.token === 8")
    assert browser.errors == []
    assert [address for address in browser.requests if not address.startswith(("file:", "about:"))] == []


def test_skipping_the_heads_in_a_frame_leads_to_the_text_and_does_not_load_the_notebook_into_it(browser, host, view):
    browser.open(host(view.at(4, 1, 7)))
    browser.wait(f"{INSIDE}.documentElement.dataset.ready === 'yes'")
    browser.run(f"{INSIDE}.querySelector('.skip').click()")
    browser.settle()
    assert browser.run(f"[{INSIDE}.activeElement.id, {INSIDE}.location.href]") == ["text", "about:srcdoc"]


def test_a_selection_copied_in_a_frame_opens_again_from_python(browser, host):
    both = viewer.view(TOKENS, one_key(2, 3, len(TOKENS)), against=one_key(2, 3, len(TOKENS)), title="two")
    browser.open(host(both.at(1, 2, 3, show="b")))
    frame = f"{INSIDE}.documentElement.dataset"
    browser.wait(f"{frame}.ready === 'yes'")
    assert browser.run(f"[{frame}.layer, {frame}.head, {frame}.token, {frame}.show]") == ["1", "2", "3", "b"]
    assert browser.run(f"{INSIDE}.getElementById('link').textContent") == "Copy selection"
    copied = f"({INSIDE}.defaultView.navigator.clipboard.writeText = async (text) => {{ window.copied = text; }})"
    browser.run(f"{copied}, null")
    browser.run(f"{INSIDE}.getElementById('link').click()")
    browser.wait("window.copied === 'at(layer=1, head=2, token=3, show=\"b\")'")


def test_where_copying_is_forbidden_the_selection_can_be_read(browser, host, view):
    browser.open(host(view.at(6, 0, 2)))
    refuse = "async () => { throw new DOMException('no', 'NotAllowedError'); }"
    browser.wait(f"{INSIDE}.documentElement.dataset.ready === 'yes'")
    browser.run(f"({INSIDE}.defaultView.navigator.clipboard.writeText = {refuse}), null")
    browser.run(f"{INSIDE}.getElementById('link').click()")
    browser.wait(f"{INSIDE}.getElementById('link').textContent === 'at(layer=6, head=0, token=2)'")
