"""What a step waits for: the shares of time of kernels and of communication, from a profile of the devices.

communicating   the device moves data between devices, whatever else it does
exposed         it does that and computes nothing
idle            it does nothing at all
"""

import statistics
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import jax
import numpy as np

from andrea_jax.benchmarks.programs import Row
from andrea_jax.benchmarks.timing import why

type Spans = Sequence[tuple[float, float]]  # (begin, end)


def shares(work: Callable[[AbstractContextManager], object]) -> Row:
    """{"communicating", "exposed", "idle"}: shares of the time that `work(profile)` spends within `profile`, mean over
    the devices; None on devices that a profile says nothing of, as CPUs."""
    with tempfile.TemporaryDirectory() as folder:
        work(jax.profiler.trace(folder))
        (file,) = Path(folder).rglob("*.xplane.pb")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the reader's own types
            planes = jax.profiler.ProfileData.from_file(str(file)).planes
            found = [_of_events(_events(plane)) for plane in planes if plane.name.startswith("/device:GPU")]
    found = [one for one in found if one]
    names = ("communicating", "exposed", "idle")
    return {name: statistics.fmean(one[name] for one in found) if found else None for name in names}


def shares_or_why(work: Callable[[AbstractContextManager], object]) -> Row:
    """The shares, or "no_profile": why this device cannot be profiled."""
    try:
        return shares(work)
    except Exception as error:  # whatever a profiler raises: the times beside it are measured already
        return {"no_profile": why(error)}


def _events(plane) -> list[tuple[str, float, float]]:
    """(name, begin, end) of every kernel and copy on the streams of a device."""
    return [
        (event.name, event.start_ns, event.start_ns + event.duration_ns)
        for line in plane.lines
        if line.name.startswith("Stream")  # other lines repeat the same by module and by operation
        for event in line.events
    ]


def _of_events(events: list[tuple[str, float, float]]) -> Row:
    if not events:
        return {}
    talk = [(begin, end) for name, begin, end in events if "nccl" in name.lower()]
    work = [(begin, end) for name, begin, end in events if "nccl" not in name.lower()]
    whole = max(end for _, _, end in events) - min(begin for _, begin, _ in events)
    busy, working = covered([*talk, *work]), covered(work)
    return {"communicating": covered(talk) / whole, "exposed": (busy - working) / whole, "idle": 1 - busy / whole}


def covered(spans: Spans) -> float:
    """The length of the union of spans."""
    total, reached = 0.0, -np.inf
    for begin, end in sorted(spans):
        total += max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
    return total
