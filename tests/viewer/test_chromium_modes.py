"""The page in a real browser: differences, value weighting, the dark scheme, a large page, the widget's frame."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from page_reading import ground, pixel, texts
from view_data import TOKENS, one_key, random, table

from andrea_jax import viewer
from andrea_jax.viewer.page import static

N = len(TOKENS)
pytestmark = pytest.mark.slow


def test_a_difference_shows_what_moved_with_its_sign(browser, pages):
    browser.open(f"{pages['diff']}#layer=1&head=2&token=6")  # A: three back, B: the token itself
    assert browser.state()["show"] == "diff"
    assert [ground(browser, token) for token in (3, 6, 9)] == ["less", "more", "less"]
    assert sorted(texts(browser, "#to li span")) == ["+1.00", "−1.00"]
    red, green, blue = pixel(browser, 6, 3)[:3]
    assert red > green and blue > green  # purple
    assert pixel(browser, 6, 6)[1] > max(pixel(browser, 6, 6)[0], pixel(browser, 6, 6)[2])  # green
    assert texts(browser, "#head-badge") == ["0.91 of its attention moved"]  # in 10 of 11 rows


def test_equal_patterns_are_called_the_same_and_drawn_neutral(browser, pages):
    browser.open(f"{pages['diff']}#layer=0&head=1&token=6")
    assert texts(browser, "#head-badge") == ["A and B are the same, to 8 bits"]
    assert pixel(browser, 6, 5) == (255, 255, 255, 255)


def test_keys_switch_between_the_sides_and_their_difference(browser, pages):
    browser.open(f"{pages['diff']}#layer=1&head=2&token=6")
    for key, show in (("a", "a"), ("b", "b"), ("d", "diff"), ("d", "a")):
        browser.press(key)
        assert browser.state()["show"] == show
        if show != "diff":
            assert texts(browser, "#to li small") == [{"a": "3", "b": "6"}[show]]
    browser.point_at("#sides [data-show=b]", click=True)
    assert browser.state()["show"] == "b"


def test_a_page_of_one_side_has_no_switch_and_no_difference(browser, pages):
    browser.open(pages["one"])
    browser.press("d", "b", "v")
    assert (browser.state()["show"], browser.state()["weighted"]) == ("a", "false")
    assert browser.run("document.getElementById('sides').hidden && document.getElementById('weighting').hidden")


def test_value_weighting_takes_away_what_is_parked_on_a_token_that_says_nothing(browser, pages):
    browser.open(f"{pages['weighted']}#layer=1&head=0&token=6")
    assert sorted(texts(browser, "#to li small")) == ["0", "5"]
    assert texts(browser, "#to li span") == ["0.50", "0.50"]
    browser.press("v")
    assert browser.state()["weighted"] == "true"
    assert texts(browser, "#to li small") == ["5"] and texts(browser, "#to li span") == ["1.00"]


def test_dark_pages_are_dark_and_redrawn_when_the_scheme_changes(browser, pages):
    browser.open(f"{pages['one']}#layer=6&head=1")
    assert pixel(browser, 5, 4) == (255, 255, 255, 255)
    browser.scheme("dark")
    try:
        browser.settle()
        assert max(pixel(browser, 5, 4)[:3]) < 60 and min(pixel(browser, 5, 3)[:3]) > 200
        assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
    finally:
        browser.scheme("light")


def test_144_heads_of_512_tokens_are_there_within_a_second_and_follow_the_pointer(browser, tmp_path: Path):
    n = 512
    measures = np.ones((12, 12, n))
    view = viewer.view([f" w{i}" for i in range(n)], random(12, 12, n), value_norms=measures, norms=measures,
                       logits=measures, scores=table(), title="large")  # fmt: skip
    page = view.save(tmp_path / "large.html")
    assert page.stat().st_size <= 25_000_000
    paints = []
    for _ in range(3):  # the best of three: other programs share the machine
        browser.open(page.as_uri())
        paints.append(browser.run("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    assert min(paints) < 1000, paints
    browser.wait("document.documentElement.dataset.thumbnails === 'drawn'")
    times = browser.run("""(async () => {
        const times = [], frame = () => new Promise(requestAnimationFrame);
        for (let token = 100; token < 140; token++) {
            await frame();
            const start = performance.now();
            document.getElementById(`token-${token}`).dispatchEvent(new PointerEvent("pointermove", {bubbles: true}));
            await frame(); // drawn in the callbacks before this one
            times.push(performance.now() - start);
        }
        return times;
    })()""")
    assert browser.state()["shown"] == "139"
    assert np.median(times) < 50, times  # milliseconds; a frame of 60 a second is 17


HOST = """<!doctype html><title>host</title><body>
<script type="module">
{widget}
const values = {{title: "t", html: {page}, height: 700, layer: 4, head: 1, token: 7}}, listeners = {{}};
window.model = {{
  get: (name) => values[name],
  set: (name, value) => {{
    if (values[name] === value) return;
    values[name] = value;
    listeners[`change:${{name}}`]?.();
  }},
  on: (name, f) => {{ listeners[name] = f; }}, off: () => {{}}, save_changes: () => {{ window.saved = {{...values}}; }},
}};
render({{ model, el: document.body }});
window.inside = () => document.querySelector("iframe")?.contentDocument?.documentElement?.dataset ?? {{}};
const wait = setInterval(() => {{
  if (inside().ready) {{ clearInterval(wait); document.documentElement.dataset.ready = "yes"; }}
}}, 20);
</script>"""


def test_a_widgets_selection_goes_from_page_to_model_and_back(browser, tmp_path: Path):
    """The widget's script with a stand-in for the notebook's model."""
    view = viewer.view(TOKENS, one_key(2, 3, N), layers=[4, 6], title="framed")
    script = static("widget.js").replace("export default { render };", "")
    page = json.dumps(view.html).replace("<", "\\u003c")
    (tmp_path / "host.html").write_text(HOST.format(widget=script, page=page), encoding="utf-8")
    browser.open((tmp_path / "host.html").as_uri())
    browser.wait("inside().head === '1' && inside().token === '7'")  # the model's selection, when the page was ready
    browser.run("model.set('token', 3)")
    browser.wait("inside().token === '3'")
    browser.point_at("iframe", click=True, x=0.3, y=0.98)  # the keys go to the frame
    browser.press("}", "ArrowRight")
    browser.wait("window.saved?.layer === 6 && window.saved.token === 4 && window.saved.head === 1")
    assert browser.errors == []
    time.sleep(0.2)  # were the two to answer each other, the selection would still be moving
    assert browser.run("[model.get('layer'), model.get('head'), model.get('token')]") == [6, 1, 4]
