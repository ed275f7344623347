"""Every chapter runs top to bottom: emulated, without a compiler, without CuPy, and read-only."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from support.chapters import CHAPTERS
from support.executions import SETTINGS, surroundings

COMPILERS = ("g++", "c++", "clang++")

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)) and os.environ.get("CI") != "true",
    reason="no C++ compiler on this machine, so nothing is emulated",
)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("chapter", CHAPTERS)
@needs_compiler
def test_a_chapter_runs(executed, chapter, setting):
    found = executed(chapter, setting)
    assert found.code == 0, found.error
    assert found.cells and all(cell["execution_count"] for cell in found.cells)
    text = found.text()
    assert 'data-mark="live"' not in text
    if setting == "no compiler":
        assert 'data-mark="emulated"' not in text


@pytest.mark.parametrize("chapter", CHAPTERS)
@needs_compiler
def test_a_chapter_executed_again_elsewhere_says_the_same(executed, chapter):
    """Nothing that runs may differ from run to run or from folder to folder."""
    again, built = executed(chapter, "read-only"), executed(chapter, "emulated")
    assert len(again.cells) == len(built.cells) > 1
    for one, other in zip(again.cells, built.cells, strict=True):
        assert said(one) == said(other), "".join(one["source"])


def said(cell):
    """What a cell put out, without a widget's number, an object's address, and what matplotlib says
    of a home. Lines of one stream are one text: how they are cut into messages is chance."""
    view = "application/vnd.jupyter.widget-view+json"
    found = []
    for output in cell["outputs"]:
        if output.get("name") == "stderr":
            continue
        data = {kind: re.sub(r" at 0x[0-9a-f]+>", ">", str(data))
                for kind, data in output.get("data", {}).items() if kind != view}
        text = output.get("text")
        if output["output_type"] == "stream" and found and found[-1][0] == "stream":
            found[-1] = ("stream", "".join([*found[-1][1], *text]), {})
        else:
            found.append((output["output_type"], "".join(text) if text else text, data))
    return found


@needs_compiler
def test_the_emulator_runs_in_the_chapters(executed):
    """The settings differ in what they should: emulated results only where there is a compiler."""
    for setting in ("emulated", "no cupy", "read-only"):
        texts = [executed(chapter, setting).text() for chapter in CHAPTERS]
        assert any("emulated" in text for text in texts), setting


def test_the_settings_take_away_what_they_say(tmp_path):
    """A setting that took nothing away would prove nothing."""
    probe = """
import os, shutil, sys, tempfile
try: import cupy; cupy = True
except Exception: cupy = False
def writable(folder):
    try: tempfile.TemporaryFile(dir=folder).close()
    except OSError: return False
    return True
print(any(map(shutil.which, ('g++', 'c++', 'clang++'))), cupy, writable(sys.argv[1]),
      writable(os.path.expanduser('~')), 'XDG_CACHE_HOME' in os.environ)
"""
    found = {}
    for setting in ("no compiler", "no cupy", "read-only"):
        book, environment, prefix = surroundings(setting, tmp_path / setting.replace(" ", "-"))
        command = [*prefix, sys.executable, "-c", probe, str(book)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found[setting] = [word == "True" for word in done.stdout.split()]
    assert not found["no compiler"][0]
    assert not found["no cupy"][1]
    assert not any(found["read-only"][2:])
