"""Findings about the claims, how they are judged, and their page."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from andrea_jax import claims, seeds
from andrea_jax.plots.style import figure

REPOSITORY = Path(__file__).parent.parent
KEPT = REPOSITORY / "docs" / "results" / "claims"


def test_a_finding_is_about_a_claim_and_has_one_of_the_verdicts():
    claims.Finding("C7", "holds if W_O is free", "so it is", {})
    with pytest.raises(ValueError, match="C15: is none of C1, C2"):
        claims.Finding("C15", "holds", "", {})
    with pytest.raises(ValueError, match="must be"):
        claims.Finding("C1", "true", "", {})


def test_what_nobody_measured_is_said_to_be_not_measured(tmp_path: Path):
    claims.write(claims.Finding("C6", "holds", "0 of |x|", {"x": math.nan}), tmp_path)
    lines = claims.page(tmp_path).splitlines()
    rows = [line for line in lines if "not measured here |" in line]
    assert len(rows) == len(claims.CLAIMS) - 1
    assert f"| [C6](#c6) | {claims.CLAIMS['C6']} | **holds** | CPU |" in lines
    assert [line for line in lines if line.startswith("## ")] == ["## C6"]


def test_a_long_sentence_has_a_line_for_each_of_its_parts_and_a_short_one_stays_whole(tmp_path: Path):
    claims.write(claims.Finding("C5", "holds", "0 of |x|; 1", {}), tmp_path)
    claims.write(claims.Finding("C6", "holds", f"{'a' * 600} (b; c [d; e]); f", {}), tmp_path)
    lines = claims.page(tmp_path).splitlines()
    assert "0 of |x|; 1" in lines
    assert [line for line in lines if line.startswith("- ")] == [f"- {'a' * 600} (b; c [d; e])", "- f"]


def test_what_was_found_on_a_gpu_stands_beside_what_was_found_on_a_cpu(tmp_path: Path):
    origin = {"date": "2026-01-02T03:04:05", "command": "-m andrea_jax.cli bench projections", "versions": {"jax": "1"},
              "cpu_count": 16, "device": {"platform": "gpu", "kind": "a GPU", "count": 1}}  # fmt: skip
    claims.write(claims.Finding("C4", "does not hold", "", {}), tmp_path)
    claims.write(claims.Finding("C4", "holds", "", {}, origin), tmp_path)
    page = claims.page(tmp_path)
    cpu, gpu = [line for line in page.splitlines() if line.startswith("| [C4]")]
    assert "**does not hold** | CPU |" in cpu and "**holds** | a GPU |" in gpu
    assert page.index("**It does not hold.**") < page.index("(claims/C4.json)") < page.index("**It holds.**")
    how = "(claims/C4-gpu.json) by `python -m andrea_jax.cli bench projections`, 2026-01-02, a GPU (16 cores), jax 1."
    assert how in page


def test_the_json_of_a_finding_says_when_by_what_and_on_what_and_has_no_nan(tmp_path: Path):
    path = claims.write(claims.Finding("C6", "holds", "", {"x": [1.5, math.inf], "by_step": {3: math.nan}}), tmp_path)
    found = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert found["numbers"] == {"x": [1.5, None], "by_step": {"3": None}}
    assert {"date", "device", "command", "versions", "commit", "cpu_count"} <= found.keys()


def test_the_page_of_claims_is_that_of_the_findings_kept_beside_it():
    """After copying findings: python experiments/write_claims.py"""
    assert (KEPT.parent / "claims.md").read_text(encoding="utf-8") == claims.page(KEPT)


def test_an_interval_is_left_out_where_seeds_are_too_few():
    assert claims.interval(seeds.mean([0.25])) == "+0.25"
    assert claims.interval(seeds.Estimate(0.25, -0.5, 1.0, 3)) == "+0.25 [-0.50, +1.00]"


def differences(loss: Sequence[tuple], special: Sequence[tuple], induction: Sequence[tuple]) -> claims.Differences:
    """A contrast a pair (low, high) of its interval, with 2, 3, ... heads against 1."""
    measures = {"heldout_loss": loss, "specialization": special, "induction": induction}
    return {name: {f"n_head {2 + i} against 1": seeds.Estimate((low + high) / 2, low, high, 3)
                   for i, (low, high) in enumerate(pairs)} for name, pairs in measures.items()}  # fmt: skip


UP, DOWN, NOISE, UNKNOWN = (0.1, 0.3), (-0.3, -0.1), (-0.1, 0.3), (math.nan, math.nan)
MORE_HEADS = {"heldout_loss": -1, "specialization": 1, "induction": 1}


@pytest.mark.parametrize(("loss", "special", "induction", "verdict"), [
    ([DOWN, DOWN], [UP, UP], [UP, UP], "holds"),
    ([NOISE, NOISE], [NOISE, NOISE], [NOISE, NOISE], "does not hold"),
    ([UP, UP], [DOWN, NOISE], [NOISE, NOISE], "does not hold"),
    ([UNKNOWN, UNKNOWN], [UNKNOWN, UNKNOWN], [UNKNOWN, UNKNOWN], "not measured here"),
    ([NOISE, NOISE], [UP, UP], [NOISE, NOISE], "holds if specialization is meant; the loss and the best induction "
     "score differ by no more than noise"),
    ([NOISE, DOWN], [UP, UP], [NOISE, DOWN], "holds if the loss (n_head 3) or specialization is meant; the best "
     "induction score (n_head 3) goes the other way"),
    ([UP, UP], [DOWN, NOISE], [UP, NOISE], "holds if the best induction score (n_head 2) is meant; the loss and "
     "specialization (n_head 2) go the other way"),
    ([NOISE, NOISE], [UP, UP], [NOISE, UP], "holds if specialization or the best induction score (n_head 3) is meant; "
     "the loss differs by no more than noise"),
    ([UP, NOISE], [UP, UP], [UP, UP], "holds if specialization or the best induction score is meant; the loss "
     "(n_head 2) goes the other way"),
    ([DOWN, DOWN], [UP, DOWN], [UP, UP], "holds if the loss or specialization (n_head 2) or the best induction score "
     "is meant; specialization (n_head 3) goes the other way"),
])  # fmt: skip
def test_a_claim_of_several_measures_holds_in_those_that_are_beyond_noise(loss, special, induction, verdict):
    found = claims.judged(differences(loss, special, induction), MORE_HEADS)
    assert found == verdict
    claims.Finding("C10", found, "", {})


def test_the_sentence_says_that_intervals_are_widened_where_there_are_several():
    few = claims.contrasted(differences([NOISE], [UP], [DOWN]))
    assert few == ("n_head 2 against 1: held-out loss +0.10 [-0.10, +0.30] nats, specialization +0.20 [+0.10, +0.30], "
                   "best induction score -0.20 [-0.30, -0.10] (3 seeds)")  # fmt: skip
    many = claims.contrasted(differences(*[[NOISE] * 6] * 3))
    assert many.endswith("; for the verdict each interval is widened to one of 6")


def test_one_interval_of_six_that_leaves_out_0_is_no_verdict():
    """0.2 ± 0.1 is beyond noise by itself; as one of six it is 0.2 ± 0.1·10.89/4.30."""
    loss = [DOWN, *[NOISE] * 5]
    assert claims.judged(differences(loss, [NOISE] * 6, [NOISE] * 6), MORE_HEADS) == "does not hold"
    assert claims.judged(differences([DOWN], [NOISE], [NOISE]), MORE_HEADS).startswith("holds if the loss is meant")


def test_contrasts_of_two_widths_are_named_by_width():
    names = ("d_model 48, n_head 2 against 1", "d_model 48, n_head 4 against 1", "d_model 64, n_head 2 against 1")
    far = seeds.Estimate(0.2, 0.19, 0.21, 3)
    induction = {names[0]: far, names[1]: far, names[2]: seeds.Estimate(-0.2, -0.21, -0.19, 3)}
    verdict = claims.judged({"induction": induction}, {"induction": 1})
    assert verdict == ("holds if the best induction score (d_model 48, n_head 2, 4) is meant; the best induction score "
                       "(d_model 64, n_head 2) goes the other way")  # fmt: skip


def test_a_figure_lies_beside_its_finding_and_is_shown_on_the_page(tmp_path: Path):
    claims.write(claims.Finding("C6", "holds", "", {}, figure=figure(2, 2, "Is it?")), tmp_path)
    claims.write(claims.Finding("C5", "holds", "", {}), tmp_path)
    assert (tmp_path / "C6.png").read_bytes().startswith(b"\x89PNG")
    page = claims.page(tmp_path)
    assert page.endswith("\n\n![C6 in a figure](claims/C6.png)\n")
    assert page.count("![") == 1


def test_the_figures_kept_are_small():
    sizes = {path.name: path.stat().st_size for path in KEPT.glob("*.png")}
    assert all(size < 150_000 for size in sizes.values()), sizes


def test_every_claim_has_its_config_and_its_script_named_in_the_results():
    rows = [line.split(" | ") for line in (KEPT.parent / "README.md").read_text(encoding="utf-8").splitlines()]
    named = {claim: row[2] for row in rows if row[0].startswith("| C") for claim in row[0][2:].split(", ")}
    assert set(named) == set(claims.CLAIMS)
    for scripts in named.values():
        path = scripts.partition("](")[2].partition(")")[0]
        assert (KEPT.parent / path).resolve().parent == REPOSITORY / "experiments"
        assert (KEPT.parent / path).is_file()
