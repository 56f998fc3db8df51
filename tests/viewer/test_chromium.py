"""The page in a real browser: what is drawn, and what pointer, keys and address do."""

from urllib.parse import parse_qs

import pytest
from page_reading import ground, pixel, texts
from view_data import HOSTILE, TOKENS

N = len(TOKENS)
pytestmark = pytest.mark.slow


def test_a_page_loads_without_errors_and_asks_for_nothing_but_itself(browser, pages):
    browser.open(pages["one"])
    browser.wait("document.documentElement.dataset.thumbnails === 'drawn'")
    assert browser.errors == []
    assert browser.requests == [pages["one"]]
    assert len(texts(browser, "#grid .cell")) == 6 and len(texts(browser, "#text span")) == N


def test_a_page_with_the_network_cut_off_works_all_the_same(browser, pages):
    browser.cut_network(True)
    try:
        browser.open(pages["one"])
        browser.press("]")
        assert browser.errors == [] and browser.state()["head"] == "2"
    finally:
        browser.cut_network(False)


def test_every_entry_is_drawn_where_it_belongs(browser, pages):
    browser.open(f"{pages['one']}#layer=6&head=1")  # looks two tokens back
    full, none = (1, 42, 74, 255), (255, 255, 255, 255)
    assert [pixel(browser, q, k) for q, k in ((5, 3), (9, 7), (1, 0))] == [full] * 3
    assert [pixel(browser, q, k) for q, k in ((5, 4), (3, 0), (9, 0))] == [none] * 3


def test_badges_name_the_best_probe_and_its_value_against_even_attention(browser, pages):
    browser.open(f"{pages['one']}#layer=4&head=1")
    assert texts(browser, "#grid .cell .badge")[1] == "prev.90"
    assert browser.run("document.querySelectorAll('.badge b')[1].style.getPropertyValue('--baseline')") == "10%"
    assert texts(browser, "#head-badge") == ["Previous token 0.90, evenly spread attention 0.10"]
    browser.press("[")
    assert browser.state() and texts(browser, "#head-badge")[0].startswith("Nothing above the null")


def test_pointing_at_a_token_shows_both_directions_and_selects_nothing(browser, pages):
    browser.open(f"{pages['one']}#layer=6&head=0&token=9")  # looks one token back
    browser.point_at("#token-4")
    assert (browser.state()["shown"], browser.state()["token"]) == ("4", "9")
    assert [ground(browser, token) for token in range(2, 7)] == ["", "to", "", "from", ""]
    assert texts(browser, "#to li code") == ["("] and texts(browser, "#from li code") == [")"]
    browser.point(1430, 890)
    assert browser.state()["shown"] == "9"
    browser.point_at("#token-2", click=True)
    assert browser.state()["token"] == "2"


def test_pointing_at_an_entry_reads_it_out(browser, pages):
    browser.open(f"{pages['one']}#layer=6&head=1")
    width = browser.run("document.getElementById('marks').clientWidth")
    side = browser.run("document.getElementById('marks').clientHeight - 2")
    assert isinstance(width, int) and isinstance(side, int)
    browser.point_at("#marks", x=3.5 / N * side / width, y=5.5 / N * side / (side + 2))
    browser.settle()
    assert texts(browser, "#readout") == ["“)” at 5 attends to “(” at 3: 1.000"]
    assert browser.state()["shown"] == "5"


def test_norms_and_logits_are_those_of_the_token_pointed_at(browser, pages):
    browser.open(f"{pages['one']}#layer=6&head=1&token=9")  # the 5th head: 4·11 + token + 1
    browser.point_at("#token-4")
    browser.settle()
    assert texts(browser, "#norms figcaption b") == ["49.00"]
    assert texts(browser, "#logits figcaption b") == ["−49.00"]
    assert texts(browser, "#logits figcaption strong") == ["Direct logit of “)”"]


def test_arrows_move_the_token_and_stop_at_the_ends(browser, pages):
    browser.open(f"{pages['one']}#token=9")
    for keys, token in (
        (["ArrowLeft"], 8),
        (["ArrowRight"] * 2, 10),
        (["ArrowRight"], 10),
        (["Home"], 0),
        (["End"], 10),
    ):
        browser.press(*keys)
        assert browser.state()["token"] == str(token)


def test_up_and_down_follow_the_lines_of_the_text(browser, pages):
    browser.open(f"{pages['one']}#token=9")  # "return" stands below "def f("
    browser.press("ArrowUp")
    above = int(browser.state()["token"])
    assert above < 7
    browser.press("ArrowDown")
    assert int(browser.state()["token"]) > 7


def test_brackets_step_through_heads_and_braces_through_layers(browser, pages):
    browser.open(f"{pages['one']}#layer=4&head=2")
    for key, place in (("]", ("6", "0")), ("[", ("4", "2")), ("}", ("6", "2")), ("}", ("4", "2")), ("{", ("6", "2"))):
        browser.press(key)
        state = browser.state()
        assert (state["layer"], state["head"]) == place


def test_tab_walks_through_the_heads(browser, pages):
    browser.open(f"{pages['one']}#layer=6&head=2")
    browser.run("document.querySelector('.skip').focus()")
    browser.press("Tab", "Tab")
    assert (browser.state()["layer"], browser.state()["head"]) == ("4", "1")
    assert browser.run("document.activeElement.matches('.cell:focus-visible')")


def test_brackets_take_the_focus_along_when_a_head_was_clicked(browser, pages):
    browser.open(f"{pages['one']}#layer=4&head=0")
    browser.point_at("#grid button:nth-of-type(2)", click=True)
    browser.press("]", "]")
    assert (browser.state()["layer"], browser.state()["head"]) == ("6", "0")
    assert browser.run("document.activeElement.matches('.cell:nth-of-type(4)[aria-current]')")


def test_help_opens_and_closes_and_takes_the_other_keys_meanwhile(browser, pages):
    browser.open(f"{pages['one']}#token=5")
    browser.press("?", "ArrowLeft")
    assert browser.run("document.getElementById('help').open") and browser.state()["token"] == "5"
    browser.press("?")
    assert not browser.run("document.getElementById('help').open")


def test_a_copied_address_reopens_the_selection(browser, pages):
    browser.open(pages["diff"])
    browser.press("b", "]", "ArrowLeft", "}")
    before, address = browser.state(), str(browser.run("location.href"))
    assert parse_qs(address.split("#")[1]).keys() == {"layer", "head", "token", "show"}
    browser.open(address)
    after = browser.state()
    for name in ("layer", "head", "token", "show"):
        assert after[name] == before[name]


def test_an_address_with_nonsense_leaves_the_first_selection(browser, pages):
    browser.open(f"{pages['one']}#layer=5&head=x&token=99&show=diff&weighted=yes")
    assert browser.errors == []
    state = browser.state()
    assert (state["layer"], state["head"], state["show"], state["weighted"]) == ("4", "1", "a", "false")


def test_hostile_tokens_are_text_and_nothing_else(browser, pages):
    browser.open(pages["hostile"])
    assert browser.errors == [] and browser.run("document.title") == "intact"
    shown = texts(browser, "#text span")
    assert shown[:3] == HOSTILE[:3] and shown[3] == "⏎\n" and shown[4:] == ["\\xff", *HOSTILE[5:]]
    assert browser.run("document.scripts.length") == 1  # the data element is gone, and none came
