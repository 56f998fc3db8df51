import base64
import dataclasses
import re
from html.parser import HTMLParser

import pandas as pd
import plot_data
import pytest

from andrea_jax import plots, runs
from andrea_jax.config import Data, Experiment, Model

NAMES = ("profile", "patterns", "offsets", "brackets", "development", "loss", "gradients", "checks")


def make_run(root, name: str = "quickstart") -> runs.Run:
    model = Model(vocab_size=4353, seq_len=1024, d_model=64, n_layer=2, n_head=4)
    return runs.create(root, Experiment(model=model, data=Data(repeat_share=0.25)), name)


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> runs.Run:
    """A run with everything computed, and its report."""
    run = make_run(tmp_path_factory.mktemp("runs"))
    for row in plot_data.metrics():
        run.append_metrics(row)
    run.record(device="<b>cpu</b> & co", data={"hash": "ab12", "sources": ["stdlib"]})
    profile, checks = plot_data.profile(undefined=("bracket_at_closer",)), plot_data.checks()
    profiles = {step: plot_data.profile() for step in (0, 10, 1000)}
    patterns = plot_data.patterns(panels=1)
    path = plots.write_report(run, profile, step=1000, patterns=patterns, checks=checks, profiles=profiles)
    assert path == run.report
    return run


class Page(HTMLParser):
    """What a browser would load, run, and show."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in ("img", "meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data):
        self.words.append(data)


def test_a_figure_is_scrolled_on_a_narrow_screen_and_not_shrunk_until_nobody_can_read_it(full):
    text = full.report.read_text(encoding="utf-8")
    assert text.count('<figure><div class="scroll"><img') == text.count("<figure>") > 0
    assert "max-width: max(100%, 40rem)" in text


def test_the_page_needs_no_network_and_runs_no_script(full):
    text = full.report.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert all(source.startswith(("data:image/svg+xml;base64,", "#")) for source in page.sources)
    assert "http" not in text and "@import" not in text and "url(" not in text
    for encoded in re.findall(r"base64,([^\"]+)", text):
        svg = base64.b64decode(encoded).decode()
        assert not re.search(r"href=\"(?!#|data:image/png)", svg)
    assert len(text) < 3_000_000


def test_every_link_of_the_contents_leads_to_a_section(full):
    text = full.report.read_text(encoding="utf-8")
    anchors = [source[1:] for source in Page(text).sources if source.startswith("#")]
    assert len(anchors) == len(set(anchors)) == 12
    assert all(f'id="{anchor}"' in text for anchor in anchors)


def test_text_from_the_run_is_shown_and_not_obeyed(full):
    text = full.report.read_text(encoding="utf-8")
    assert "<b>cpu" not in text and "&lt;b&gt;cpu&lt;/b&gt; &amp; co" in text


def test_the_page_holds_findings_negatives_and_where_they_come_from(full):
    words = " ".join(Page(full.report.read_text(encoding="utf-8")).words)
    for said in (
        "Head 1.1 puts 0.81 [0.78, 0.84] of its attention on induction targets (uniform: 0.03)",
        "No head finds matching brackets beyond simple rules",
        "Nothing can be said on: bracket at closer (no query has a target)",
        "25% of the training windows repeat their first part",
        "Heads scored at step 1000",
        "data.hash",
        "vocab_size = 4353",
        "versions.jax",
    ):
        assert said in words, said
    assert "nan" not in words.lower().split() and "Not computed" not in words


def test_figures_and_tables_lie_beside_the_page_whole(full):
    for name in NAMES:
        assert (full.figures / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"</svg>" in (full.figures / f"{name}.svg").read_bytes()[-20:]
    for name in ("profile", "best", "periods", "offsets", "brackets", "checks"):
        frame = pd.read_parquet(full.figures / f"{name}.parquet")
        assert len(frame) == len(pd.read_csv(full.figures / f"{name}.csv")) > 0
    assert not [path for path in full.path.rglob("*") if path.name.endswith(".tmp")]


def test_what_was_not_computed_is_named_in_its_place_every_time(tmp_path):
    run = make_run(tmp_path)
    profile = dataclasses.replace(plot_data.profile(1, 1, undefined=plot_data.PROBES), brackets=pd.DataFrame())
    text = plots.write_report(run, profile, step=0).read_text(encoding="utf-8")
    words = " ".join(Page(text).words)
    what_to_do = "train.profile_every while it trains, or train.log_spaced_checkpoints=true, then report --development"
    assert f"Not computed for this run: development (it takes 3 scored checkpoints: {what_to_do})." in words
    for name in ("patterns", "brackets", "loss", "gradients", "checks", "induction"):
        assert f"Not computed for this run: {name}." in words
    assert plots.write_report(run, profile, step=0).read_text(encoding="utf-8") == text  # and again the same bytes
