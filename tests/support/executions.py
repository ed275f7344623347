"""Chapters executed for the tests: in each setting once in a run, for every test that reads them.

The settings are those of a reader's machine. None has a GPU: what a GPU does is recorded evidence,
and differs from run to run.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

from support import BOOK, ROOT, TESTS, missing
from support.once import once

SETTINGS = ("emulated", "no compiler", "no cupy", "read-only")
# What a chapter may find in the user's cache: compiled kernels, matplotlib's list of fonts. So that
# nothing is compiled for each chapter again; "read-only" has none.
CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")


@dataclass(frozen=True)
class Executed:
    """One execution of a chapter: the process's exit code and last words, and the notebook."""

    code: int
    error: str
    cells: list  # its code cells, as JSON

    def text(self):
        """All text of the outputs."""
        return "\n".join(map(text_of, self.cells))


def text_of(cell):
    """The text of a cell's outputs."""
    parts = []
    for output in cell.get("outputs", ()):
        parts += [output.get("text", ""), *output.get("data", {}).values()]
    return "\n".join(part for part in parts if isinstance(part, str))


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def surroundings(setting, folder):
    """(book folder, environment, command prefix) of one run in `setting`."""
    folder.mkdir(parents=True)
    for name in ("home", "runtime", "tmp"):
        (folder / name).mkdir()
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HOME": str(folder / "home"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "LESSON_SEED": "1",  # as when the book is built
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(folder / "tmp"),
        "XDG_CACHE_HOME": CACHE,
    }
    for name in ("XDG_CONFIG_HOME", "IPYTHONDIR", "MPLCONFIGDIR", "CXX"):
        environment.pop(name, None)
    if setting == "no compiler":
        bare = folder / "bin"
        bare.mkdir()
        (bare / "python3").symlink_to(sys.executable)
        environment["PATH"] = str(bare)
    if setting == "no cupy":
        (folder / "hide/cupy").mkdir(parents=True)
        (folder / "hide/cupy/__init__.py").write_text("raise ImportError('No module named cupy')\n")
        environment["PYTHONPATH"] = str(folder / "hide")
    if setting != "read-only":
        return BOOK, environment, []
    del environment["XDG_CACHE_HOME"]
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in ("book", "kernels", "_config.yml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, checkout / name)
    for top in (checkout, folder / "home"):
        for path in [*top.rglob("*"), top]:
            path.chmod(path.stat().st_mode & ~0o222)
    prefix = []
    if os.geteuid() == 0:  # root ignores modes unless it lays that power down
        drop = "-dac_override,-dac_read_search"
        prefix = ["setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}"]
        if shutil.which(prefix[0]) is None:
            missing("no setpriv (Debian: util-linux), which makes modes count for root")
    return checkout / "book", environment, prefix


def execute(chapter, setting, folder):
    """Run one chapter in ``setting``. Returns an Executed."""
    def run():
        import nbformat  # here, since tests that execute nothing run where it is not installed

        place = folder / name
        book, environment, prefix = surroundings(setting, place)
        command = [*prefix, sys.executable, TESTS / "support/run_chapter.py", book / chapter,
                   place / "executed.ipynb"]
        done = subprocess.run(list(map(str, command)), env=environment, capture_output=True,
                              text=True, timeout=900)
        out = place / "executed.ipynb"
        cells = code_cells(nbformat.read(out, as_version=4)) if out.exists() else []
        if prefix or setting == "read-only":  # so that pytest can remove it
            subprocess.run(["chmod", "-R", "u+w", str(place)], check=True)
        return [done.returncode, done.stderr[-4000:], cells]

    name = f"{chapter.removesuffix('.ipynb')}-{setting.replace(' ', '-')}"
    return Executed(*once(folder, name, run))
