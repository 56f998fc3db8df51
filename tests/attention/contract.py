"""What every attention backend promises. A backend's test class inherits `AttentionContract` and sets its attributes:

    class TestMosaic(AttentionContract):
        backend = "mosaic"

A class whose backend cannot run on this machine's default device is skipped with the backend's own reason.
"""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from andrea_jax.attention import BACKENDS, attention, attention_fused
from andrea_jax.attention.backends import Call

TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}  # relative to an array's largest number, or to 1
NAMES = ("z", "lse", "entropy", "dq", "dk", "dv")


def with_gradients(forward):
    """`forward`(q, k, v) and its vjp: (q, k, v, cotangents of z, lse, entropy) -> the six arrays of `NAMES`."""

    def run(q, k, v, *cotangents):
        outputs, pull_back = jax.vjp(forward, q, k, v)
        return *outputs, *pull_back(cotangents)

    return run


@cache
def compiled(backend: str, variant: str, causal: bool, scale: float | None, moved: bool):
    """The jitted `with_gradients`, taking q_offset (where `moved`) and kv_length too; tests that ask alike share it."""

    def run(q_offset, kv_length, *inputs):
        options = {"causal": causal, "scale": scale, "q_offset": q_offset if moved else 0, "kv_length": kv_length}
        return with_gradients(partial(attention, backend=backend, entropy=True, **options))(*inputs)

    return jax.jit(run)


def inputs_of(case: oracle.Case, dtype: str) -> list[jax.Array]:
    rows = [jnp.asarray(x, "float32") for x in (case.dlse, case.dentropy)]
    return [*(jnp.asarray(x, dtype) for x in (case.q, case.k, case.v, case.dz)), *rows]


class AttentionContract:
    backend: str
    variant = ""  # tells apart two classes of one backend that compile different code
    dtype = "float32"  # of the inputs wherever a test is not about dtypes
    other_dtypes: tuple[str, ...] = ("bfloat16",)
    any_q_offset = True  # can begin at another position than 0, known only at run time
    deterministic_gradients = True
    same_bits_with_entropy = True

    @pytest.fixture
    def surroundings(self):
        """What a backend's test class sets up around each test: an interpreter, say."""
        return

    @pytest.fixture(autouse=True)
    def _on_a_device_that_can_run_it(self, surroundings):
        call = Call.of(jnp.zeros((1, 1, 1, 16), self.dtype), causal=True, q_offset=0)
        reason = {backend.name: backend for backend in BACKENDS}[self.backend].why_not(call)
        if reason is not None:
            pytest.skip(f'"{self.backend}" {reason}')
        # on a GPU float32 matmuls would otherwise be TF32
        with jax.default_matmul_precision("highest"), jax.numpy_rank_promotion("raise"):
            yield

    def draw(self, *sizes, **options) -> oracle.Case:
        return oracle.draw(*sizes, **{"dtype": self.dtype, **options})

    def run(self, case, *, causal=True, scale=None, q_offset=None, kv_length=None, dtype=None) -> dict[str, jax.Array]:
        dtype = dtype or self.dtype
        if q_offset is not None and not self.any_q_offset:
            pytest.skip(f'"{self.backend}" begins at position 0 only')
        lengths = None if kv_length is None else jnp.asarray(kv_length, "int32")
        function = compiled(self.backend, self.variant, causal, scale, q_offset is not None)
        return dict(zip(NAMES, function(jnp.int32(q_offset or 0), lengths, *inputs_of(case, dtype)), strict=True))

    def check(self, case, *, tolerance=None, dtype=None, **options) -> dict[str, jax.Array]:
        got = self.run(case, dtype=dtype, **options)
        options["q_offset"] = options.get("q_offset") or 0
        for name, want in oracle.attention(case, **options).items():
            seen = np.abs(want[np.isfinite(want)])
            # rows are float32 whatever the inputs are: an entropy needs an lse that is not rounded to bfloat16
            exactness = "float32" if name in ("lse", "entropy") else dtype or self.dtype
            allowed = (tolerance or TOLERANCE[exactness]) * max(1.0, seen.max(initial=0.0))
            np.testing.assert_allclose(np.asarray(got[name], float), want, rtol=0, atol=allowed, err_msg=name)
        return got

    # -- against float64 -------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("length", [1, 2, 17, 64, 127, 192])
    def test_values_and_gradients_equal_float64(self, length):
        self.check(self.draw(length))

    @pytest.mark.slow
    @pytest.mark.parametrize("length", [704, 1000])
    def test_values_and_gradients_equal_float64_on_long_sequences(self, length):
        self.check(self.draw(length, batch=1, n_head=2))

    @pytest.mark.parametrize("head_dim", [24, 72])
    def test_any_multiple_of_eight_is_a_head_dim(self, head_dim):
        self.check(self.draw(37, batch=1, head_dim=head_dim))

    def test_without_a_causal_mask_every_query_sees_every_key(self):
        self.check(self.draw(29, 53), causal=False)

    @pytest.mark.parametrize("n_query, n_key", [(29, 53), (53, 29)])
    def test_positions_count_from_the_first_key_whatever_the_lengths(self, n_query, n_key):
        self.check(self.draw(n_query, n_key))

    def test_groups_of_query_heads_share_a_key_value_head(self):
        self.check(self.draw(31, n_head=6, n_kv_head=2))

    def test_scale_multiplies_the_scores(self):
        self.check(self.draw(17), scale=0.7)

    def test_other_dtypes_come_back_in_their_dtype_with_float32_rows(self):
        for dtype in self.other_dtypes:
            got = self.check(self.draw(67, dtype=dtype), dtype=dtype)
            assert {name: got[name].dtype.name for name in NAMES} == {
                **dict.fromkeys(("z", "dq", "dk", "dv"), dtype),
                **dict.fromkeys(("lse", "entropy"), "float32"),
            }

    # -- rows that see little or nothing ---------------------------------------------------------------------------

    @pytest.mark.parametrize("causal", [True, False])
    def test_keys_beyond_kv_length_do_not_exist(self, causal):
        case = self.draw(19, 41, batch=4)
        got = self.check(case, causal=causal, kv_length=np.array([41, 0, 7, 26]))
        assert np.isneginf(got["lse"][1]).all()
        for name in ("z", "entropy", "dq", "dk", "dv"):
            assert not np.any(got[name][1]), f"{name} of a sequence without keys is not exactly 0"
        assert not np.any(got["dk"][2, 7:]) and not np.any(got["dv"][2, 7:])

    def test_rows_before_the_first_key_are_empty(self):
        got = self.check(self.draw(19, 23), q_offset=-5)
        assert np.isneginf(got["lse"][:, :, :5]).all() and np.isfinite(got["lse"][:, :, 5:]).all()
        assert not np.any(got["z"][:, :5]) and not np.any(got["dq"][:, :5])

    def test_later_positions_see_earlier_keys(self):
        self.check(self.draw(19, 43), q_offset=11)

    def test_decoding_one_query_at_a_time_equals_the_full_call(self):
        full = self.run(self.draw(17))
        case = self.draw(17)
        for i in (0, 7, 16):
            one = replace(case, q=case.q[:, [i]], dz=case.dz[:, [i]], dlse=case.dlse[..., [i]])
            one = replace(one, dentropy=case.dentropy[..., [i]])
            got = self.run(one, q_offset=i, kv_length=np.full(2, i + 1))
            for name, axis in (("z", 1), ("lse", 2), ("entropy", 2), ("dq", 1)):
                want = np.take(np.asarray(full[name], float), [i], axis=axis)
                np.testing.assert_allclose(np.asarray(got[name], float), want, atol=2 * TOLERANCE[self.dtype])

    # -- hard numbers ----------------------------------------------------------------------------------------------

    def test_scores_of_ten_thousand_stay_finite_and_right(self):
        case = self.draw(17)
        case = replace(case, q=case.q * 128, k=case.k * 128)  # a power of two: exact in every dtype
        assert np.abs(oracle.attention(case)["lse"]).max() > 1e4
        self.check(case, tolerance=max(3e-3, TOLERANCE[self.dtype]))  # float32 knows such a score to 1e-3

    @pytest.mark.parametrize("length", [64, 192])
    def test_rows_whose_exponentials_all_underflow_have_finite_gradients(self, length):
        # cuDNN with a mask tensor: nan in dq at T % 128 == 64 where lse < −88.7 (pytorch/pytorch#196678)
        case = self.draw(length)
        q, k = case.q.copy(), case.k.copy()
        q[..., 0], k[..., 0] = 32.0, -32.0
        case = replace(case, q=q, k=k)
        assert oracle.attention(case)["lse"].max() < -200
        self.check(case, tolerance=max(5e-4, TOLERANCE[self.dtype]))

    def test_zero_cotangents_give_exactly_zero_gradients(self):
        case = self.draw(17)
        case = replace(case, dz=0 * case.dz, dlse=0 * case.dlse, dentropy=0 * case.dentropy)
        got = self.run(case)
        assert not any(np.any(got[name]) for name in ("dq", "dk", "dv"))

    @pytest.mark.parametrize("only", ["dz", "dlse", "dentropy"])
    def test_each_cotangent_alone_gives_its_gradient(self, only):
        case = self.draw(17)
        others = {name: 0 * getattr(case, name) for name in ("dz", "dlse", "dentropy") if name != only}
        self.check(replace(case, **others))

    # -- structure -------------------------------------------------------------------------------------------------

    def test_no_gradient_reaches_the_future(self):
        case, i = self.draw(17), 6
        past = np.arange(17) <= i
        dz = case.dz * past[:, None, None]
        got = self.run(replace(case, dz=dz, dlse=case.dlse * past, dentropy=case.dentropy * past))
        for name in ("dk", "dv"):
            size = np.abs(np.asarray(got[name], float)).max(axis=(0, 2, 3))
            assert (size[: i + 1] > 0).all() and not size[i + 1 :].any(), name

    def test_repeated_runs_are_bitwise_equal(self):
        case = self.draw(192)
        first, second = self.run(case), self.run(case)
        for name in NAMES if self.deterministic_gradients else NAMES[:3]:
            np.testing.assert_array_equal(np.asarray(first[name]), np.asarray(second[name]), err_msg=name)

    def test_asking_for_the_entropy_changes_no_bit(self):
        q, k, v = inputs_of(self.draw(37), self.dtype)[:3]
        plain = jax.jit(lambda q, k, v: attention(q, k, v, backend=self.backend))(q, k, v)
        asked = jax.jit(lambda q, k, v: attention(q, k, v, backend=self.backend, entropy=True))(q, k, v)
        for got, want in zip(asked[:2], plain, strict=True):
            allowed = 0 if self.same_bits_with_entropy else 1e-6
            np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), rtol=allowed, atol=allowed)

    def test_vmap_equals_a_loop(self):
        cases = [self.draw(17, seed=seed) for seed in range(3)]
        stacked = [jnp.stack(arrays) for arrays in zip(*(inputs_of(case, self.dtype) for case in cases), strict=True)]
        forward = partial(attention, backend=self.backend, entropy=True)
        mapped = jax.jit(jax.vmap(with_gradients(forward)))(*stacked)
        for i, case in enumerate(cases):
            self.same([x[i] for x in mapped], self.run(case))

    def test_checkpoint_changes_no_gradient(self):
        case = self.draw(17)
        forward = jax.checkpoint(partial(attention, backend=self.backend, entropy=True))
        self.same(jax.jit(with_gradients(forward))(*inputs_of(case, self.dtype)), self.run(case))

    # 72 positions and head_dim 16 are read in place by every backend that can; 37 and 24 need padding in some
    @pytest.mark.parametrize("length, head_dim, causal", [(72, 16, True), (37, 24, False)])
    def test_parts_of_one_array_give_what_they_give_apart(self, length, head_dim, causal):
        case = self.draw(length, batch=1, n_head=4, n_kv_head=2, head_dim=head_dim)
        q, k, v, *cotangents = inputs_of(case, self.dtype)

        def run(qkv, *cotangents):
            forward = partial(attention_fused, n_head=4, backend=self.backend, causal=causal, entropy=True)
            outputs, pull_back = jax.vjp(forward, qkv)
            return *outputs, *jnp.split(pull_back(cotangents)[0], [4, 6], axis=2)

        self.same(jax.jit(run)(jnp.concatenate([q, k, v], axis=2), *cotangents), self.run(case, causal=causal))

    def same(self, got, want: dict[str, jax.Array]) -> None:
        for x, (name, y) in zip(got, want.items(), strict=True):
            x, y = np.asarray(x, float), np.asarray(y, float)
            allowed = TOLERANCE[self.dtype] * np.abs(y).max()
            np.testing.assert_allclose(x, y, rtol=0, atol=allowed, err_msg=name)
