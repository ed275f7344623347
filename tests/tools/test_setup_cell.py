"""The first cell of every chapter: the same everywhere, in Colab, in a checkout and outside one."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys

import pytest
from support import ROOT, TESTS, missing
from tools import notebooks, repository

CELL = notebooks.SETUP.read_text(encoding="utf-8")
STAND_IN = TESTS / "support/stand_in"
SENTENCE = "The lesson is not here"


def code_cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_every_chapter_begins_with_the_cell():
    for path in notebooks.chapters():
        assert code_cells(path)[0] == CELL.strip("\n"), f"{path.name}: make notebooks repairs it"


def test_the_cell_holds_the_address_of_the_configuration():
    config = repository.CONFIG.read_text(encoding="utf-8")
    assert repository.in_cell(CELL) == repository.configured(config)


def test_the_cell_can_be_read_in_one_look():
    assert len(CELL.splitlines()) <= 26


# Where it is run

def run_in(folder, cell=CELL, times=1, colab=False):
    """Run the cell in a fresh interpreter. Returns the process; its last line is the folder."""
    program = f"for _ in range({times}): exec({cell!r})\nprint(lesson.__file__)\nprint(os.getcwd())"
    path = os.pathsep.join([str(STAND_IN)] if colab else [])
    environment = {**os.environ, "PYTHONPATH": path, "PIP_NO_INDEX": "1",
                   "CXX": "none"}  # the emulator is not what is looked at here
    return subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, text=True,
                          capture_output=True, timeout=120)


@pytest.mark.parametrize("colab", [False, True])
@pytest.mark.parametrize("folder", [".", "book", "kernels"])
def test_it_finds_the_lesson_from_any_folder_of_a_checkout(folder, colab):
    done = run_in(ROOT / folder, times=2, colab=colab)
    assert done.returncode == 0, done.stderr
    module, cwd = done.stdout.splitlines()[-2:]
    assert (module, cwd) == (str(ROOT / "book/lesson/__init__.py"), str(ROOT / "book"))


@pytest.mark.parametrize("colab", [False, True])
def test_without_lesson_and_address_it_says_what_to_do(tmp_path, colab):
    unset = CELL.replace(f'"{repository.in_cell(CELL)[0]}"', '""', 1)
    done = run_in(tmp_path, unset, colab=colab)
    assert done.returncode == 1
    assert SENTENCE in done.stderr.splitlines()[-1] and "one file" in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A repository that stands for the published one; returns (its address, its setup cell)."""
    if shutil.which("git") is None:
        missing("git")
    folder = tmp_path_factory.mktemp("published") / "lesson"
    keep = shutil.ignore_patterns("__pycache__", "_ext", "_static")
    for name in ("book", "kernels"):
        shutil.copytree(ROOT / name, folder / name, ignore=keep)
    url = f"file://{folder}"
    git = ["git", "-C", folder, "-c", "user.name=A", "-c", "user.email=a@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "All"]):
        subprocess.run([*git, *words], check=True)
    return url, repository.with_address(CELL, url, "main")


def test_in_colab_it_fetches_the_lesson_once(published, tmp_path):
    _, cell = published
    copy = tmp_path / "attention-two-ways"
    for times in (2, 1):  # twice in a runtime, and again after its restart
        done = run_in(tmp_path, cell, times, colab=True)
        assert done.returncode == 0, done.stderr
        module, cwd = done.stdout.splitlines()[-2:]
        assert (module, cwd) == (str(copy / "book/lesson/__init__.py"), str(copy / "book"))
        (copy / "book/mark").touch()  # would be gone if the second run fetched again
    assert [path.name for path in tmp_path.iterdir()] == [copy.name]
    assert (copy / "book/mark").exists()


def test_outside_colab_it_fetches_nothing(published, tmp_path):
    done = run_in(tmp_path, published[1])
    assert done.returncode == 1 and SENTENCE in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("there, wanted", [(True, []), (False, ["anywidget", "psygnal"])])
def test_in_colab_only_what_is_missing_is_installed(monkeypatch, there, wanted):
    calls, find_spec = [], importlib.util.find_spec
    known = {"google": True, "google.colab": True, "anywidget": there}
    monkeypatch.setattr(importlib.util, "find_spec",
                        lambda name, *rest: known.get(name, None) or find_spec(name, *rest)
                        if known.get(name, True) else None)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: calls.append(command))
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    exec(CELL.split("\nimport lesson\n")[0], {})
    assert [name for call in calls for name in call[call.index("--no-deps") + 1:]] == wanted
    assert all(call[1:4] == ["-m", "pip", "install"] and "--upgrade" not in call for call in calls)
