"""Say what is going on once something has taken longer than two seconds; and say it anywhere."""

import sys
import time

PATIENCE = 2.0  # seconds before the first word


def print_anywhere():
    """Let a terminal that lacks a letter show ? for it, where print() would raise an error."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")


class Progress:
    """``progress(what, done, total)``: a line that replaces itself, on a terminal or in a notebook.

    Use as a context manager, so that the line is gone when the result arrives.
    """

    def __init__(self):
        self._start = time.monotonic()
        self._shown = False
        self._notebook = _in_notebook()

    def __call__(self, what, done, total):
        if time.monotonic() - self._start < PATIENCE:
            return
        line = f"{what}: {done} of {total}" if total > 1 else what
        if self._notebook:
            from IPython.display import clear_output

            clear_output(wait=True)
            print(line)
        elif sys.stderr.isatty():
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
        elif not self._shown or done == total:  # a log file gets few lines
            print(line, file=sys.stderr, flush=True)
        self._shown = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._shown and self._notebook:
            from IPython.display import clear_output

            clear_output(wait=True)
        elif self._shown and sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _in_notebook():
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return type(shell).__name__ == "ZMQInteractiveShell" or "google.colab" in sys.modules
