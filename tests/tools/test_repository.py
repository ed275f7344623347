"""One command writes the repository's address everywhere."""

import json
import shutil
import subprocess

import pytest
from lesson.errors import ArgumentError, LessonError
from support import ROOT
from tools import notebooks, repository


def code_cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder with the configuration, the setup cell and two chapters, in the lesson's place."""
    shutil.copy(repository.CONFIG, tmp_path / "_config.yml")
    (tmp_path / "book/tools").mkdir(parents=True)
    shutil.copy(notebooks.SETUP, tmp_path / "book/tools/setup_cell.py")
    cells = [{"cell_type": "markdown", "metadata": {}, "source": "# One"},
             {"cell_type": "code", "metadata": {}, "source": "pass"},
             {"cell_type": "code", "metadata": {}, "source": "1 + 1"}]
    for name in ("01.ipynb", "02.ipynb"):
        (tmp_path / "book" / name).write_text(json.dumps({"cells": cells}))
    monkeypatch.setattr(repository, "CONFIG", tmp_path / "_config.yml")
    monkeypatch.setattr(notebooks, "BOOK", tmp_path / "book")
    monkeypatch.setattr(notebooks, "SETUP", tmp_path / "book/tools/setup_cell.py")
    return tmp_path


@pytest.mark.parametrize("url, kept", [
    ("https://github.com/someone/some-repo", "https://github.com/someone/some-repo"),
    ("https://github.com/someone/some-repo.git/", "https://github.com/someone/some-repo"),
    ("", ""),
])
def test_one_command_sets_the_address_everywhere(checkout, url, kept):
    before = (checkout / "_config.yml").read_text()
    repository.main([url, "v1.0"])
    config = (checkout / "_config.yml").read_text()
    assert repository.configured(config) == (kept, "v1.0")
    changed = [(a, b) for a, b in zip(before.splitlines(), config.splitlines()) if a != b]
    assert all(b.split(":")[0].strip() in ("url", "branch") for _, b in changed)
    cell = (checkout / "book/tools/setup_cell.py").read_text()
    assert repository.in_cell(cell) == (kept, "v1.0")
    for name in ("01.ipynb", "02.ipynb"):
        assert code_cells(checkout / "book" / name) == [cell.strip("\n"), "1 + 1"]
    compile(cell, "setup_cell.py", "exec")


@pytest.mark.parametrize("url, revision, named", [
    ("git@github.com:someone/some-repo.git", "main", "URL = "),
    ("https://github.com/someone/some repo", "main", "URL = "),
    ('https://github.com/"', "main", "URL = "),
    ("https://github.com/someone/some-repo", "", "REVISION = "),
    ("https://github.com/someone/some-repo", "--upload-pack=x", "REVISION = "),
    ("", "", "REVISION = "),
])
def test_an_address_that_git_cannot_clone_is_refused(checkout, url, revision, named):
    before = (checkout / "_config.yml").read_text()
    with pytest.raises(ArgumentError, match=named):
        repository.write(url, revision)
    assert (checkout / "_config.yml").read_text() == before


def test_a_configuration_without_the_setting_is_named(checkout):
    (checkout / "_config.yml").write_text("title: Other\n")
    with pytest.raises(LessonError, match="_config.yml needs"):
        repository.write("", "main")


def test_make_calls_the_command():
    done = subprocess.run(["make", "-n", "repository", "URL=https://github.com/a/b", "REVISION=v1"],
                          cwd=ROOT, capture_output=True, text=True)
    assert 'tools.repository "https://github.com/a/b" "v1"' in done.stdout
