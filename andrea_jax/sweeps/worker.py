"""python -m andrea_jax.sweeps.worker CORE...: trains the runs whose paths come on stdin, a line each.

Answers each with one line of JSON on stdout, [state, message]. When stdin ends (the sweep is stopped, or gone), the run
in training is saved, and the process ends. Of the system it uses the named cores only.
"""

import json
import os
import queue
import signal
import sys
import threading
from typing import TextIO


def main() -> None:
    if sys.platform == "linux":
        os.sched_setaffinity(0, map(int, sys.argv[1:]))  # XLA makes a thread a core that it may use
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer
    from andrea_jax.plots import messages
    from andrea_jax.sweeps.jobs import work

    messages.show_log()
    paths: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin, paths), daemon=True).start()
    while (path := paths.get()) is not None:
        print(json.dumps(work(path)), file=answers, flush=True)


def _listen(stdin: TextIO, paths: queue.SimpleQueue[str | None]) -> None:
    for line in stdin:
        paths.put(line.rstrip("\n"))
    paths.put(None)
    os.kill(os.getpid(), signal.SIGTERM)  # training saves its run; where nothing trains, this ends the process


if __name__ == "__main__":
    main()
