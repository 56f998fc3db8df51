"""Where a compiled program's time goes, by the names that the model gives its parts: read from a profile."""

import re
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import jax

# the five steps of attention (three of them one where W_Q, W_K and W_V lie side by side), and the other parts
FIVE_STEPS = ("W_QKV", "W_Q", "W_K", "W_V", "attention", "W_O")
PARTS = (*FIVE_STEPS, "mlp", "norm", "embed", "unembed", "optimizer")
REST = "rest"
# of a compiler, to profile with: a CUDA graph's kernels carry no names of instructions
NAMED = {"xla_gpu_enable_command_buffer": ""}

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = .*op_name=\"(?P<op>[^\"]*)\"")
_CALLED = re.compile(r"[\w.-]+")


def shares(hlo: str, run: Callable[[], object]) -> dict[str, float]:
    """Part -> its share of the device's busy time while `run()` runs, all together 1.

    hlo: `Compiled.as_text()` of the program that runs. An operation belongs to the innermost part its name lies in; a
    fusion of several operations to that of its result, and an addition to the residual to what is added or "rest".
    """
    lines = [found for line in hlo.splitlines() if (found := _INSTRUCTION.match(line))]
    # a kernel of Pallas may be reported under its own name, which its instruction has last but one in its path
    part_of = {found["op"].split("/")[-2]: part(found["op"]) for found in lines if found["op"].endswith("/pallas_call")}
    part_of |= {found["name"]: part(found["op"]) for found in lines}
    spent: defaultdict[str, float] = defaultdict(float)
    for operation, nanoseconds in profile(run).items():
        spent[part_of.get(operation, REST)] += nanoseconds
    total = sum(spent.values())
    return {name: spent[name] / total for name in (*PARTS, REST) if name in spent}


def part(op_name: str) -> str:
    """ "jit(step)/transpose(jvp(attention))/dot_general" -> "attention"."""
    named = [word for word in _CALLED.findall(op_name) if word in PARTS]
    return named[-1] if named else REST


def profile(run: Callable[[], object]) -> Mapping[str, float]:
    """Instruction -> nanoseconds on the device, over everything that `run()` runs and waits for."""
    spent: defaultdict[str, float] = defaultdict(float)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        (file,) = Path(folder).rglob("*.xplane.pb")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the reader's own types
            for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
                for line in plane.lines:
                    for event in line.events:
                        operation = dict(event.stats).get("hlo_op")
                        if operation is not None and (on_cpu(plane.name) or line.name.startswith("Stream")):
                            spent[str(operation)] += event.duration_ns
    return spent


def on_cpu(plane: str) -> bool:
    return plane == "/host:CPU"
