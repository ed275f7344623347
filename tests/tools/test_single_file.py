"""A chapter as one file: what it carries, that it can be read, and that it runs alone."""

import base64
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from lesson.errors import LessonError
from support import ROOT, TESTS
from support.once import shared
from tools import notebooks, single_file

SETUP = notebooks.SETUP.read_text(encoding="utf-8")
CELLS = [("markdown", "# A chapter"), ("code", SETUP),
         ("code", "print(lesson.text.source.read('online') == KERNELS['online.cu'])")]


def chapter(cells=CELLS):
    """A small chapter in canonical form, as text."""
    return notebooks.canonical(json.dumps({"cells": [
        {"cell_type": kind, "metadata": {}, "source": text} for kind, text in cells]}))


@pytest.fixture(scope="module")
def one_file():
    return json.loads(single_file.build(chapter(), SETUP))


def code(notebook):
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


def archive_of(notebook):
    """(bytes, SHA-256 that the file names) of the archive."""
    text = next(text for text in code(notebook) if "ARCHIVE = " in text)
    packed = base64.b64decode(re.search(r'ARCHIVE = """(.*?)"""', text, re.S)[1])
    return packed, re.search(r'SHA256 = "(\w+)"', text)[1]


def test_it_is_a_valid_notebook_that_asks_for_a_t4(one_file):
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.from_dict(one_file))
    assert one_file["metadata"]["accelerator"] == "GPU"
    assert one_file["metadata"]["colab"]["gpuType"] == "T4"


def test_the_chapter_itself_is_unchanged(one_file):
    own = [cell for cell in one_file["cells"] if not cell["id"].startswith("one-file-")]
    assert own == json.loads(chapter())["cells"]


def test_kernels_are_text_equal_to_the_files(one_file):
    seen = {}
    for text in code(one_file):
        if text.startswith("#@title kernels/"):
            exec(text, seen)
    files = {path.relative_to(ROOT / "kernels").as_posix(): path.read_text(encoding="utf-8")
             for path in (ROOT / "kernels").rglob("*.cu")}
    assert seen["KERNELS"] == files
    assert 'extern "C" __global__' in "".join(code(one_file))


def test_the_archive_is_the_lesson_and_its_evidence(one_file):
    packed, digest = archive_of(one_file)
    assert hashlib.sha256(packed).hexdigest() == digest
    zipped = zipfile.ZipFile(io.BytesIO(packed))
    names = zipped.namelist()
    for file in (ROOT / "book/lesson").rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            assert file.relative_to(ROOT).as_posix() in names
    assert {name for name in names if name.endswith(".json")} == {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "book/evidence").rglob("*.json")}
    assert all(zipped.read(name) == (ROOT / name).read_bytes() for name in names)


def test_the_same_files_give_the_same_bytes(tmp_path):
    copy = tmp_path / "copy"
    for name in [*single_file.carried(), *(f"kernels/{k}" for k in single_file.kernels())]:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
        os.utime(copy / name, (1e9, 1e9))
        (copy / name).chmod(0o600)
    assert single_file.build(chapter(), SETUP, copy) == single_file.build(chapter(), SETUP)


def test_a_notebook_without_the_setup_cell_is_refused():
    with pytest.raises(LessonError, match="no setup cell"):
        single_file.build(chapter([("code", "1 + 1")]), SETUP)


@pytest.mark.parametrize("text", ["a '''b'''\n", "ends with '", "ends with \\"])
def test_a_kernel_that_a_raw_string_cannot_hold_is_refused(text):
    with pytest.raises(LessonError, match="kernels/odd.cu"):
        single_file.kernel_cell("odd.cu", text)


def run(notebook, folder, change=lambda text: text):
    """Run the code cells in order in a fresh interpreter, in ``folder``, then print FOLDER."""
    program = "\n".join(f"exec({change(text)!r})" for text in code(notebook))
    environment = {**os.environ, "PYTHONPATH": str(TESTS / "support/stand_in"), "CXX": "none",
                   "TMPDIR": str(folder / "tmp"), "PIP_NO_INDEX": "1"}
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.run([sys.executable, "-"], input=program + "\nprint(FOLDER)", cwd=folder,
                          text=True, env=environment, capture_output=True, timeout=120)


def test_it_runs_in_an_empty_folder_and_twice(one_file, tmp_path):
    twice = {"cells": one_file["cells"] * 2}
    done = run(twice, tmp_path)
    assert done.returncode == 0, done.stderr
    *said, folder = done.stdout.splitlines()
    assert said == ["True", "True"]  # the kernels that run are the text in the cells
    assert Path(folder).parent == tmp_path / "tmp"
    assert len(list((tmp_path / "tmp").glob("attention-two-ways-*"))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]


def test_a_damaged_archive_is_not_unpacked(one_file, tmp_path):
    done = run(one_file, tmp_path, lambda text: text.replace("SHA256 = \"", "SHA256 = \"0"))
    assert done.returncode == 1
    assert "The archive in this cell is damaged" in done.stderr.splitlines()[-1]
    assert not list((tmp_path / "tmp").glob("attention-two-ways-*"))


def test_an_edited_kernel_cell_is_what_runs(one_file, tmp_path):
    done = run(one_file, tmp_path, lambda text: text.replace("// Attention for one head with no",
                                                             "// Edited: attention with no"))
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[-1])
    assert (folder / "kernels/online.cu").read_text().startswith("// Edited: ")


def test_the_book_offers_one_file_a_chapter(small_pages, tmp_path_factory):
    page = small_pages["lesson"]
    assert 'href="../one-file/lesson.ipynb" download>For Colab, one file</a>' in page
    assert "colab.research" not in page
    made = shared(tmp_path_factory) / "small/_build/html/one-file"
    assert [path.name for path in made.iterdir()] == ["lesson.ipynb"]  # the others lack the setup
    assert json.loads((made / "lesson.ipynb").read_text())["cells"][-1]["source"] == "Text."
