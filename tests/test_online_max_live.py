"""The online-maximum widget alive: in JupyterLab and in Notebook 7, driven by the browser, with a
Python behind it."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import urllib.request

import pytest
from conftest import ROOT, missing

TOKEN = "online-max"
# Module to start -> (page of a notebook, options of its own)
FRONT_ENDS = {
    "jupyterlab": ("lab/tree", ["--LabApp.news_url=None", "--LabApp.check_for_updates_class="
                                "jupyterlab.NeverCheckForUpdate"]),
    "notebook": ("notebooks", ["--JupyterNotebookApp.news_url=None"]),
}
CELLS = [
    f"import sys; sys.path.insert(0, {str(ROOT / 'book')!r})\n"
    "import lesson\n"
    "w = lesson.OnlineMax()\n"
    "w",
    "w.step = 3; w.fault = 'forget-o'; print('set', w.step)",
    "print('read', w.scores[5], w.step, w.case)",
]


@pytest.fixture(params=FRONT_ENDS)
def front_end(request, tmp_path):
    """A front end with one notebook. Returns (address of its server, path of the page)."""
    module = request.param
    if importlib.util.find_spec(module) is None:
        missing(f"{module} is not installed (pip install {module})")
    page, options = FRONT_ENDS[module]
    cells = [{"cell_type": "code", "id": f"cell-{i}", "source": text, "metadata": {}, "outputs": [],
              "execution_count": None} for i, text in enumerate(CELLS)]
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


def _address(server, log, seconds=60):
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
    context.set_default_timeout(30_000)
    page = context.new_page()
    page.route("**/*", lambda route: route.continue_()
               if route.request.url.startswith((address, "data:", "blob:"))
               else route.abort())
    page.goto(f"{address}/{path}?token={TOKEN}")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell .cm-content")
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    end = time.monotonic() + 30
    while time.monotonic() < end and not _connected(address):
        page.wait_for_timeout(200)
    yield page
    context.close()


def _connected(address):
    """Whether the notebook has a kernel, and the browser talks to it."""
    with urllib.request.urlopen(f"{address}/api/sessions?token={TOKEN}", timeout=5) as answer:
        sessions = json.load(answer)
    return any(session["kernel"]["connections"] for session in sessions)


def run(page, i, seconds=45):
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


def test_python_and_picture_move_each_other(notebook, browser):
    from playwright.sync_api import expect

    output = run(notebook, 0)
    widget = output.locator(".online-max")
    expect(widget.locator(".om-steptext")).to_have_text("8 of 8")
    assert widget.count() == 1  # the live view alone, not the static form beside it
    assert output.locator(".online-max-static").count() == 0

    run(notebook, 1)  # a trait set in Python moves the picture
    expect(widget.locator(".om-steptext")).to_have_text("3 of 8")
    expect(widget.locator(".om-badge")).to_contain_text("Gate: failed")

    bar = widget.locator("[role=slider]").nth(5)  # a drag changes the trait
    bar.scroll_into_view_if_needed()
    box = bar.locator(".om-handle").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    notebook.mouse.move(x, y)
    notebook.mouse.down()
    notebook.mouse.move(x, y - 60, steps=4)
    notebook.mouse.up()
    dragged = float(bar.get_attribute("aria-valuenow"))
    assert dragged > 3  # it stood at 1.25

    notebook.keyboard.press("ArrowDown")  # the widget's key, not the notebook's
    lowered = float(bar.get_attribute("aria-valuenow"))
    assert lowered == dragged - 0.25
    widget.get_by_role("button", name="Next").press("Enter")  # nor does the notebook edit a cell
    expect(widget.locator(".om-steptext")).to_have_text("4 of 8")
    printed = run(notebook, 2).locator(".jp-OutputArea-output")
    expect(printed).to_have_text(f"read {lowered} 4 spike-late")

    widget.get_by_label("Case", exact=True).select_option("flat")  # Python's scores follow
    notebook.wait_for_timeout(300)
    run(notebook, 2)
    expect(printed).to_have_text("read 2.0 4 flat")
