"""What benchmarks say, in sentences: the verdicts on the lesson's claims, and the titles of the figures.

Rows are those of `andrea_jax.benchmarks`; one without a time has a "reason". Every sentence is computed from the rows
and as ready to say that a claim is false as that it is true. A claim about time is judged over all sizes: true or not
where every size says so by more than `NOISE`, else true at some sizes only.
"""

from collections.abc import Sequence

from andrea_jax.plots.benchmark_rows import (
    SHAPE,
    Rows,
    by,
    column,
    distinct,
    fastest,
    listed,
    shape_name,
    span,
    timed,
    where,
)

NOISE = 0.03  # relative differences below say nothing
FORWARD, BOTH, STEP = "forward", "forward + backward", "training step"
ONE, LOOP = "fused, one matrix", "per-head, loop"
XLAS_OWN = 32  # MiB, the threshold of XLA's dot merger where none is asked for
IN_PLACE, CONTIGUOUS, TRANSPOSED, SINGLY = "in place", "contiguous", "transposed first", "a call a head"
FUSED, SLICED = "q|k|v in place", "slices of q|k|v"


def attention(rows: Rows) -> list[str]:
    """The fastest backend against the fastest peer, shape by shape; what entropy costs; what did not run."""
    said = [text for passes in (FORWARD, BOTH) for text in (_against_peers(rows, passes), *_triton(rows, passes))]
    return [*said, *_entropy(rows), *not_run(rows, "contender")]


def attention_title(rows: Rows) -> str:
    counts = []
    for passes in (FORWARD, BOTH):
        pairs = _best_pairs(rows, passes)
        wins = sum(own["us"] <= peer["us"] for own, peer in pairs)
        counts += [f"{wins} of {len(pairs)} shapes {passes}"] if pairs else []
    if not counts:
        return "Attention on this device, no peer beside it"
    return f"The fastest backend is at or under the fastest peer on {listed(counts)}"


def _best_pairs(rows: Rows, passes: str) -> list[tuple[dict, dict]]:
    """The fastest backend and the fastest peer of each shape that has both."""
    pairs = []
    for of_shape in by(where(timed(rows), passes=passes), *SHAPE).values():
        own, peers = (where(of_shape, kind=kind) for kind in ("backend", "peer"))
        pairs += [(fastest(own), fastest(peers))] if own and peers else []
    return pairs


def _against_peers(rows: Rows, passes: str) -> str:
    pairs = _best_pairs(rows, passes)
    if not pairs:
        return f"{passes}: no backend and peer were both timed"
    wins = sum(own["us"] <= peer["us"] for own, peer in pairs)
    each = "; ".join(
        f"{shape_name(own)}: {own['contender']} {own['us']:.0f} µs, {own['us'] / peer['us']:.2f} of {peer['contender']}"
        for own, peer in pairs
    )
    return f"{passes}: the fastest backend is at or under the fastest peer on {wins} of {len(pairs)} shapes ({each})"


def _triton(rows: Rows, passes: str) -> list[str]:
    """Triton against Triton: this project's kernel and the one that torch generates."""
    ratios = []
    for of_shape in by(where(timed(rows), passes=passes), *SHAPE).values():
        own, flex = (where(of_shape, contender=name) for name in ("triton", "torch-flex"))
        ratios += [own[0]["us"] / flex[0]["us"]] if own and flex else []
    return [f"{passes}: triton takes {span(ratios, '.2f')} times as long as torch-flex"] if ratios else []


def _entropy(rows: Rows) -> list[str]:
    cost = [row for row in where(timed(rows), passes="forward + entropy") if row["ratio"] is not None]
    each = [
        f"{name} {span([r - 1 for r in column(of, 'ratio')], '+.0%')}" for (name,), of in by(cost, "contender").items()
    ]
    return [f"entropy changes the forward time by: {', '.join(each)}"] if each else []


def projections(rows: Rows) -> list[str]:
    """C3 from the counts of matmuls, C4 from the rates; then what did not run."""
    measured, said = timed(rows), []
    if measured:
        plain, usual = _merged_up_to(measured, 0), _merged_up_to(measured, XLAS_OWN)
        said += _calls(plain)
        for threshold in sorted(set(column(measured, "threshold_mb")) - {None, 0}):
            said += _merging(where(measured, threshold_mb=threshold), plain, threshold)
        for passes in (FORWARD, BOTH):
            said += _used(where(usual, passes=passes), passes)
            said += _used(where(plain, passes=passes), f"{passes}, nothing merged") if plain != usual else []
    return [*said, *not_run(rows, "form")]


def projections_title(rows: Rows) -> str:
    slow = [1 / row["ratio"] for row in where(_merged_up_to(timed(rows), 0), form=LOOP) if row["ratio"]]
    if not slow:
        return "Projections to q, k and v, form by form"
    return f"A product a head (the loop, nothing merged) reaches {span(slow, '.0%')} of the rate of one fused matrix"


def _merged_up_to(rows: Rows, threshold: int) -> list[dict]:
    """The rows with this threshold; where there are none (a CPU merges nothing), those with the last one's."""
    thresholds = [threshold, *distinct(rows, "threshold_mb")]
    return where(rows, threshold_mb=threshold if threshold in thresholds[1:] else thresholds[-1])


def _calls(rows: Rows) -> list[str]:
    counts = {form: column(of, "matmuls") for (form,), of in by(where(rows, passes=FORWARD), "form").items()}
    if not {ONE, LOOP} <= counts.keys():
        return []
    verdict = "true" if max(counts[ONE]) < min(counts[LOOP]) else "NOT true"
    each = ", ".join(f"{form} {span(n, 'd')}" for form, n in counts.items())
    return [f"C3, one call instead of one a head: {verdict} of the compiled programs; matmuls forward: {each}"]


def _merging(rows: Rows, plain: Rows, threshold: int) -> list[str]:
    """What XLA makes of the loop at this threshold."""
    runs, written = ({(row["d_model"], row["tokens"]): row["matmuls"] for row in where(of, form=LOOP, passes=FORWARD)}
                     for of in (rows, plain))  # fmt: skip
    sizes = [size for size in runs if size in written]
    fewer = [size for size in sizes if runs[size] < written[size]]
    found = "as many products as are written, at every size"
    if fewer:
        at = "; ".join(f"d_model {d}, B·T {', '.join(f'{n:,}' for width, n in fewer if width == d)}"
                       for d in dict.fromkeys(d for d, _ in fewer))  # fmt: skip
        counts = [span([of[size] for size in fewer], "d") for of in (runs, written)]
        found = f"{counts[0]} products instead of {counts[1]} at {'every size' if fewer == sizes else at}"
    return [f"C3, with XLA's dot merger at {threshold} MiB the loop over heads runs {found}"] if sizes else []


def _used(rows: Rows, what: str) -> list[str]:
    said = []
    for (form,), of in by([row for row in rows if row["ratio"]], "form").items():
        if form.startswith("per-head"):
            share = [1 / row["ratio"] for row in of]
            verdict = _verdict([s < 1 - NOISE for s in share])
            said.append(
                f"C4, {what}: that per-head matmuls underuse the hardware is {verdict} of {form}: "
                f"{span(share, '.0%')} of the rate of one fused matrix ({span(column(of, 'tflops'), '.3g')} TFLOP/s)"
            )
    return said


def layout(rows: Rows) -> list[str]:
    """C11 from the times of arrangements, C12 from launches and grids; then what did not run."""
    arranged, said = where(timed(rows), question="layout"), []
    for (backend, passes), of in by(arranged, "backend", "passes").items():
        said += [*_transposing(of, f"{backend}, {passes}"), *_slicing(of, f"{backend}, {passes}")]
    counted = [row for row in where(rows, question="launches", variant=IN_PLACE) if row["reason"] is None]
    said += [_launches(of, backend) for (backend,), of in by(counted, "backend").items()]
    said += [f"C11: transposing q, k and v alone takes {row['us']:.0f} µs at {shape_name(row)} ({row['gb_s']:.0f} GB/s)"
             for row in where(timed(rows), question="transposes")]  # fmt: skip
    singly = [row for row in where(arranged, variant=SINGLY, passes=FORWARD) if row["ratio"]]
    for (backend,), of in by(singly, "backend").items():
        said.append(
            f"C12, {backend}, forward: a call for each head takes {span(column(of, 'ratio'), '.2f')} times as long"
        )
    for (backend, passes), of in by(where(timed(rows), question="grid"), "backend", "passes").items():
        each = [f"{name} {span(column(it, 'ratio'), '.2f')}" for (name,), it in by(of, "variant").items()]
        said.append(f"C12, {backend}, {passes}, time of each grid over that of the first: {', '.join(each)}")
    return [*said, *not_run(rows, "backend")]


def layout_title(rows: Rows) -> str:
    measured = where(timed(rows), question="layout", passes=FORWARD)
    in_place = where(measured, variant=IN_PLACE)
    backend = fastest(in_place)["backend"] if in_place else None
    slow = [row["ratio"] for row in where(measured, variant=TRANSPOSED, backend=backend) if row["ratio"]]
    if not slow:
        return "Heads read in place, contiguous, transposed first"
    return f"Transposing first takes {span(slow, '.2f')} times as long as reading heads in place ({backend}, forward)"


def _transposing(rows: Rows, where_from: str) -> list[str]:
    ratios = {variant: column(of, "ratio") for (variant,), of in by([r for r in rows if r["ratio"]], "variant").items()}
    if TRANSPOSED not in ratios:
        return []
    verdict = _verdict([ratio < 1 - NOISE for ratio in ratios[TRANSPOSED]])
    others = [f"{name} {span(of, '.2f')}" for name, of in ratios.items() if name not in (IN_PLACE, TRANSPOSED, SINGLY)]
    beside = f" (beside it: {', '.join(others)})" if others else ""
    return [
        f"C11, {where_from}: that transposing to contiguous heads is faster is {verdict}: it takes "
        f"{span(ratios[TRANSPOSED], '.2f')} times as long as reading heads in place{beside}"
    ]


def _slicing(rows: Rows, where_from: str) -> list[str]:
    pairs = []
    for of in by(rows, *SHAPE).values():
        fused, sliced = where(of, variant=FUSED), where(of, variant=SLICED)
        pairs += [(fused[0], sliced[0])] if fused and sliced else []
    if not pairs:
        return []
    ratios = span([sliced["us"] / fused["us"] for fused, sliced in pairs], ".2f")
    in_place, first = (span(column(of, "launches"), "d") for of in zip(*pairs, strict=True))
    return [
        f"C11, {where_from}, q|k|v in one array: slicing it first takes {ratios} times as long as reading it in place "
        f"({first} launches against {in_place})"
    ]


def _launches(rows: Rows, backend: str) -> str:
    counts = {passes: column(of, "launches") for (passes,), of in by(rows, "passes").items()}
    heads, growth = column(rows, "n_head"), max(max(n) / min(n) for n in counts.values())
    verdict = "true" if growth == 1 else "true but for a few" if growth < 2 else "NOT true"
    each = ", ".join(f"{passes} {span(n, 'd')}" for passes, n in counts.items())
    claim = f"C12, {backend}: that the same launches serve any number of heads is {verdict}"
    return f"{claim}; launches at {span(heads, 'd')} heads: {each}"


def head_dim(rows: Rows) -> list[str]:
    """C13, for every backend and pass the rate of each width over that of 64, and who refuses 72; what did not run."""
    said = []
    for (backend, passes), of in by(timed(rows), "backend", "passes").items():
        rates = {row["head_dim"]: row["tflops"] for row in of}
        said += [_widths(rates, f"{backend}, {passes}")] if 64 in rates and len(rates) > 1 else []
    run_64, run_72 = (distinct(where(timed(rows), head_dim=width), "backend") for width in (64, 72))
    if run_64 and where(rows, head_dim=72):
        refused = [name for name in run_64 if name not in run_72]
        verdict = f"true of {listed(refused)}" if refused else "NOT true: whatever runs 64 runs 72"
        said.append(f"C13, that head_dim 72 cannot run without a fallback: {verdict}")
    return [*said, *not_run(rows, "backend")]


def head_dim_title(rows: Rows) -> str:
    found = []
    for (backend,), of in by(where(timed(rows), passes=FORWARD), "backend").items():
        rates = {row["head_dim"]: row["tflops"] for row in of}
        found += [(rates[64], backend, rates)] if {32, 64} <= rates.keys() else []
    if not found:
        return "What a head's width costs"
    rate, backend, rates = max(found, key=lambda it: it[0])
    odd = f"72 reaches {rates[72] / rate:.0%}" if 72 in rates else "72 did not run"
    return f"head_dim 32 reaches {rates[32] / rate:.0%} of the rate of 64, {odd} ({backend}, attention forward)"


def _widths(rates: dict[int, float], where_from: str) -> str:
    share = {width: rate / rates[64] for width, rate in rates.items() if width != 64}
    verdicts = [f"{width} {_verdict([share[width] < 1 - NOISE])}" for width in (32, 72) if width in share]
    claim = f"that it is slower than 64: {', '.join(verdicts)}; " if verdicts else ""
    each = ", ".join(f"{width} {part:.0%}" for width, part in share.items())
    return f"C13, {where_from}, {claim}rate over that of 64 ({rates[64]:.3g} TFLOP/s): {each}"


def _verdict(for_it: Sequence[bool]) -> str:
    """Of a claim that each size speaks for or does not."""
    if all(for_it):
        return "true"
    return "true at some sizes only" if any(for_it) else "NOT true"


def not_run(rows: Rows, name: str) -> list[str]:
    """A sentence a reason: who did not run."""
    failed = [row for row in rows if row["reason"] is not None]
    return [
        f"not run: {listed(distinct(of, name))} ({len(of)} rows): {reason}"
        for (reason,), of in by(failed, "reason").items()
    ]
