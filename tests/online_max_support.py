"""What the tests of the online-maximum widget share: tools found or refused, a page, a browser."""

import functools
import http.server
import importlib.util
import os
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
WIDGET = TESTS.parent / "book" / "lesson" / "online_max"
CHROMIUM_ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking",
                 "--disable-component-update", "--disable-sync"]


def need(found, what):
    """``found``, or a skip that says what is missing; in CI nothing may be missing."""
    if found:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing, and CI must run this test")
    pytest.skip(f"{what} is not installed here")


def node():
    """The path of node, which runs the widget's arithmetic without a browser."""
    return need(shutil.which("node"), "node")


def need_module(name):
    """Skip (in CI: fail) where the Python package ``name`` is missing."""
    return need(importlib.util.find_spec(name), f"the Python package {name}")


@contextmanager
def chromium():
    """The system's Chromium, driven by playwright."""
    need_module("playwright")
    path = need(shutil.which("chromium") or shutil.which("google-chrome"), "Chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=path, args=CHROMIUM_ARGS)
        try:
            yield browser
        finally:
            browser.close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@contextmanager
def served(folder):
    """Serve ``folder`` on this machine alone; gives the address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def opened(browser, address, local=None, **options):
    """A page at ``address``. A request elsewhere is refused and, like a console error, fails."""
    local = local or address.rsplit("/", 1)[0]
    context = browser.new_context(**options)
    context.set_default_timeout(10_000)
    page = context.new_page()
    bad = []

    def gate(route):
        if route.request.url.startswith((local, "data:", "blob:")):
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
