"""The stepper alive: in JupyterLab and in Notebook 7, driven by the browser, with a Python behind
it, for a kernel that a cell edits."""

from support import ROOT
from support.emulated import needs_compiler
from support.front_ends import run

pytestmark = needs_compiler

CELLS = [
    f"import sys; sys.path.insert(0, {str(ROOT / 'book')!r})\n"
    "import lesson\n"
    "from lesson.text import source\n"
    "from lesson.text.edits import replace\n"
    "w = lesson.watch(n=64)\n"
    "w",
    "w.step = 3; w.lane = 5; print('set', w.step)",
    "print('read', w.step, w.lane)",
    "text = source.snippets('materialised')['scores']\n"
    "replace('materialised/scores', text.replace('[BLK][BLK + 1]', '[BLK][BLK]'))\n"
    "lesson.watch(n=64)",
]


def test_python_and_the_stepper_move_each_other(notebook):
    from playwright.sync_api import expect

    output = run(notebook, 0)
    widget = output.locator(".stepper")
    expect(widget.locator(".st-story")).to_contain_text("1 of ")
    assert widget.count() == 1  # the live view alone, not the static form beside it
    assert output.locator(".stepper-static").count() == 0

    run(notebook, 1)  # traits set in Python move the picture
    expect(widget.locator(".st-story")).to_contain_text("4 of ")
    expect(widget.locator(".st-story")).to_contain_text("Lane 5")

    widget.locator(".st-source").press("ArrowRight")  # the widget's key, not the notebook's
    expect(widget.locator(".st-story")).to_contain_text("5 of ")
    widget.get_by_label("Follow lane").select_option("7")
    widget.get_by_role("button", name="Step ›").press("Enter")  # nor does it edit the cell
    expect(widget.locator(".st-story")).to_contain_text("6 of ")
    printed = run(notebook, 2).locator(".jp-OutputArea-output")
    expect(printed).to_have_text("read 5 7")

    edited = run(notebook, 3).locator(".stepper")  # without its pad the banks turn red
    edited.get_by_role("button", name="Worst access").click()
    expect(edited.locator(".st-story")).to_contain_text("8 passes, where 1 would do")
    assert edited.locator(".st-picture .st-late").count() > 0
