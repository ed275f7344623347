"""JupyterLab and Notebook 7 with one notebook in each, in the browser, a Python behind it."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import urllib.request

import pytest

from support import missing

TOKEN = "lesson"
# Module to start -> (page of a notebook, options of its own)
FRONT_ENDS = {
    "jupyterlab": ("lab/tree", ["--LabApp.news_url=None", "--LabApp.check_for_updates_class="
                                "jupyterlab.NeverCheckForUpdate"]),
    "notebook": ("notebooks", ["--JupyterNotebookApp.news_url=None"]),
}


@pytest.fixture(params=FRONT_ENDS)
def front_end(request, tmp_path):
    """A front end with one notebook, of the test file's CELLS: (its server's address, the page)."""
    module = request.param
    if importlib.util.find_spec(module) is None:
        missing(f"{module} is not installed (pip install {module})")
    page, options = FRONT_ENDS[module]
    cells = [{"cell_type": "code", "id": f"cell-{i}", "source": text, "metadata": {}, "outputs": [],
              "execution_count": None} for i, text in enumerate(request.module.CELLS)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    (tmp_path / "walk.ipynb").write_text(json.dumps(
        {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}))
    own = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data",
           "JUPYTER_RUNTIME_DIR": "runtime", "IPYTHONDIR": "ipython"}
    environment = {**os.environ, **{name: str(tmp_path / folder) for name, folder in own.items()}}
    log = tmp_path / "server.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", module, "--no-browser", "--allow-root", "--port=0",
             "--ip=127.0.0.1", f"--IdentityProvider.token={TOKEN}",
             f"--ServerApp.root_dir={tmp_path}", *options],
            env=environment, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        yield _address(server, log), f"{page}/walk.ipynb"
    finally:
        server.terminate()
        server.wait(timeout=20)


def _address(server, log, seconds=180):
    """Wait until the server answers."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        if found:
            try:
                urllib.request.urlopen(f"{found[0]}/api?token={TOKEN}", timeout=5).close()
                return found[0]
            except OSError:
                pass
        time.sleep(0.3)
    raise AssertionError(f"the front end did not start:\n{log.read_text()[-3000:]}")


@pytest.fixture
def notebook(browser, front_end):
    """The notebook in the browser, its kernel ready; nothing outside this machine is asked."""
    address, path = front_end
    context = browser.new_context(viewport={"width": 1280, "height": 1400})
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.route("**/*", lambda route: route.continue_()
               if route.request.url.startswith((address, "data:", "blob:"))
               else route.abort())
    page.goto(f"{address}/{path}?token={TOKEN}")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell .cm-content")
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    end = time.monotonic() + 120
    while time.monotonic() < end and not _connected(address):
        page.wait_for_timeout(200)
    yield page
    context.close()


def _connected(address):
    """Whether the notebook has a kernel, and the browser talks to it."""
    with urllib.request.urlopen(f"{address}/api/sessions?token={TOKEN}", timeout=5) as answer:
        sessions = json.load(answer)
    return any(session["kernel"]["connections"] for session in sessions)


def run(page, i, seconds=180):
    """Run cell ``i`` and wait until it has ended; returns the cell."""
    cell = page.locator(".jp-CodeCell").nth(i)
    prompt = cell.locator(".jp-InputPrompt")
    before = prompt.inner_text()
    end, pressed = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        now = prompt.inner_text()
        if now != before and re.search(r"\d", now):
            return cell
        # A cell run before the kernel is connected is dropped, or answered by a dialog.
        accept = page.locator(".jp-Dialog .jp-mod-accept")
        if accept.count():
            accept.first.click()
            pressed = 0.0
        elif time.monotonic() - pressed > (15 if "*" in now else 4):
            cell.locator(".cm-content").click()
            page.keyboard.press("Shift+Enter")
            pressed = time.monotonic()
        page.wait_for_timeout(100)
    raise AssertionError(f"cell {i} did not run in {seconds} s: {prompt.inner_text()}")
