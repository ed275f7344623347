"""What kernels print: heard up to a limit, and a line that says how much was not.

A GPU keeps the last megabyte or so of what a launch prints. A reader wants the first lines, and of
a kernel that runs many times, in a check of all cases say, the first lines of them all.
"""

import threading
from contextlib import contextmanager

LIMIT = 16 * 1024  # characters

_lock = threading.Lock()
_now = None  # the _Heard whose limit holds now, for all threads of this process


class _Heard:
    def __init__(self, limit):
        self.left, self.cut, self.lines = limit, 0, 0
        self.users = 0

    def hear(self, text, cut, lines):
        shown = "" if self.cut else text[:self.left]  # nothing after a gap
        if len(shown) < len(text) and "\n" in shown:
            shown = shown[:shown.rindex("\n") + 1]  # whole lines
        rest = text[len(shown):]
        if shown:
            print(shown, end="", flush=True)
        self.left -= len(shown)
        self.cut += len(rest) + cut
        self.lines += rest.count("\n") + lines

    def end(self):
        lines = f"{self.lines:,} more lines, " if self.lines else ""
        if self.cut:
            print(f"({lines}{self.cut:,} characters that kernels printed are not shown)",
                  flush=True)


@contextmanager
def limited(limit=LIMIT):
    """Show at most ``limit`` characters of all that kernels print within; then say what was cut.

    Within another one, the outer limit holds.
    """
    global _now
    with _lock:
        _now = _now or _Heard(limit)
        _now.users += 1
    try:
        yield
    finally:
        with _lock:
            _now.users -= 1
            if not _now.users:
                _now.end()
                _now = None


def hear(text, cut=0, lines=0):
    """Print what a kernel printed; ``cut`` characters and ``lines`` had been left out of it."""
    if not text and not cut:
        return
    with limited(), _lock:
        _now.hear(text, cut, lines)
