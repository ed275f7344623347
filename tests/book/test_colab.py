"""Every chapter in Colab's software, alone in an empty folder: fetched by its first cell, or as
one file, whose cells run twice and out of order. A stand-in for `google.colab` makes the Colab
branches run; there is no network.

All chapters run in both ways on the newer of Colab's two Pythons, a few on the older.
"""

import json
import os
import re
import subprocess
import sys

import pytest
from lesson import colab
from support import BOOK
from support.chapters import CHAPTERS
from support.colab import (
    FETCHED,
    NEWER,
    PYTHONS,
    REQUIREMENTS,
    RUNS,
    STAND_IN,
    THERE,
    environment,
    execute,
    published,
)
from support.executions import text_of
from support.once import shared
from tools import notebooks

pytestmark = pytest.mark.slow  # executes chapters, makes environments


@pytest.mark.parametrize("setting, chapter", [
    pytest.param(setting, chapter, id=f"{setting}, {chapter}")
    for setting, chapters in RUNS.items() for chapter in chapters])
def test_a_chapter_runs_alone_in_colab(tmp_path_factory, setting, chapter):
    found, _, left = execute(setting, chapter, shared(tmp_path_factory))
    assert found.code == 0, found.error
    assert found.cells and all(cell["execution_count"] for cell in found.cells)

    # The first output says what was found, and how to get a GPU.
    said = next(filter(None, map(text_of, found.cells)))
    reason = "there is no NVIDIA driver" if setting.gpu_image else "CuPy is not installed"
    assert "This machine" in said and reason in said
    assert "Runtime > Change runtime type > T4 GPU" in said.replace("&gt;", ">")
    assert ("emulated from the same .cu files" in said) == setting.compiler

    # Nothing was installed, and nothing lies about.
    assert left == ({"attention-two-ways"} if setting.how == "fetched" else set())


def test_what_colab_saves_is_repaired(tmp_path_factory):
    """An executed chapter, with counts, outputs, widget state and Colab's own cell metadata."""
    setup = notebooks.SETUP.read_text(encoding="utf-8")
    folder, seen = shared(tmp_path_factory), 0
    for chapter in CHAPTERS:
        executed = execute(FETCHED, chapter, folder)[1]
        seen += "widgets" in executed["metadata"]
        for number, cell in enumerate(executed["cells"]):
            cell["metadata"] |= {"id": f"x{number}", "colab": {"base_uri": "https://localhost"},
                                 "outputId": "0-1"}
        before = (published(folder) / "book" / chapter).read_text(encoding="utf-8")
        saved = notebooks.canonical(json.dumps(executed), setup)
        assert saved == notebooks.canonical(before, setup)
    assert seen, "no chapter left widget state behind: nothing was repaired"


@pytest.mark.parametrize("version", PYTHONS)
def test_the_environments_are_what_they_say(version):
    if version not in THERE:
        pytest.skip(f"no Python {version} here: chapters ran in the packages of Colab's {NEWER}")
    program = ("from importlib.metadata import distributions as d; import sys; "
               "print(sys.version_info[:2], *(f'{x.name}=={x.version}'.lower() for x in d()))")
    for gpu_image, files in ((False, [version]), (True, [version, "cupy"])):
        run = subprocess.run([environment(version, gpu_image), "-c", program], text=True,
                             capture_output=True, check=True)
        assert run.stdout.startswith(f"({version.replace('.', ', ')})")
        pins = [pin for file in files for pin in
                re.findall(r"^[\w-]+==\S+", (REQUIREMENTS / f"colab-{file}.txt").read_text(), re.M)]
        assert len(pins) >= 7 and [pin for pin in pins if pin not in run.stdout.split()] == []
        assert ("cupy-cuda12x" in run.stdout) == gpu_image


def test_the_stand_in_is_taken_for_colab():
    run = subprocess.run([sys.executable, "-c", "from lesson import colab; print(colab.here())"],
                         cwd=BOOK, text=True, capture_output=True, check=True,
                         env={**os.environ, "PYTHONPATH": str(STAND_IN)})
    assert run.stdout == "True\n" and not colab.here()
