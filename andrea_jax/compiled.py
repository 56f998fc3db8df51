"""What a compiled program does, read from its text."""

import re

_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_DOT = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = \S+ dot\(")
# cuBLAS, cuBLASLt, oneDNN, Eigen; "__triton_gemm" and the like are fusions, whose computation holds the dot
_LIBRARY = re.compile(r'custom_call_target="[^"]*(?:gemm|matmul|dot)[^"]*"', re.IGNORECASE)
_CALLS = re.compile(r"\b(?:calls|to_apply|body)=%?([\w.-]+)")


def matmuls(hlo: str) -> int:
    """Matrix products that one run of a compiled program (`Compiled.as_text()`) starts, a batched one counted once.

    Counted from the entry computation through everything it calls: dot instructions, in fusions or outside, and calls
    of a library's product. The body of a loop counts once.
    """
    own: dict[str, int] = {}
    called: dict[str, list[str]] = {}
    entry = name = ""
    for line in hlo.splitlines():
        if start := _COMPUTATION.match(line):
            name = start["name"]
            entry = name if start["entry"] else entry
            own[name], called[name] = 0, []
        elif name:
            own[name] += bool(_DOT.match(line) or _LIBRARY.search(line))
            called[name] += _CALLS.findall(line)

    def count(computation: str) -> int:
        return own[computation] + sum(map(count, called[computation]))

    return count(entry)
