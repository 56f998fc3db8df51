"""What the C library does with memory that a training step gives back.

XLA on a CPU asks for all of a step's intermediate arrays at once and frees them at its end. glibc returns a piece of
more than 32 MiB to the kernel each time, and the next step pays for every page again: 18,825 page faults and 41 of
130 ms a step of 77 MB (docs/log.md).
"""

import ctypes
import platform

# the options of glibc's mallopt (malloc.h), and what they are set to
_KEEP = {
    -4: 0,  # M_MMAP_MAX: no piece lies outside the heap, however large
    -1: -1,  # M_TRIM_THRESHOLD: the end of the heap is never given back
    -8: 1,  # M_ARENA_MAX: threads share that heap; a thread's own ends at 64 MiB
}


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory for the next step, in this process; to be called before threads are started.

    The process then holds what it once used until it ends. Without glibc it does nothing.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in _KEEP.items():
            mallopt(option, value)
