"""Verdicts follow the rows, whichever way they point."""

import benchmark_data as data
import pytest

from andrea_jax.plots import benchmark_findings as findings
from andrea_jax.plots.benchmark_rows import by, listed, span, timed, where


def said(sentences: list[str], *words: str) -> str:
    """The one sentence that has all of these words."""
    (found,) = [sentence for sentence in sentences if all(word in sentence for word in words)]
    return found


def test_the_fastest_backend_is_compared_with_the_fastest_peer_of_the_same_shape():
    rows = data.attention()
    forward, triton, both, *rest = findings.attention(rows)
    assert triton == "forward: triton takes 0.63 to 1.08 times as long as torch-flex"
    assert forward.startswith("forward: the fastest backend is at or under the fastest peer on 4 of 6 shapes")
    assert "32 × 1024 × 12 × 64: mosaic 141 µs, 0.89 of torch-cudnn" in forward
    assert "4 × 8192 × 12 × 64: mosaic 905 µs, 1.05 of fa3" in forward
    assert both.startswith("forward + backward: the fastest backend is at or under the fastest peer on 4 of 6")
    assert said(rest, "entropy").count("+6%") == 5
    assert said(rest, "not run") == "not run: reference (6 rows): needs 77.0 GiB, more than half of the device's 105.0"


def test_slow_backends_win_nowhere_and_without_peers_nothing_is_compared():
    rows = [row for row in data.attention() if row["contender"] not in ("mosaic", "triton", "cudnn")]
    assert "on 0 of 6 shapes" in findings.attention(rows)[0] and "0 of 6 shapes forward" in findings.attention_title(
        rows
    )
    alone = where(rows, kind="backend")
    assert findings.attention(alone)[0] == "forward: no backend and peer were both timed"
    assert findings.attention_title(alone) == "Attention on this device, no peer beside it"


def test_fewer_products_make_c3_true_and_as_many_make_it_not_true():
    claim = findings.projections(data.projections())[0]
    assert claim.startswith("C3, one call instead of one a head: true")
    assert "fused, one matrix 1, fused, three matrices 3, per-head, einsum 3, per-head, loop 36 to 72" in claim
    merged = [row for row in data.projections(thresholds=(1024,)) if row["d_model"] == 384]
    merged = [{**row, "matmuls": 1} for row in merged]
    assert findings.projections(merged)[0].startswith("C3, one call instead of one a head: NOT true")


def test_what_the_merger_merges_is_said_with_its_sizes():
    sentences = findings.projections(data.projections())
    assert said(sentences, "at 32 MiB").endswith(
        "runs 3 products instead of 36 to 72 at d_model 384, B·T 8,192; d_model 768, B·T 8,192; d_model 1536, B·T 8,192"
    )
    assert said(sentences, "at 1024 MiB").endswith("3 products instead of 36 to 72 at every size")
    unmerged = [{**row, "matmuls": 36 if row["form"] == findings.LOOP else 1} for row in data.projections()]
    assert said(findings.projections(unmerged), "at 32 MiB").endswith("as many products as are written, at every size")


@pytest.mark.parametrize(("loop", "verdict", "share"), [(2.0, "true of", "50%"), (1.01, "NOT true of", "99%")])
def test_c4_follows_the_rates(loop, verdict, share):
    sentences = findings.projections(data.projections(loop))
    claim = said(sentences, "C4, forward, nothing merged", "loop")
    assert f"underuse the hardware is {verdict} per-head, loop: {share} of the rate" in claim
    assert "is NOT true of per-head, einsum" in said(sentences, "C4, forward:", "einsum")


def test_c4_is_mixed_where_the_sizes_disagree():
    rows = [{**row, "ratio": 2.0 if row["tokens"] > 8192 else 1.0} for row in data.projections(thresholds=(None,))]
    claim = said(findings.projections(rows), "C4, forward:", "loop")
    assert "is true at some sizes only of per-head, loop: 50% to 100%" in claim


@pytest.mark.parametrize(("transposed", "verdict"), [(1.45, "NOT true"), (0.8, "true"), (1.0, "NOT true")])
def test_c11_follows_the_times(transposed, verdict):
    claim = said(findings.layout(data.layout(transposed)), "C11, mosaic, forward:")
    assert f"is faster is {verdict}: it takes {transposed:.2f} times as long" in claim
    assert "(beside it: q|k|v in place 1.01, slices of q|k|v 1.22, contiguous 0.98)" in claim


def test_c11_says_what_slicing_q_k_v_first_costs_in_time_and_launches():
    rows = [{**row, "launches": 4 if row["variant"] == "slices of q|k|v" else 1}
            for row in data.layout() if row["question"] == "layout"]  # fmt: skip
    claim = said(findings.layout(rows), "C11, mosaic, forward, q|k|v in one array:")
    assert claim.endswith("takes 1.21 times as long as reading it in place (4 launches against 1)")  # 1.22 / 1.01


def test_c12_follows_the_launches():
    def claim(launches):
        rows = [{**row, "launches": launches(row["n_head"])} if row["question"] == "launches" else row
                for row in data.layout()]  # fmt: skip
        return said(findings.layout(rows), "C12, triton: that the same launches")

    assert "is true; launches at 1 to 24 heads: forward 1" in claim(lambda n: 1)
    assert "is true but for a few; launches at 1 to 24 heads: forward 10 to 12" in claim(lambda n: 10 if n < 3 else 12)
    assert "is NOT true; launches at 1 to 24 heads: forward 3 to 49" in claim(lambda n: 1 + 2 * n)
    assert said(findings.layout(data.layout()), "C12, cudnn, forward").endswith("takes 3.10 times as long")


def test_c12_compares_grids_where_a_kernel_offers_them():
    of = {"question": "grid", "backend": "mosaic", **dict(zip(data.SHAPE, data.SHAPES[0], strict=True))}
    grids = [{**of, "variant": name, "passes": "forward", **data.timing(us, ratio=us / 141)}
             for name, us in (("query tiles", 141), ("a block a head", 423))]  # fmt: skip
    claim = said(findings.layout([*data.layout(), *grids]), "time of each grid")
    assert claim.endswith("of the first: query tiles 1.00, a block a head 3.00")


@pytest.mark.parametrize(
    ("narrow", "odd", "expected"),
    [(0.6, 0.9, "32 true, 72 true"), (1.0, 1.02, "32 NOT true, 72 NOT true"), (0.6, None, "32 true")],
)
def test_c13_follows_the_rates(narrow, odd, expected):
    rows = data.head_dim(narrow, odd)
    claim = said(findings.head_dim(rows), "C13, mosaic, forward,")
    assert f"that it is slower than 64: {expected}; rate over that of 64 (250 TFLOP/s): 32 {narrow:.0%}" in claim
    fallback = said(findings.head_dim(rows), "cannot run without a fallback")
    assert fallback.endswith("true of cudnn, mosaic and auto" if odd is None else "NOT true: whatever runs 64 runs 72")
    title = "72 did not run" if odd is None else f"72 reaches {odd:.0%}"
    assert findings.head_dim_title(rows) == (
        f"head_dim 32 reaches {narrow:.0%} of the rate of 64, {title} (cudnn, attention forward)"
    )


def test_a_backend_that_runs_no_width_does_not_speak_against_72():
    nothing = [{**row, "backend": "triton", "us": None, "reason": "needs CUDA"} for row in data.head_dim()]
    claim = said(findings.head_dim([*data.head_dim(), *nothing]), "cannot run without a fallback")
    assert claim.endswith("NOT true: whatever runs 64 runs 72")


def test_titles_without_a_time_say_what_the_figure_is_about():
    failed = [{**row, **data.timing(None)} for row in data.layout() if row["question"] == "layout"]
    assert findings.layout_title(failed) == "Heads read in place, contiguous, transposed first"
    failed = [{**row, **data.timing(None)} for row in data.head_dim()]
    assert findings.head_dim_title(failed) == "What a head's width costs"


def test_rows_are_grouped_and_listed_in_their_order():
    rows = [{"a": 2, "us": None}, {"a": 1, "us": 3.0}, {"a": 2, "us": 4.0}]
    assert by(rows, "a") == {(2,): [rows[0], rows[2]], (1,): [rows[1]]}
    assert timed(rows) == rows[1:] and where(rows, a=2, us=None) == rows[:1]
    assert [listed(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
    assert (span([1.04, 0.96], ".1f"), span([3, 36], "d")) == ("1.0", "3 to 36")
