"""Counting matrix products in the text of compiled programs."""

import jax
import jax.numpy as jnp

from andrea_jax.compiled import collectives, launches, matmuls

# what XLA writes for one NVIDIA GPU, shortened: two cuBLAS calls, one Triton fusion that is called twice
CUDA = """\
HloModule jit_forward, is_scheduled=true, entry_computation_layout={(bf16[64,32]{1,0})->bf16[64,32]{1,0}}

%gemm_fusion_dot.1_computation (parameter_0: bf16[64,32], parameter_1: bf16[32,32]) -> bf16[64,32] {
  %parameter_0 = bf16[64,32]{1,0} parameter(0)
  %parameter_1 = bf16[32,32]{1,0} parameter(1)
  ROOT %dot.9 = bf16[64,32]{1,0} dot(%parameter_0, %parameter_1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%command_buffer (p.0: bf16[64,32], p.1: bf16[32,32]) -> bf16[64,32] {
  %p.0 = bf16[64,32]{1,0} parameter(0)
  %p.1 = bf16[32,32]{1,0} parameter(1)
  %a = bf16[64,32]{1,0} fusion(%p.0, %p.1), kind=kCustom, calls=%gemm_fusion_dot.1_computation, backend_config={"fusion_backend_config":{"kind":"__triton_gemm"}}
  %b = bf16[64,32]{1,0} fusion(%a, %p.1), kind=kCustom, calls=%gemm_fusion_dot.1_computation, backend_config={"fusion_backend_config":{"kind":"__triton_gemm"}}
  %custom-call.3 = (bf16[64,32]{1,0}, s8[4194304]{0}) custom-call(%b, %p.1), custom_call_target="__cublas$gemm", metadata={op_name="jit(forward)/dot_general"}
  ROOT %get-tuple-element.1 = bf16[64,32]{1,0} get-tuple-element(%custom-call.3), index=0
}

%unused_computation (q.0: bf16[64,32], q.1: bf16[32,32]) -> bf16[64,32] {
  %q.0 = bf16[64,32]{1,0} parameter(0)
  %q.1 = bf16[32,32]{1,0} parameter(1)
  ROOT %dot.11 = bf16[64,32]{1,0} dot(%q.0, %q.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main.10 (x.1: bf16[64,32], w.1: bf16[32,32]) -> bf16[64,32] {
  %x.1 = bf16[64,32]{1,0} parameter(0), metadata={op_name="dot(x)"}
  %w.1 = bf16[32,32]{1,0} parameter(1)
  %call = bf16[64,32]{1,0} call(%x.1, %w.1), to_apply=%command_buffer
  %custom-call.4 = (bf16[64,32]{1,0}, s8[4194304]{0}) custom-call(%call, %w.1), custom_call_target="__cublas$lt$matmul"
  %custom-call.5 = bf16[64,32]{1,0} custom-call(%call), custom_call_target="xla.sdy.Sharding"
  ROOT %get-tuple-element.2 = bf16[64,32]{1,0} get-tuple-element(%custom-call.4), index=0
}
"""  # noqa: E501


def test_cublas_calls_and_each_call_of_a_triton_fusion_count_and_what_is_not_called_does_not():
    assert matmuls(CUDA) == 4


def compiled(f, *shapes: tuple[int, ...]) -> str:
    text = jax.jit(f).lower(*(jnp.ones(shape) for shape in shapes)).compile().as_text()
    assert text is not None
    return text


def test_the_products_of_a_program_for_this_machine_are_counted_whether_batched_or_not():
    chain = compiled(lambda x, w: jnp.sin(x @ w) @ w, (67, 29), (29, 29))
    batched = compiled(lambda x, w: jnp.einsum("btk,bkj->btj", x, w), (5, 67, 29), (5, 29, 31))
    nothing = compiled(lambda x: jnp.sin(x) * 2, (67, 29))
    assert [matmuls(text) for text in (chain, batched, nothing)] == [2, 1, 0]


def test_a_product_that_nothing_needs_is_not_in_the_compiled_program():
    assert matmuls(compiled(lambda x, w: (x @ w, x @ w)[0], (67, 29), (29, 29))) == 1


# a loop of a fusion and an asynchronous copy, after one call of a kernel
LOOP = """\
%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %exponential = f32[8]{0} exponential(%p)
  ROOT %negate = f32[8]{0} negate(%exponential)
}

%body (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %state = (s32[], /*index=1*/f32[8]{0}) parameter(0)
  %x = f32[8]{0} get-tuple-element(%state), index=1
  %start = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(%x)
  %done = f32[8]{0} copy-done(%start)
  %made = f32[8]{0} fusion(%done), kind=kLoop, calls=%fused
  ROOT %tuple = (s32[], f32[8]{0}) tuple(%i, %made)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x.1 = f32[8]{0} parameter(0)
  %kernel = (f32[8]{0}, f32[8]{0}) custom-call(%x.1), custom_call_target="mosaic_gpu_v2"
  %first = f32[8]{0} get-tuple-element(%kernel), index=0
  %again = (s32[], f32[8]{0}) while(%start.1), condition=%more, body=%body
  ROOT %out = f32[8]{0} bitcast(%first)
}
"""


def test_launches_are_what_is_handed_to_the_device_with_the_body_of_a_loop_once():
    assert launches(LOOP) == 3
    assert launches(CUDA) == 5  # a, b, and three custom calls, two of them in what a call runs


def test_what_is_not_needed_is_not_launched_and_more_work_is_more_launches():
    one = launches(compiled(lambda x, w: x @ w, (67, 29), (29, 31)))
    two = launches(compiled(lambda x, w: jnp.sort(x @ w), (67, 29), (29, 31)))
    assert launches(compiled(lambda x: x, (67, 29))) <= 1 <= one < two


COLLECTIVES = """\
  %all-reduce.1 = (f32[3,5]{1,0}, bf16[7]{0}) all-reduce(%a, %b), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add
  %ar = f32[] all-reduce-start(%c), channel_id=2, replica_groups={{0,1,2,3,4},{5,6,7,8,9}}, to_apply=%add
  %done = f32[] all-reduce-done(%ar)
  %ag = (bf16[11]{0}, bf16[22]{0}) all-gather-start(%d), replica_groups={{0,1}}, dimensions={0}
  %rs = f32[6]{0} reduce-scatter(%e), replica_groups=mesh['data'=4,'heads'=2] {'data'}, dimensions={0}
  %cp = (f32[13]{0}, f32[13]{0}, u32[], u32[]) collective-permute-start(%f), source_target_pairs={{0,1},{1,0}}
  %x = f32[9]{0} add(%g, %h), metadata={op_name="all-reduce"}
"""

OF_A_GPU = """\
  %ar = ((bf16[6,5]{1,0}), bf16[6,5]{1,0}) all-reduce-start(%a), channel_id=1, replica_groups={{0,1}}, to_apply=%add
  %done = bf16[6,5]{1,0} all-reduce-done(%ar)
  %both = ((f32[3]{0}, f32[7]{0}), (f32[3]{0}, f32[7]{0})) all-reduce-start(%b, %c), replica_groups={{0,1}}, to_apply=%f
  %a2a = ((f32[4,2]{1,0}), f32[4,2]{1,0}) all-to-all-start(%d), replica_groups={{0,1}}, dimensions={1}
  %ag = ((bf16[11]{0}), bf16[22]{0}) all-gather-start(%e), replica_groups={{0,1}}, dimensions={0}
  %rs = ((f32[12]{0}), f32[6]{0}) reduce-scatter-start(%f), replica_groups={{0,1}}, dimensions={0}
"""


def test_collectives_are_counted_with_the_bytes_that_a_ring_sends():
    assert collectives(COLLECTIVES) == {
        "all-reduce": (2, round(2 * 3 / 4 * (60 + 14)) + round(2 * 4 / 5 * 4)),
        "all-gather": (1, 22),  # half of 44 bytes
        "reduce-scatter": (1, 3 * 24),
        "collective-permute": (1, 52),
    }


def test_what_a_gpus_program_starts_and_waits_for_counts_its_results_and_not_its_operands_too():
    assert collectives(OF_A_GPU) == {
        "all-reduce": (2, 60 + 40),
        "all-to-all": (1, 16),
        "all-gather": (1, 22),
        "reduce-scatter": (1, 24),
    }
