"""Checkpoints come back bit for bit, the right ones are kept, and a half-written one is not there."""

from collections.abc import Callable

import jax
import numpy as np
import pytest

from andrea_jax import model
from andrea_jax.errors import UserError
from andrea_jax.runs import Run
from andrea_jax.training import checkpoints, optimizer
from andrea_jax.training.checkpoints import Checkpoints, State

MakeRun = Callable[..., Run]
NAMES = ("adamw", "sgd", "lion", "muon", "adafactor", "lamb")


def random_state(run: Run, step: int) -> State:
    """Parameters and optimizer state full of random bits, of the right shapes and dtypes."""
    rng = np.random.default_rng(step)
    params = model.initialise(run.experiment.model, step)
    opt_state = optimizer.make(run.experiment.optim, run.experiment.train.steps).init(params)
    filled = jax.tree.map(lambda x: jax.numpy.asarray(rng.normal(size=x.shape) * 9, x.dtype), opt_state)
    return State(step, params, filled, [0.1 + step, 1 / 3])


def assert_bitwise_equal(found: object, expected: object) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def save(run: Run, steps: list[int], losses: dict[int, float] | None = None) -> None:
    with Checkpoints(run) as written:
        for step in steps:
            if losses and step in losses:
                run.append_metrics({"step": step, "eval_loss": losses[step]})
            written.save(random_state(run, step))


@pytest.mark.parametrize("name", NAMES)
def test_the_state_of_every_optimizer_comes_back_bit_for_bit(make_run: MakeRun, name: str):
    run = make_run(name, optim={"name": name})
    optimize = optimizer.make(run.experiment.optim, run.experiment.train.steps)
    with Checkpoints(run) as written:
        assert written.last(optimize) is None
        written.save(random_state(run, 5))
    with Checkpoints(run) as written:
        found = written.last(optimize)
    expected = random_state(run, 5)
    assert found is not None
    assert (found.step, found.unlogged) == (5, expected.unlogged)
    assert_bitwise_equal((found.params, found.opt_state), (expected.params, expected.opt_state))


def test_parameters_come_back_without_knowing_the_optimizer(make_run: MakeRun):
    run = make_run("a", optim={"name": "lion"})
    save(run, [3])
    params, step = checkpoints.restore(run, "last")
    assert step == 3
    assert_bitwise_equal(params, random_state(run, 3).params)


def test_arrays_may_be_donated_as_soon_as_save_returns(make_run: MakeRun):
    run = make_run("a")
    expected = jax.tree.map(np.array, random_state(run, 2).params)
    state = random_state(run, 2)
    with Checkpoints(run) as written:
        written.save(state)
        overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), donate_argnums=0)
        jax.block_until_ready(overwrite(state.params))
    assert_bitwise_equal(checkpoints.restore(run, 2)[0], expected)


def test_the_last_and_the_best_are_kept(make_run: MakeRun):
    run = make_run("a")
    save(run, [3, 5, 6, 9, 11], losses={3: 2.0, 5: 1.0, 6: 1.5, 9: 1.0})
    assert checkpoints.steps(run) == [5, 11]  # the earlier of the two equal ones
    assert checkpoints.restore(run, "best")[1] == 5
    assert checkpoints.restore(run, "last")[1] == 11


def test_log_spaced_steps_are_kept_where_asked_for(make_run: MakeRun):
    run = make_run("a", train={"log_spaced_checkpoints": True})
    save(run, [0, 1, 2, 3, 4, 7, 8, 9], losses={7: 1.0})
    assert checkpoints.steps(run) == [0, 1, 2, 4, 7, 8, 9]


def test_a_half_written_checkpoint_is_never_picked_up(make_run: MakeRun):
    run = make_run("a")
    save(run, [3])
    for name in ("9.orbax-checkpoint-tmp", "7.orbax-checkpoint-tmp-1789", "junk"):
        (run.checkpoints / name / "params").mkdir(parents=True)
    assert checkpoints.steps(run) == [3]
    assert checkpoints.restore(run)[1] == 3
    with Checkpoints(run) as written:
        found = written.last(optimizer.make(run.experiment.optim, run.experiment.train.steps))
    assert found is not None
    assert found.step == 3


def test_saving_a_step_twice_keeps_the_first(make_run: MakeRun):
    run = make_run("a")
    save(run, [3])
    with Checkpoints(run) as written:
        state = random_state(run, 4)
        written.save(State(3, state.params, state.opt_state, []))
    assert_bitwise_equal(checkpoints.restore(run, 3)[0], random_state(run, 3).params)


def test_a_checkpoint_that_is_not_there_is_said_with_those_that_are(make_run: MakeRun):
    run = make_run("a", train={"log_spaced_checkpoints": True})
    with pytest.raises(UserError, match="no checkpoint yet"):
        checkpoints.restore(run)
    save(run, [1, 2])
    with pytest.raises(UserError, match="no checkpoint of step 3; it has those of steps 1, 2"):
        checkpoints.restore(run, 3)
    with pytest.raises(UserError, match="no checkpoint was evaluated; it has those of steps 1, 2"):
        checkpoints.restore(run, "best")
    with pytest.raises(UserError, match='step = "lst": must be a number, "last" or "best"'):
        checkpoints.restore(run, "lst")  # pyright: ignore[reportArgumentType]
