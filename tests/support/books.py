"""Books built for a test: notebooks as text, and the build itself."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from support import BOOK, ROOT, SLOW_IMPORT
from support.executions import code_cells


class Markdown(str):
    """The text of a Markdown cell; plain text is that of a code cell."""


def notebook(*cells):
    """A notebook as JSON text."""
    made = []
    for number, source in enumerate(cells):
        cell = {"id": f"cell-{number}", "metadata": {}, "source": source}
        if isinstance(source, Markdown):
            cell["cell_type"] = "markdown"
        else:
            cell |= {"cell_type": "code", "execution_count": None, "outputs": []}
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return json.dumps(
        {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    )


def jupyter_book(book, output, **environment):
    """Build the book in the folder `book` as `make book` does. Returns the finished process."""
    shutil.rmtree(Path(output, "_build/html"), ignore_errors=True)
    shutil.rmtree(Path(output, "_build/.doctrees"), ignore_errors=True)
    program = (f"import sys; sys.modules['{SLOW_IMPORT}'] = None; "
               "from jupyter_book.cli.main import main; main()")
    command = [sys.executable, "-c", program, "build"]
    command += [str(book), "--path-output", str(output), "-W", "-n", "--keep-going"]
    done = subprocess.run(
        command,
        cwd=book,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    done.stdout = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    return done


@cache
def executed_by_build(folder):
    """``{chapter: its code cells, executed}`` that a build has left in its folder ``_build``."""
    from jupyter_cache import get_cache  # a machine without Jupyter Book runs the other tests

    (kept,) = (folder / "executed").iterdir()
    store = get_cache(str(kept))
    return {Path(record.uri).name: code_cells(store.get_cache_bundle(record.pk).nb)
            for record in store.list_cache_records()}


class SmallBook:
    """A folder with the book's configuration, extensions and theme, and chapters of a test's own.

    ``lesson``: also the lesson itself, with its tools and kernels.
    """

    def __init__(self, folder, lesson=False):
        self.folder, self.html = folder, folder / "_build/html"
        (folder / "book").mkdir(parents=True)
        for name in ("_config.yml", "requirements.txt"):
            shutil.copy(ROOT / name, folder)
        self._copy("book/_ext", "book/_static")
        if lesson:
            self._copy("book/lesson", "book/tools", "kernels")
        else:
            (folder / "kernels").mkdir()
            (folder / "book/lesson/show").mkdir(parents=True)
            shutil.copy(BOOK / "lesson/show/colours.css", folder / "book/lesson/show")
        (folder / "book/index.md").write_text("# A small book\n\nFor a test.\n")
        (folder / "book/provenance.md").write_text("# Provenance\n\nFor a test.\n")

    def _copy(self, *names):
        for name in names:
            shutil.copytree(ROOT / name, self.folder / name,
                            ignore=shutil.ignore_patterns("__pycache__"))

    def write(self, name, *cells):
        """Write the chapter ``name`` (see ``notebook``), over an older one."""
        (self.folder / f"book/{name}.ipynb").write_text(notebook(*cells))

    def build(self):
        """Build the book as `make book` does. Returns the finished process."""
        names = sorted(path.stem for path in (self.folder / "book").glob("*.ipynb"))
        files = ", ".join(f"{{file: book/{name}}}" for name in [*names, "provenance"])
        (self.folder / "_toc.yml").write_text(
            f"format: jb-book\nroot: book/index\nchapters: [{files}]\n")
        return jupyter_book(self.folder, self.folder)

    def page(self, name):
        """The text of a chapter's page."""
        return (self.html / f"book/{name}.html").read_text(encoding="utf-8")
