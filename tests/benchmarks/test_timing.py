"""That a timing times all of the work, and that one failure does not stop a benchmark."""

import re
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from andrea_jax.benchmarks import memory, timing
from andrea_jax.benchmarks.memory import TooLarge
from andrea_jax.benchmarks.programs import Chain, JaxCall
from andrea_jax.benchmarks.shapes import with_backward
from andrea_jax.benchmarks.timing import Job, Timing
from andrea_jax.compiled import matmuls
from andrea_jax.errors import UserError


def arrays(*shapes: tuple[int, ...]) -> tuple[jax.Array, ...]:
    return tuple(jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes))


def product(x, w):
    return jnp.tanh(x @ w)


X, W, DY = arrays((67, 29), (29, 31), (67, 31))


def products(chain: Chain) -> tuple[int, int]:
    """(in all, outside of the loop)."""
    text = chain.compiled.as_text()
    assert text is not None and text.count(" while(") == 1
    return matmuls(text), matmuls(re.sub(r"\bbody=%?[\w.-]+", "", text))


def test_no_product_of_a_chained_call_is_left_out_or_moved_out_of_the_loop():
    assert products(Chain(product, (X, W), (0,), 7, {})) == (1, 0)
    assert products(Chain(with_backward(product, 2), (X, W, DY), (0, 2), 7, {})) == (3, 0)


def test_a_product_of_nothing_that_the_chain_writes_into_would_be_moved_out():
    def linear(x, w):
        return x @ w

    # the gradient of x is DY·Wᵀ, which does not depend on x
    assert products(Chain(with_backward(linear, 2), (X, W, DY), (0,), 7, {})) == (3, 1)
    assert products(Chain(with_backward(linear, 2), (X, W, DY), (0, 2), 7, {})) == (3, 0)


def test_each_chained_call_sees_one_number_of_the_result_before():
    chain = Chain(lambda x: x + 1, (X,), (0,), 5, {})
    chain.run(2)
    (x,), result = chain._state
    expected = np.array(X)
    expected[0, 0] += 10
    np.testing.assert_allclose(x, expected, rtol=1e-6)
    expected[0, 0] -= 1  # the last call added 1 to everything
    np.testing.assert_allclose(result, expected + 1, rtol=1e-6)


def test_four_times_as_many_chained_calls_take_at_least_twice_as_long():
    x, w = arrays((199, 211), (211, 211))
    chains = [Chain(product, (x, w), (0,), calls, {}) for calls in (20, 80)]
    short, long = (min(chain.run(1) for _ in range(7)) for chain in chains)
    assert long > 2 * short


def test_a_call_that_returns_a_tree_is_chained_and_its_launches_and_products_are_counted_once():
    call = JaxCall(with_backward(product, 2), lambda: (X, W, DY), (0, 2))
    assert call.facts()["matmuls"] == 3 and call.facts()["launches"] >= 3
    assert call.run(3) > 0
    call._a_call, call._handed = 1e-4, 9e-5  # the host was busy for most of the time
    chain = call.chained(3e-3)
    assert chain is not None and chain.calls == 30 and chain.chained(1) is None


@pytest.mark.parametrize(("a_call", "handed"), [(1e-4, 4e-5), (2e-3, 1.9e-3)])
def test_a_call_that_keeps_the_device_busy_or_takes_a_millisecond_is_not_chained(a_call, handed):
    call = JaxCall(product, lambda: (X, W))
    call._a_call, call._handed = a_call, handed
    assert call.chained(20e-3) is None


@dataclass
class Scripted:
    """Takes `seconds` a call, by turns; raises at run number `fails_at`."""

    seconds: list[float]
    fails_at: int | None = None
    asked: list[int] = field(default_factory=list)
    calls: int = 1

    def run(self, times: int) -> float:
        self.asked.append(times)
        if len(self.asked) == self.fails_at:
            raise RuntimeError("the device is gone\nand more lines")
        return times * self.seconds[(len(self.asked) - 1) % len(self.seconds)]

    def chained(self, seconds: float) -> None:
        return None

    def facts(self) -> dict:
        return {"temp_mib": 0.5}


def test_the_first_runs_are_not_timed_and_median_fastest_and_slowest_are_of_one_call():
    found = timing.measure([Scripted([9.0, 0.011, 0.012, 0.030, 0.013, 0.010, 0.014])], 5)
    assert isinstance(found[0], tuple)
    assert found[0][1] == Timing(median=0.013, fastest=0.010, slowest=0.030, calls=2, repeats=5)


def test_a_timing_is_of_as_many_calls_as_take_20_ms_and_a_slow_call_is_timed_three_times():
    quick, slow = Scripted([0.002]), Scripted([4.0])
    timing.measure([quick, slow], 6)
    assert quick.asked == [1, 1, 10] + [10] * 6
    assert slow.asked == [1, 1] + [1] * 3


def test_things_that_are_compared_take_turns():
    order = []

    class Told(Scripted):
        def run(self, times: int) -> float:
            order.append(self.seconds[0])
            return super().run(times)

    timing.measure([Told([0.03]), Told([0.04])], 2)
    assert order == [0.03, 0.03, 0.04, 0.04] + [0.03, 0.04] * 2


def jobs(*makes) -> list[Job]:
    return [Job({"name": i, "flops": 3e9, "bytes": 5e7}, make) for i, make in enumerate(makes)]


def test_what_cannot_be_made_or_run_has_its_reason_and_the_others_go_on():
    def refuse():
        raise UserError("head_dim 7 does not fit")

    def break_down():
        raise ValueError("not\nthis")

    makes = [
        refuse,
        break_down,
        *(lambda at=at: Scripted([0.05], fails_at=at) for at in (1, 4)),
        lambda: Scripted([0.05]),
    ]
    rows = []
    timing.run([jobs(*makes)], 3, rows.extend)
    lost = "RuntimeError: the device is gone"
    assert [row["reason"] for row in rows] == ["head_dim 7 does not fit", "ValueError: not", lost, lost, None]
    assert [row["us"] is None for row in rows] == [True] * 4 + [False]
    assert rows[4]["us"] == pytest.approx(50_000) and rows[4]["temp_mib"] == 0.5
    assert rows[4]["tflops"] == pytest.approx(0.06) and rows[4]["gb_s"] == pytest.approx(1.0)


def test_what_fails_beside_others_is_tried_again_alone_but_not_what_is_refused():
    tries = {"flaky": 0, "refused": 0}

    def flaky():
        tries["flaky"] += 1
        if tries["flaky"] == 1:
            raise OSError("busy")
        return Scripted([0.05])

    def refused():
        tries["refused"] += 1
        raise UserError("never")

    rows = []
    timing.run([jobs(flaky, refused)], 3, rows.extend)
    assert [row["reason"] for row in rows] == [None, "never"] and tries == {"flaky": 2, "refused": 1}


def test_rows_of_a_group_are_handed_over_before_the_next_group_is_measured():
    first, second = Scripted([0.03]), Scripted([0.03])
    seen = []
    timing.run([jobs(lambda: first), jobs(lambda: second)], 3, lambda rows: seen.append((len(rows), len(second.asked))))
    assert seen == [(1, 0), (1, 5)]


def test_progress_counts_what_is_made_and_what_is_measured():
    told = []
    timing.run([jobs(lambda: Scripted([0.03])), jobs(lambda: Scripted([0.03]))], 3, lambda rows: None,
               lambda *at: told.append(at))  # fmt: skip
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_program_that_needs_more_than_half_of_memory_is_not_run(monkeypatch):
    needed = 4 * (67 * 29 + 29 * 31 + 67 * 31)
    monkeypatch.setattr(memory, "device_bytes", lambda: 2 * needed - 1)
    with pytest.raises(TooLarge, match="more than half"):
        JaxCall(jnp.matmul, lambda: (X, W))
    monkeypatch.setattr(memory, "device_bytes", lambda: 4 * needed)
    JaxCall(jnp.matmul, lambda: (X, W))


@pytest.mark.slow
def test_the_limits_of_a_device_are_a_rate_and_a_time():
    found = timing.limits("float32", repeats=2)
    assert found["ceiling_tflops"] > 1e-4 and 0 < found["smallest_us"] < 1e4
