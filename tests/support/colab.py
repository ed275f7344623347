"""Colab's software, and a chapter executed in it, alone in an empty folder."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
from tools import notebooks, single_file

from support import BOOK, ROOT, TESTS, missing
from support.chapters import CHAPTERS
from support.executions import CACHE, Executed, code_cells
from support.once import locked, once

STAND_IN = TESTS / "support/stand_in"  # for google.colab
REQUIREMENTS = TESTS / "support/requirements"
IMPORTED = "import nbclient, ipykernel.kernelapp, matplotlib.pyplot, ipywidgets, anywidget"
# Environments outlive a run: they are named by a hash of what they are made from.
ENVIRONMENTS = Path(CACHE, "attention-two-ways-tests")


def interpreter(version):
    """A Python of this version that can make environments, or None."""
    places = [shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places += sorted(pyenv.glob(f"versions/{version}*/bin/python{version}"))
    for place in filter(None, places):
        done = subprocess.run([place, "-c", "import ensurepip"], capture_output=True)
        if done.returncode == 0:
            return str(place)
    return None


PYTHONS = {version: interpreter(version) for version in ("3.13", "3.12")}
THERE = [version for version, python in PYTHONS.items() if python]
# Where neither is installed, this Python runs Colab's older set of packages.
NEWER = THERE[0] if THERE else "3.12"
OLDER = THERE[1] if len(THERE) > 1 else None
FEW = [name for name in CHAPTERS
       if name == CHAPTERS[0] or "OnlineMax" in (BOOK / name).read_text(encoding="utf-8")]


@dataclass(frozen=True)
class Setting:
    """A runtime of Colab, and how the chapter comes to it."""

    version: str
    gpu_image: bool  # with CuPy; there is no GPU here
    how: str  # 'fetched' by its first cell, or 'one file'
    compiler: bool

    def __str__(self):
        return (f"{self.how}, Python {self.version}, {'GPU' if self.gpu_image else 'CPU'} image, "
                f"{'g++' if self.compiler else 'no compiler'}")


FETCHED = Setting(NEWER, True, "fetched", True)
RUNS = {FETCHED: CHAPTERS, Setting(NEWER, False, "one file", False): CHAPTERS}
if OLDER:
    RUNS |= {Setting(OLDER, False, "fetched", False): FEW,
             Setting(OLDER, True, "one file", True): FEW}


@cache
def environment(version, gpu_image):
    """The Python of an environment with Colab's packages, made where there is none yet.

    The GPU image is the CPU image's packages and CuPy: a second environment that sees the first.
    """
    wanted = REQUIREMENTS / f"colab-{'cupy' if gpu_image else version}.txt"
    base = environment(version, False) if gpu_image else None
    maker = PYTHONS[version] or sys.executable
    key = hashlib.sha256(f"{maker} {base} {wanted.read_text()}".encode()).hexdigest()[:16]
    kind = f"colab-{version}{'-gpu' if gpu_image else ''}"
    folder = ENVIRONMENTS / f"{kind}-{key}"
    python, finished = folder / "bin/python", folder / "finished"
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with locked(ENVIRONMENTS / f"{kind}.lock"):
        if not finished.exists() or subprocess.run([python, "-c", ""]).returncode:
            for old in ENVIRONMENTS.glob(f"{kind}-[0-9a-f]*"):
                shutil.rmtree(old)
            subprocess.run([maker, "-m", "venv", *["--without-pip"][:gpu_image], folder],
                           check=True)
            if gpu_image:
                (packages,) = base.parents[1].glob("lib/python*/site-packages")
                (own,) = folder.glob("lib/python*/site-packages")
                (own / "cpu-image.pth").write_text(f"{packages}\n")  # with pip
                _pip(python, "--no-deps", "-r", wanted)
            else:  # what a chapter imports is compiled, not all that there is
                _pip(python, "--no-compile", "-r", wanted)
                subprocess.run([python, "-c", IMPORTED], check=True, env={
                    name: value for name, value in os.environ.items()
                    if name != "PYTHONDONTWRITEBYTECODE"})
            finished.touch()
    return python


def _pip(python, *arguments):
    done = subprocess.run([python, "-m", "pip", "install", "-q", *map(str, arguments)], text=True,
                          capture_output=True)
    if done.returncode:
        missing(f"pip could not install {arguments}: {done.stderr.strip().splitlines()[-1:]}")


def published(folder):
    """A repository that stands for the published one, its address set by the command."""
    if shutil.which("git") is None:
        missing("git")

    def publish():
        place = folder / "published" / "lesson"
        place.mkdir(parents=True)
        for name in ("book", "kernels"):
            shutil.copytree(ROOT / name, place / name,
                            ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("_config.yml", "_toc.yml"):
            shutil.copy(ROOT / name, place)
        subprocess.run([sys.executable, "-m", "tools.repository", f"file://{place}", "main"],
                       cwd=place / "book", check=True, capture_output=True)
        git = ["git", "-C", place, "-c", "user.name=A", "-c", "user.email=a@example.org"]
        for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "All"]):
            subprocess.run([*git, *words], check=True)
        return str(place)

    return Path(once(folder, "published", publish))


def restless(notebook):
    """The notebook as a reader may run it: every cell twice, then those that need no other again,
    in the reverse order."""
    chapter = json.loads(notebook)
    code = code_cells(chapter)
    alone = [cell for cell in code if "".join(cell["source"]).startswith(("lesson.", "%%kernel"))]
    cells = [cell for cell in chapter["cells"] for _ in range(1 + (cell in code))]
    chapter["cells"] = [{**cell, "id": f"again-{i}"}
                        for i, cell in enumerate([*cells, *reversed(alone)])]
    return json.dumps(chapter)


def execute(setting, chapter, folder):
    """Run a chapter in Colab's software: (Executed, the whole notebook, names of what it left)."""
    def run():
        if setting.how == "fetched":
            text = (published(folder) / "book" / chapter).read_text(encoding="utf-8")
        else:
            setup = notebooks.SETUP.read_text(encoding="utf-8")
            text = restless(single_file.build((BOOK / chapter).read_text(encoding="utf-8"), setup))
        return _run(setting, text, folder / name)

    name = f"colab-{sorted(map(str, RUNS)).index(str(setting))}-{chapter.removesuffix('.ipynb')}"
    code, error, notebook, left = once(folder, name, run)
    return Executed(code, error, code_cells(notebook)), notebook, set(left)


def _run(setting, text, folder):
    for name in ("alone", "home", "tmp"):
        (folder / name).mkdir(parents=True)
    path = folder / "alone" / "Copy of a chapter.ipynb"  # as Colab names a saved copy
    path.write_text(text, encoding="utf-8")
    keep = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
    done = subprocess.run(
        [environment(setting.version, setting.gpu_image), TESTS / "support/run_chapter.py", path,
         folder / "executed.ipynb"],
        env={**keep, "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"),
             "OPENBLAS_NUM_THREADS": "1",  # as in tests/conftest.py
             "XDG_CACHE_HOME": CACHE, "PYTHONPATH": str(STAND_IN), "PYTHONDONTWRITEBYTECODE": "1",
             "PYDEVD_DISABLE_FILE_VALIDATION": "1", "CUDA_VISIBLE_DEVICES": "",
             "PIP_NO_INDEX": "1",  # whatever would be installed is an error
             **({} if setting.compiler else {"CXX": "none"})},
        capture_output=True, text=True, timeout=900)
    out = folder / "executed.ipynb"
    notebook = nbformat.read(out, as_version=4) if out.exists() else {"cells": []}
    left = [place.name for place in (folder / "alone").iterdir() if place != path]
    return [done.returncode, done.stderr[-4000:], notebook, left]
