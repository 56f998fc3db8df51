"""Made-up rows that look like a benchmark's on a GPU, for the tests of sentences, tables and figures."""

from andrea_jax.benchmarks.projections import FORMS
from andrea_jax.plots.benchmark_rows import SHAPE

SHAPES = ((32, 1024, 12, 64), (32, 1024, 12, 32), (8, 1024, 12, 72), (16, 2048, 12, 128), (4, 8192, 12, 64),
          (1, 16384, 12, 64))  # fmt: skip
FORWARD = {
    "reference": (9000, 8900, 2400, 17000, None, None),
    "chunked": (6100, 5900, 1700, 9900, 31000, 45000),
    "cudnn": (213, 189, 94, 489, 1015, 990),
    "mosaic": (141, 152, 61, 395, 905, 842),
    "triton": (204, 171, 120, 640, 1490, 1500),
    "jax-xla": (2149, 2102, 482, 4042, 17020, 17642),
    "jax-cudnn": (213, 189, 94, 489, 1015, 990),
    "fa3": (208, 202, 77, 419, 862, 824),
    "tokamax": (225, 189, 113, 476, 1031, 949),
    "torch-cudnn": (158, 156, 68, 411, 955, 958),
    "torch-flash": (246, 178, 108, 698, 1426, 1520),
    "torch-flex": (211, 159, 190, 689, 1587, 1559),
}


def timing(us: float | None, flops: float = 1e11, **more: object) -> dict:
    """A row's columns of time; none where us is None, with a reason."""
    if us is None:
        return {"us": None, "ratio": None, "reason": "needs 77.0 GiB, more than half of the device's 105.0", **more}
    times = {"us": float(us), "fastest_us": 0.98 * us, "slowest_us": 1.05 * us, "tflops": flops / us / 1e6}
    facts = {"launches": 1, "matmuls": 1, "gb_s": 2000.0, "temp_mib": 0.0, "calls": 100, "repeats": 7, "ratio": 1.0}
    return {**times, **facts, "reason": None, **more}


def attention() -> list[dict]:
    """All contenders, shapes and passes; mosaic is under the fastest peer on every shape but the two long ones."""
    rows = []
    for i, shape in enumerate(SHAPES):
        of = dict(zip(SHAPE, shape, strict=True))
        for name, times in FORWARD.items():
            kind = "backend" if name in ("reference", "chunked", "cudnn", "mosaic", "triton") else "peer"
            what = {**of, "kind": kind, "contender": name}
            us = times[i]
            rows.append({**what, "passes": "forward", **timing(us)})
            if kind == "backend":
                rows.append({**what, "passes": "forward + entropy", **timing(us and 1.06 * us, ratio=us and 1.06)})
            rows.append({**what, "passes": "forward + backward", **timing(us and (4.0 + 0.1 * i) * us)})
    return rows


def projections(loop: float = 2.0, thresholds: tuple = (32, 0, 1024)) -> list[dict]:
    """The loop takes `loop` times as long as one matrix; at 32 MiB it is merged below 16,384 tokens."""
    rows = []
    for mb in thresholds:
        for d, n_head in ((384, 12), (768, 12), (1536, 24)):
            for tokens in (8192, 16384, 32768):
                merged = mb == 1024 or (mb == 32 and tokens < 16384)
                counts = (1, 1 if merged else 3, 1 if merged else 3, 3 if merged else 3 * n_head)
                for form, factor, n in zip(FORMS, (1.0, 1.02, 1.01, 1.05 if merged else loop), counts, strict=True):
                    for passes, k in (("forward", 1), ("forward + backward", 3)):
                        flops = k * 6 * tokens * d * d
                        us = factor * (flops / 450e12 * 1e6 + 5)
                        rows.append({"d_model": d, "n_head": n_head, "tokens": tokens, "threshold_mb": mb, "form": form,
                                     "passes": passes, **timing(us, flops, ratio=factor, matmuls=k * n)})  # fmt: skip
    return rows


def layout(transposed: float = 1.45) -> list[dict]:
    """Transposing first takes `transposed` times as long as reading heads in place."""
    factors = {"in place": 1.0, "q|k|v in place": 1.01, "slices of q|k|v": 1.22, "contiguous": 0.98,
               "transposed first": transposed, "a call a head": 3.1}  # fmt: skip
    rows = []
    for backend, us in (("chunked", 6100), ("cudnn", 213), ("mosaic", 141), ("triton", 204)):
        for shape in SHAPES[:1] + SHAPES[3:4]:
            of = {"backend": backend, **dict(zip(SHAPE, shape, strict=True))}
            for passes, k in (("forward", 1), ("forward + backward", 4)):
                rows += [{"question": "layout", **of, "variant": name, "passes": passes, **timing(k * us * f, ratio=f)}
                         for name, f in factors.items()]  # fmt: skip
        for n_head in (1, 3, 12, 24):
            of = {"question": "launches", "backend": backend, **dict(zip(SHAPE, (32, 1024, n_head, 64), strict=True))}
            rows += [{**of, "variant": name, "passes": "forward", "launches": n, "us": None, "reason": None}
                     for name, n in (("in place", 1), ("a call a head", 1 + n_head))]  # fmt: skip
    of = {"question": "transposes", "backend": "none", **dict(zip(SHAPE, SHAPES[0], strict=True))}
    return [*rows, {**of, "variant": "transposes alone", "passes": "forward", **timing(71)}]


def head_dim(narrow: float = 0.6, odd: float | None = 0.97) -> list[dict]:
    """Rates of 32 and of 72 over that of 64; odd None: 72 does not run."""
    share = {32: narrow, 48: 0.85, 64: 1.0, 72: odd, 80: 1.0, 96: 1.1, 128: 1.3}
    rows = []
    for passes, backends in (("forward", ("cudnn", "mosaic")), ("forward + backward", ("cudnn", "mosaic")),
                             ("training step", ("auto",))):  # fmt: skip
        for i, backend in enumerate(backends):
            for width, part in share.items():
                of = {"d_model": 1152, "batch": 16, "seq": 1024, "n_head": 1152 // width, "head_dim": width}
                us = None if part is None else 200 / part * (1 + i)
                rows.append({**of, "backend": backend, "passes": passes, **timing(us)})
    return rows
