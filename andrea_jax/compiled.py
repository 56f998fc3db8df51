"""What a compiled program does, read from its text."""

import math
import re

_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_DOT = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = \S+ dot\(")
# cuBLAS, cuBLASLt, oneDNN, Eigen; "__triton_gemm" and the like are fusions, whose computation holds the dot
_LIBRARY = re.compile(r'custom_call_target="[^"]*(?:gemm|matmul|dot)[^"]*"', re.IGNORECASE)
_CALLS = re.compile(r"\b(?:calls|to_apply|body)=%?([\w.-]+)")
_OPCODE = re.compile(r" = .*?\s(?P<name>[a-z][a-z0-9-]*)\(")
# what runs other computations itself: only they are work
_RUNS = {"call": re.compile(r"\bto_apply=%?([\w.-]+)"), "while": re.compile(r"\bbody=%?([\w.-]+)")}
_NO_WORK = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", *_RUNS}


def matmuls(hlo: str) -> int:
    """Matrix products that one run of a compiled program (`Compiled.as_text()`) starts, a batched one counted once.

    Counted from the entry computation through everything it calls: dot instructions, in fusions or outside, and calls
    of a library's product. The body of a loop counts once.
    """
    entry, computations = _computations(hlo)
    own = {name: sum(bool(_DOT.match(x) or _LIBRARY.search(x)) for x in lines) for name, lines in computations.items()}
    called = {name: [it for line in lines for it in _CALLS.findall(line)] for name, lines in computations.items()}

    def count(computation: str) -> int:
        return own[computation] + sum(map(count, called[computation]))

    return count(entry)


def launches(hlo: str) -> int:
    """Pieces of work that one run of a compiled program (`Compiled.as_text()`) hands to the device.

    On a GPU each is a kernel: a fusion, a copy, a call of a kernel or of a library (which may start more than one). The
    body of a loop counts once. On a CPU it is as many calls of compiled loops.
    """
    entry, computations = _computations(hlo)

    def count(computation: str) -> int:
        total = 0
        for line in computations[computation]:
            opcode = found["name"] if (found := _OPCODE.search(line)) else "tuple"
            total += opcode not in _NO_WORK and not opcode.endswith(("-done", "-update"))
            total += sum(map(count, _RUNS[opcode].findall(line))) if opcode in _RUNS else 0
        return total

    return count(entry)


def _computations(hlo: str) -> tuple[str, dict[str, list[str]]]:
    """The entry computation's name, and the lines of every computation."""
    computations: dict[str, list[str]] = {}
    entry = name = ""
    for line in hlo.splitlines():
        if start := _COMPUTATION.match(line):
            name = start["name"]
            entry = name if start["entry"] else entry
            computations[name] = []
        elif name:
            computations[name].append(line)
    return entry, computations


_COLLECTIVE = re.compile(
    r" = (?P<type>.*?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?P<start>-start)?\("
)
# the operands, before the results, of what a GPU's program starts and waits for
_WRAPPED = re.compile(r"^\(\([^()]*\), ")
_ARRAY = re.compile(r"\b(?P<kind>pred|[a-z]+(?P<bits>\d+))\w*\[(?P<shape>[\d,]*)\]")


def collectives(hlo: str) -> dict[str, tuple[int, int]]:
    """Kind -> (how many, bytes that each device sends) of one run of a compiled program, in rings of n devices.

    all-reduce: 2·(n − 1)/n of its array · all-gather, all-to-all: (n − 1)/n of the result · reduce-scatter: n − 1 times
    the result · collective-permute: the array. Those of one number (norms, the loss) count with their 4 bytes.
    """
    found: dict[str, tuple[int, int]] = {}
    for line in hlo.splitlines():
        if not (match := _COLLECTIVE.search(line)):
            continue
        made = _WRAPPED.sub("", match["type"]) if match["start"] else match["type"]
        sizes = [_bytes(array) for array in _ARRAY.finditer(made)]
        if match["start"] and made == match["type"] and match["kind"] in ("all-gather", "collective-permute"):
            # (operands, results, ...)
            arrays = len(re.findall(r"\[[\d,]*\]", match["type"]))
            sizes = sizes[arrays // 2 :] if match["kind"] == "all-gather" else sizes[1:2]
        n, size = _ring(line), sum(sizes)
        part = {"all-reduce": 2 * (n - 1) / n, "reduce-scatter": n - 1, "collective-permute": 1}
        count, sent = found.get(match["kind"], (0, 0))
        found[match["kind"]] = count + 1, sent + round(part.get(match["kind"], (n - 1) / n) * size)
    return found


def _bytes(array: re.Match) -> int:
    numbers = math.prod(int(size) for size in array["shape"].split(",") if size)
    return numbers * (1 if array["kind"] == "pred" else max(int(array["bits"]) // 8, 1))


def _ring(line: str) -> int:
    """How many devices take part together; 2 in a collective-permute, which names pairs."""
    if match := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
        return int(match[1])
    if match := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return len(match[1].split(","))
    if match := re.search(r"replica_groups=mesh\[(?P<sizes>[^\]]*)\] \{(?P<axes>[^}]*)\}", line):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", match["sizes"]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", match["axes"]))
    return 2
