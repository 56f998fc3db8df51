"""What computing costs: attention, projections and scoring, timed on this device, each with its verdict on a claim."""

from andrea_jax.benchmarks.attention import bench_attention
from andrea_jax.benchmarks.head_dim import bench_head_dim
from andrea_jax.benchmarks.layout import bench_layout
from andrea_jax.benchmarks.many_devices import bench_mesh
from andrea_jax.benchmarks.projections import bench_projections
from andrea_jax.benchmarks.scoring import bench_scoring
from andrea_jax.benchmarks.train import bench_train

__all__ = [
    "bench_attention",
    "bench_head_dim",
    "bench_layout",
    "bench_mesh",
    "bench_projections",
    "bench_scoring",
    "bench_train",
]
