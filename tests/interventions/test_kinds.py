"""Every kind of intervention against a forward pass by hand, float64, in which pattern and z lie open."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from edited_andrea import CONFIG, EACH, HEADS, PARAMS, TASK, TOKENS, Inner, forward, losses, with_pattern

from andrea_jax.config import Model
from andrea_jax.conversion import convert
from andrea_jax.errors import UserError
from andrea_jax.interventions import KINDS, Task, edits
from andrea_jax.interventions.damage import answers, masks
from andrea_jax.interventions.kinds import donors

SHOWN = [(0, 1), (0, 4), (1, 5)]  # compared with the oracle; group 2: heads 4 and 5 read kv head 2


def run(kind: str, task: Task = TASK, config: Model = CONFIG, params: dict = PARAMS, **settings) -> np.ndarray:
    return answers(config, params, task, EACH, kind, backend="reference", seed=3, **settings)


@pytest.fixture(scope="module")
def traced() -> list[int]:
    """One entry each time that the program of all edits was traced."""
    return []


@pytest.fixture(scope="module")
def found(traced: list[int]) -> dict[str, np.ndarray]:
    """kind -> answers of the intact model and without each head, [1 + head, sequence, behaviour, 2]."""
    real = edits.bind
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edits, "bind", lambda *a, **k: traced.append(1) or real(*a, **k))
        return {kind: run(kind) for kind in KINDS}


@pytest.fixture(scope="module")
def intact() -> list[tuple[np.ndarray, list[Inner]]]:
    return [forward(CONFIG, PARAMS, row[:-1]) for row in TOKENS]


def by_hand(kind: str, sequence: int, place: tuple[int, int], intact: list) -> np.ndarray:
    """Logits [seq, vocab] of one sequence without the head at `place`."""
    others = [i for i in range(5) if i != sequence]
    giver = donors(5, 3)[sequence]

    def edit(layer: int, inner: Inner) -> Inner:
        if kind == "pattern_preserving":
            inner = with_pattern(inner.v, intact[sequence][1][layer].pattern)
        if layer != place[0]:
            return inner
        z, head = inner.z.copy(), place[1]
        z[head] = {
            "zero": np.zeros_like(z[head]),
            "pattern_preserving": np.zeros_like(z[head]),
            "mean": np.mean([intact[i][1][layer].z[head] for i in others], axis=0),
            "resample": intact[giver][1][layer].z[head],
            "redirect_to_bos": np.broadcast_to(inner.v[head, 0], z[head].shape),
        }[kind]
        return inner._replace(z=z)

    return forward(CONFIG, PARAMS, TOKENS[sequence, :-1], edit)[0]


def summed(logits: np.ndarray, sequence: int) -> np.ndarray:
    """What `Answers` sums, [behaviour, 2]."""
    targets = TOKENS[sequence, 1:]
    each = np.stack([losses(logits, targets), logits.argmax(axis=1) == targets], axis=1)
    return np.stack([each[asked[sequence]].sum(axis=0) for asked in TASK.asked.values()])


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_guesses_without_a_head_are_those_of_the_equations(kind: str, found, intact):
    for head in SHOWN:
        for sequence in (0, 3):
            expected = summed(by_hand(kind, sequence, head, intact), sequence)
            np.testing.assert_allclose(found[kind][1 + HEADS.index(head), sequence], expected, rtol=2e-4, atol=2e-4)


def test_every_kind_starts_from_the_same_intact_model_and_changes_it(found, intact):
    expected = np.stack([summed(intact[i][0], i) for i in range(5)])
    for kind in KINDS:
        np.testing.assert_allclose(found[kind][0], expected, rtol=2e-4, atol=2e-4)
        assert np.abs(found[kind][1:] - found[kind][:1]).max(axis=(1, 2, 3)).min() > 1e-3
    apart = [np.abs(found[a] - found[b])[1:].max() for a in KINDS for b in KINDS if a < b]
    assert min(apart) > 1e-2  # no two kinds are the same thing


def test_zeroing_a_head_is_zeroing_the_rows_of_w_o_that_belong_to_it(found):
    for layer, head in ((0, 4), (1, 2)):
        without = jax.tree.map(jnp.array, PARAMS)
        weights = without["layers"][str(layer)]["attention"]["projection"]
        weights["W_O"] = weights["W_O"].at[8 * head : 8 * (head + 1)].set(0)  # fused, head_dim 8
        intact = run("zero", params=without)[0]
        np.testing.assert_allclose(found["zero"][1 + HEADS.index((layer, head))], intact, rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_both_projections_lose_the_same(found):
    for kind in KINDS:
        config, params = convert(CONFIG, PARAMS, "per_head")
        other = run(kind, config=config, params=params)
        np.testing.assert_allclose(other, found[kind], rtol=2e-5, atol=2e-5)


def test_the_mean_is_over_other_sequences_so_that_no_sequence_hears_of_its_own_future():
    changed = TOKENS.copy()
    changed[2, 11:] = (changed[2, 11:] + 5) % 18 + 1  # the end of sequence 2
    early = np.arange(13)[None].repeat(5, axis=0) < 10  # predictions of tokens 1 to 10
    tasks = [Task(tokens, {"early": early, "late": ~early}) for tokens in (TOKENS, changed)]
    here, there = (run("mean", task) for task in tasks)
    assert np.array_equal(here[:, 2, 0], there[:, 2, 0])  # its own early losses, bit for bit
    assert not np.allclose(here[1:, 3, 1], there[1:, 3, 1], atol=1e-6)  # it is one of the others of sequence 3


def test_a_sequence_is_never_its_own_donor_and_every_one_gives_once():
    for n in (2, 5, 12):
        donor = donors(n, 0)
        assert sorted(donor) == list(range(n)) and not (donor == np.arange(n)).any()


def test_a_kept_pattern_shows_what_a_head_does_through_values_alone(found):
    last = slice(1 + HEADS.index((1, 0)), None)  # no layer above whose patterns could change
    np.testing.assert_allclose(found["pattern_preserving"][last], found["zero"][last], rtol=1e-5, atol=1e-5)
    first = slice(1, 1 + HEADS.index((1, 0)))
    assert np.abs(found["pattern_preserving"][first] - found["zero"][first]).max() > 1e-2


@pytest.mark.slow
def test_calls_of_any_shape_give_the_same_numbers(found, monkeypatch):
    monkeypatch.setattr(edits, "TOKENS_ON_CPU", 13 * 8)  # two sequences × four edits a call, the last calls padded
    told: list[tuple[int, int]] = []
    for kind in ("mean", "resample"):
        small = run(kind, progress=lambda *at: told.append(at))
        np.testing.assert_allclose(small, found[kind], rtol=1e-5, atol=1e-5)
    assert told[-1] == (13 * 5, 13 * 5)


def test_all_heads_and_all_kinds_share_one_compiled_program(found, traced):
    assert len(found) == 5 and len(traced) <= 1  # 0 where another file's tests came first


def test_unknown_kinds_and_lonely_sequences_are_refused():
    with pytest.raises(UserError, match=r'kind = "means".*did you mean "mean"'):
        run("means")
    with pytest.raises(UserError, match="needs two sequences"):
        run("mean", TASK.on(slice(0, 1)))
    with pytest.raises(UserError, match=r"head 1\.6: there is none in a model of 2 layers × 6 heads"):
        masks(CONFIG, [[(1, 6)]])
