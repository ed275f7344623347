"""What the tests of the online-maximum widget share: node, and a page that must stay alone."""

import importlib.util
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from support import missing


def node():
    """The path of node, which runs the widget's arithmetic without a browser."""
    return shutil.which("node") or missing("node is not installed (Debian: apt-get install nodejs)")


def axe_source():
    """The text of axe-core, which a page is asked to run on itself."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None:
        missing("axe-core is not installed (pip install axe-playwright-python)")
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


@contextmanager
def opened(browser, address, **options):
    """A page at ``address``. A request elsewhere is refused and, like a console error, fails."""
    context = browser.new_context(**options)
    context.set_default_timeout(60_000)
    page = context.new_page()
    bad = []

    def gate(route):
        if route.request.url.startswith((address.rsplit("/", 1)[0], "data:", "blob:")):
            return route.continue_()
        bad.append(f"request to {route.request.url}")
        return route.abort()

    page.route("**/*", gate)
    page.on("console", lambda m: bad.append(f"console: {m.text}") if m.type == "error" else None)
    page.on("pageerror", lambda error: bad.append(f"error: {error}"))
    page.goto(address)
    try:
        yield page
    finally:
        context.close()
    assert not bad, bad


def as_float32(x):
    """JSON numbers, and inf and NaN by name, as a float32 array."""
    return np.array(x, dtype=object).astype(np.float64).astype(np.float32)


def ulps(a, b):
    """How many float32 values lie between a and b, element by element; 0 for two NaNs."""
    def order(x):  # float32 bits as integers in the order of the numbers
        bits = x.view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(2**31) - bits, bits)

    both_nan = np.isnan(a) & np.isnan(b)
    return np.where(both_nan, 0, np.abs(order(a) - order(b)))
