"""From arrays to a page: what is refused, how large it becomes, that no token can break it."""

import html
import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from view_data import HOSTILE, one_key, table, uniform

from andrea_jax import viewer
from andrea_jax.errors import UserError
from andrea_jax.viewer import pack
from andrea_jax.viewer.badges import Badge, badges

SIX = list("abcdef")


def data_of(page: str) -> dict:
    """What stands in the page's data element."""
    return json.loads(page.split('<script type="application/json" id="data">')[1].split("</script>")[0])


def test_the_page_holds_the_patterns_it_was_given():
    patterns = one_key(2, 3, 6)
    side = data_of(viewer.view(SIX, patterns).html)["sides"][0]
    for layer, head in np.ndindex(2, 3):
        triangle = pack.restore(pack.from_text(side["patterns"][layer][head], 21))
        np.testing.assert_array_equal(triangle, patterns[layer, head][np.tril_indices(6)])


@pytest.mark.parametrize("n_tokens", [5, 7])
def test_a_wrong_number_of_tokens_is_refused(n_tokens: int):
    with pytest.raises(UserError, match=f"there are {n_tokens} tokens and 6 queries × 6 keys"):
        viewer.view(["x"] * n_tokens, uniform(2, 3, 6))


def test_patterns_without_layers_or_that_are_not_square_are_refused():
    with pytest.raises(UserError, match=r"\[layer, head, query, key\], not the shape \(3, 6, 6\)"):
        viewer.view(SIX, uniform(1, 3, 6)[0])
    with pytest.raises(UserError, match="6 queries × 5 keys"):
        viewer.view(SIX, uniform(1, 3, 6)[..., :5])
    with pytest.raises(UserError, match="at least one"):
        viewer.view([], np.zeros((1, 1, 0, 0)))


def broken(value: float, at: tuple[int, int]) -> np.ndarray:
    patterns = uniform(2, 3, 6).copy()
    patterns[(1, 2, *at)] = value
    return patterns


def test_a_row_that_does_not_sum_to_one_is_named():
    with pytest.raises(UserError, match=r"patterns of A\[1, 2, 4\]: must sum to 1 over its keys, and sums to 1\.3"):
        viewer.view(SIX, broken(0.5, (4, 0)))  # 0.2 before
    with pytest.raises(UserError, match=r"\[1, 2, 4\]: must sum to 1 over its keys, and sums to nan"):
        viewer.view(SIX, broken(np.nan, (4, 0)))


def test_attention_to_the_future_and_negative_attention_are_refused():
    with pytest.raises(UserError, match=r"\[1, 2\]: attends to later tokens"):
        viewer.view(SIX, broken(0.01, (0, 5)))
    patterns = broken(-0.1, (4, 0))
    patterns[1, 2, 4, 1] += 0.3  # the row still sums to 1
    with pytest.raises(UserError, match=r"\[1, 2\]: holds -0\.1"):
        viewer.view(SIX, patterns)


def test_a_bfloat16_softmax_is_close_enough_to_one():
    rounded = (uniform(1, 1, 6).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert 0 < np.abs(rounded.sum(axis=-1) - 1).max() < 0.01
    viewer.view(SIX, rounded)


def test_measures_of_another_shape_are_refused():
    with pytest.raises(UserError, match=r"norms of A: must have the axes \[layer, head, token\] = \(2, 3, 6\)"):
        viewer.view(SIX, uniform(2, 3, 6), norms=np.zeros((3, 2, 6)))
    with pytest.raises(UserError, match="logits of A: holds values that are not finite"):
        viewer.view(SIX, uniform(2, 3, 6), logits=np.full((2, 3, 6), np.inf))
    with pytest.raises(UserError, match=r"against: must have the shape of the patterns, \(2, 3, 6, 6\)"):
        viewer.view(SIX, uniform(2, 3, 6), against=uniform(2, 1, 6))
    with pytest.raises(UserError, match="successors: there must be one a token, 6, not 5"):
        viewer.view(SIX, uniform(2, 3, 6), successors=SIX[:5])
    with pytest.raises(UserError, match=r"layers: must be 2 different numbers.* not \[4\]"):
        viewer.view(SIX, uniform(2, 3, 6), layers=[4])


@pytest.mark.parametrize(("n_tokens", "limit"), [(128, 2_000_000), (512, 25_000_000)])
def test_twelve_layers_of_twelve_heads_stay_within_their_size(n_tokens: int, limit: int):
    """The size does not depend on what the arrays hold: nothing is compressed."""
    measures = np.random.default_rng(0).normal(size=(12, 12, n_tokens))
    tokens = [" token"] * n_tokens
    scored = table()
    view = viewer.view(tokens, uniform(12, 12, n_tokens), value_norms=measures, norms=measures, logits=measures,
                       scores=scored, successors=tokens)  # fmt: skip
    assert len(view.html.encode()) <= limit


def test_no_token_can_end_the_data_or_open_a_comment():
    hostile = viewer.view(HOSTILE, uniform(1, 1, len(HOSTILE)), successors=HOSTILE, title="</title><b>{{data}}").html
    harmless = viewer.view(["x"] * len(HOSTILE), uniform(1, 1, len(HOSTILE)), title="x").html
    for mark in ("<script", "</script", "<!--", "</title"):
        assert hostile.count(mark) == harmless.count(mark)
    assert data_of(hostile)["tokens"] == [t if isinstance(t, str) else "\\xff" for t in HOSTILE]


def test_the_page_can_ask_the_network_for_nothing():
    page = viewer.view(SIX, uniform(1, 1, 6)).html
    assert "default-src 'none'" in page
    assert "http:" not in page and "https:" not in page and "src=" not in page and "@import" not in page


def test_a_notebook_gets_the_page_in_a_frame_of_its_own():
    view = viewer.view(HOSTILE, uniform(1, 1, len(HOSTILE)), title='a "quoted" <title>')
    frame = view._repr_html_()
    assert html.unescape(frame.split('srcdoc="')[1].split('"')[0]) == view.html


def test_saving_replaces_the_file_and_leaves_nothing_else(tmp_path: Path):
    (tmp_path / "view.html").write_text("old")
    view = viewer.view(SIX, uniform(1, 1, 6))
    assert view.save(tmp_path / "view.html") == tmp_path / "view.html"
    assert [path.name for path in tmp_path.iterdir()] == ["view.html"]
    assert (tmp_path / "view.html").read_text(encoding="utf-8") == view.html


def test_a_badge_is_the_probe_that_gains_most_over_even_attention():
    found = badges(table())
    assert found[1, 2] == Badge("induct", "induction", 0.7, 0.02, True)
    assert found[0, 1].short == "prev"  # (0.9 − 0.1) / 0.9 is more than (0.5 − 0.02) / 0.98
    assert not found[0, 0].found  # its interval holds the baseline


def test_badges_follow_the_numbers_of_the_layers_that_are_shown():
    shown = data_of(viewer.view(SIX, uniform(1, 2, 6), scores=table(), layers=[1], heads=[2, 0]).html)
    assert [badge["short"] if badge["found"] else None for badge in shown["badges"][0]] == ["induct", None]
    assert shown["start"]["layer"] == 1 and shown["start"]["head"] == 2


def test_scores_that_are_no_profile_are_refused():
    with pytest.raises(UserError, match="scores: lacks the column baseline"):
        viewer.view(SIX, uniform(2, 3, 6), scores=table().drop(columns="baseline"))


def test_a_difference_begins_at_the_row_that_changed_most():
    changed = uniform(2, 3, 6).copy()
    changed[1, 0, 4] = [0, 0, 0, 0, 1, 0]
    start = data_of(viewer.view(SIX, uniform(2, 3, 6), against=changed, layers=[5, 7], heads=[2, 3, 9]).html)["start"]
    assert start == {"layer": 7, "head": 2, "token": 4}


def test_scripts_and_styles_are_short_files():
    for file in (resources.files("andrea_jax.viewer") / "static").iterdir():
        lines = file.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 300, file.name


def test_a_view_opens_at_another_selection_and_keeps_what_is_not_asked_for():
    view = viewer.view(SIX, uniform(2, 3, 6), layers=[4, 5], heads=[7, 8, 9], title="six")
    start = data_of(view.at(5, token=2, weighted=True).html)["start"]
    assert start == {"layer": 5, "head": data_of(view.html)["start"]["head"], "token": 2, "weighted": "yes"}
    assert data_of(view.html)["start"]["layer"] == 4  # another view; this one is as it was


@pytest.mark.parametrize("wrong", [{"layer": 0}, {"head": 1}, {"token": 6}, {"show": "diff"}], ids=str)
def test_a_selection_that_a_view_does_not_have_is_refused(wrong):
    view = viewer.view(SIX, uniform(2, 3, 6), layers=[4, 5], heads=[7, 8, 9])
    (name,) = wrong
    with pytest.raises(UserError, match=f"at: {name} = .* is none of this view's"):
        view.at(**wrong)
