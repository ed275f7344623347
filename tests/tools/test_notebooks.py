"""The canonical form of a chapter: checked, and repaired from what editors and Colab save."""

import json
import subprocess
import sys

import pytest
from lesson import ArgumentError
from lesson.text.source import snippets
from support import ROOT
from tools import notebooks


def saved_elsewhere():
    """A notebook as Colab saves it after a run: old format, counts, outputs, widget state."""
    widgets = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    result = {"output_type": "execute_result", "data": {}, "metadata": {}, "execution_count": 7}
    text = {"cell_type": "markdown", "metadata": {"id": "x1"}}
    code = {"cell_type": "code", "metadata": {"id": "x2", "tags": ["mark-computed"]}}
    empty = {"cell_type": "code", "metadata": {}, "execution_count": None}
    return json.dumps({
        "nbformat": 4,
        "nbformat_minor": 0,
        "metadata": {"kernelspec": {"name": "my-env"}, "widgets": widgets, "colab": {"x": 1}},
        "cells": [
            {**text, "source": ["# T\n", "\n", "Text.\n"]},
            {**code, "source": "1 + 1\n", "execution_count": 7, "outputs": [result]},
            {**empty, "source": [], "outputs": []},
        ],
    })


def test_a_saved_notebook_is_repaired():
    new = json.loads(notebooks.canonical(saved_elsewhere()))
    assert new["metadata"] == notebooks.METADATA
    assert (new["nbformat"], new["nbformat_minor"]) == (4, 5)
    assert [cell["id"] for cell in new["cells"]] == ["cell-00", "cell-01"]
    code = new["cells"][1]
    assert code["outputs"] == [] and code["execution_count"] is None
    assert code["metadata"] == {"tags": ["mark-computed"]}
    assert code["source"] == ["1 + 1"]


def test_the_form_is_stable_and_valid():
    nbformat = pytest.importorskip("nbformat")
    once = notebooks.canonical(saved_elsewhere(), setup="print('set up')\n")
    assert notebooks.canonical(once, setup="print('set up')\n") == once
    nbformat.validate(nbformat.reads(once, as_version=4))
    assert json.loads(once)["cells"][1]["source"] == ["print('set up')"]


def kernel_notebook(text, tags=()):
    cell = {"cell_type": "code", "metadata": {"tags": list(tags)}, "source": text}
    return json.dumps({"cells": [cell]})


def test_a_kernel_cell_follows_the_kernels():
    name, text = next(iter(snippets("online").items()))
    magic = f"%%kernel online/{name}"
    new = json.loads(notebooks.canonical(kernel_notebook(f"{magic}\nold text")))
    assert "".join(new["cells"][0]["source"]) == f"{magic}\n{text.rstrip()}"
    stub = json.loads(notebooks.canonical(kernel_notebook(f"{magic}\nold text", ["exercise"])))
    assert "".join(stub["cells"][0]["source"]) == f"{magic}\nold text"


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_what_is_no_notebook_is_refused(text):
    with pytest.raises(ArgumentError, match="not a notebook"):
        notebooks.canonical(text)


def test_a_kernel_cell_that_names_nothing_is_refused():
    with pytest.raises(ArgumentError, match="online.cu has no such snippet; it has: "):
        notebooks.canonical(kernel_notebook("%%kernel online/nothing\n"))


def test_the_command_checks_and_repairs(tmp_path):
    path = tmp_path / "saved.ipynb"
    path.write_text(saved_elsewhere())
    run = [sys.executable, "-m", "tools.notebooks"]

    def call(*arguments):
        return subprocess.run([*run, *arguments], cwd=ROOT / "book", capture_output=True, text=True)

    checked = call("--check", str(path))
    assert checked.returncode == 1 and "not in canonical form" in checked.stdout
    assert path.read_text() == saved_elsewhere()
    assert call(str(path)).returncode == 0
    assert call("--check", str(path)).returncode == 0
    path.write_text("{")
    assert "not a notebook" in call(str(path)).stderr


def test_every_chapter_is_in_canonical_form():
    setup = notebooks.SETUP.read_text(encoding="utf-8") if notebooks.SETUP.exists() else None
    for path in notebooks.chapters():
        text = path.read_text(encoding="utf-8")
        assert notebooks.canonical(text, setup) == text, f"{path.name}: make notebooks repairs it"
