"""The online-maximum widget alive: in JupyterLab and in Notebook 7, driven by the browser, with a
Python behind it."""

from support import ROOT
from support.front_ends import run

CELLS = [
    f"import sys; sys.path.insert(0, {str(ROOT / 'book')!r})\n"
    "import lesson\n"
    "w = lesson.OnlineMax()\n"
    "w",
    "w.step = 3; w.fault = 'forget-o'; print('set', w.step)",
    "print('read', w.scores[5], w.step, w.case)",
]


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
