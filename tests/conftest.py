"""Shared by the tests: the built book, small books of their own, and a browser."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Begun first, so that no worker is left alone with one of them at the end.
LONGEST = ("test_chapters.py", "test_book.py", "test_colab.py", "test_mutants.py", "test_pages.py")

# Several test files run at once: a BLAS thread more would only wait, and takes a core to do so.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_collection_modifyitems(items):
    order = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


def missing(what):
    """Skip a test for want of `what`; on CI, where everything is installed, fail instead."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}: on CI this must be there")
    pytest.skip(what)


def jupyter_book(book, output, **environment):
    """Build the book in the folder `book` as `make book` does. Returns the finished process."""
    shutil.rmtree(Path(output, "_build/html"), ignore_errors=True)
    shutil.rmtree(Path(output, "_build/.doctrees"), ignore_errors=True)
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build"]
    command += [str(book), "--path-output", str(output), "-W", "-n", "--keep-going"]
    done = subprocess.run(
        command,
        cwd=book,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    done.stdout = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    return done


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The whole book, built once from the working tree; its folder of HTML, and the build's text.

    Chapters are executed afresh, whatever an earlier `make book` has left. The first worker that
    wants the book builds it; the others wait and read the same one. Nobody may change it.
    """
    top = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        top = top.parent  # of all workers of this run
    output, text = top / "book", top / "book.txt"
    with (top / "book.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not text.exists():
            done = jupyter_book(ROOT, output)
            assert done.returncode == 0, done.stdout[-6000:]
            text.write_text(done.stdout, encoding="utf-8")
    return output / "_build/html", text.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def site(built):
    """The folder of the built book's HTML."""
    return built[0]


@pytest.fixture
def small_book(tmp_path):
    """A folder with the book's configuration, extensions and theme, and no chapter yet.

    Returns (folder, build): `build()` builds it and returns the finished process.
    """
    book = tmp_path / "small"
    (book / "book").mkdir(parents=True)
    for name in ("_config.yml", "requirements.txt"):
        shutil.copy(ROOT / name, book)
    for name in ("book/_ext", "book/_static"):
        shutil.copytree(ROOT / name, book / name, ignore=shutil.ignore_patterns("__pycache__"))
    (book / "kernels").mkdir()
    (book / "book/lesson").mkdir()
    (book / "book/index.md").write_text("# A small book\n\nFor a test.\n")
    (book / "book/provenance.md").write_text("# Provenance\n\nFor a test.\n")
    (book / "_toc.yml").write_text(
        "format: jb-book\nroot: book/index\nchapters: [{file: book/01}, {file: book/provenance}]\n"
    )
    return book, lambda: jupyter_book(book, book)


@pytest.fixture(scope="session")
def browser():
    """The system's Chromium, without a network of its own."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        missing("no Chromium on this machine (Debian: apt-get install chromium)")
    flags = ["--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    flags += ["--disable-sync", "--no-first-run", "--force-device-scale-factor=1"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chromium's sandbox refuses root
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=flags)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def server(site):
    """The built book as a web server gives it: compressed, with validators. Returns its address."""
    from webserver import serve

    httpd = serve(site)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture(scope="session")
def emulated():
    """The emulated backend; its tests need a C++ compiler."""
    from lesson import backend, host

    ready, reason = host.available()
    if not ready:
        missing(reason)
    return backend.choose("emulated")
