"""What the tests of the online-maximum widget share: node, and a page that must stay alone."""

import shutil
from contextlib import contextmanager
from pathlib import Path

from conftest import missing

TESTS = Path(__file__).parent


def node():
    """The path of node, which runs the widget's arithmetic without a browser."""
    return shutil.which("node") or missing("node is not installed (Debian: apt-get install nodejs)")


@contextmanager
def opened(browser, address, **options):
    """A page at ``address``. A request elsewhere is refused and, like a console error, fails."""
    context = browser.new_context(**options)
    context.set_default_timeout(10_000)
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
