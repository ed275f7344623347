"""`{lesson-table}` and `{lesson-widget}` in a page that is no notebook.

A table is drawn from the evidence or from this build: numbers on the landing page and on the
provenance page are never typed in. The widget is its own HTML form, which needs no Python.
"""

import importlib.metadata
import platform
import re
import sys
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

BOOK = Path(__file__).resolve().parents[1]
if str(BOOK) not in sys.path:
    sys.path.insert(0, str(BOOK))  # for `import lesson`, as in a chapter


def build():
    """What ran this build."""
    from lesson.machine import backend
    from lesson.tables import Table

    table = Table("What ran this build", ["what", "version"])
    table.add("computed", "Python", platform.python_version())
    for line in (BOOK.parent / "requirements.txt").read_text(encoding="utf8").splitlines():
        name = re.match(r"[\w-]*", line)[0]
        try:
            table.add("computed", name, importlib.metadata.version(name)) if name else None
        except importlib.metadata.PackageNotFoundError:
            table.add("computed", name, "not installed")
    runs = backend.choose()
    where = runs.describe() if runs else "nowhere: there is no GPU and no C++ compiler"
    table.add("computed", "kernels run", where)
    return table


def recorded():
    """The evidence files, and those that cannot be used."""
    from lesson.measure import evidence
    from lesson.tables import Table

    columns = ["file", "GPU", "driver", "CUDA", "CuPy", "date", "runs x rounds", "kernels"]
    table = Table("Recorded runs", columns)
    for path in sorted(evidence.FOLDER.glob("*.json")):
        try:
            item = evidence.read(path)
        except evidence.EvidenceError as error:
            table.add("stale", path.name, *["–"] * 6, f"not usable: {error}")
            continue
        runs, rounds = ([getattr(t, what) for t in item.times] for what in ("runs", "rounds"))
        repeats = f"{min(runs)} to {max(runs)} x {min(rounds)}"
        versions = [item.versions[name] for name in ("driver", "cuda", "cupy")]
        stale = item.stale()
        kernels = f"changed since: {', '.join(stale)}" if stale else "as they are now"
        table.add("stale" if stale else "recorded", path.name, item.gpu, *versions, item.day,
                  repeats, kernels)
    return table


def headline():
    """What the lesson proves: the pair and the win."""
    from lesson.show.headline import headline

    return headline()


class LessonTable(SphinxDirective):
    """`{lesson-table}` NAME, one of the functions above."""

    required_arguments = 1
    tables = {"headline": headline, "build": build, "recorded": recorded}

    def run(self):
        name = self.arguments[0]
        if name not in self.tables:
            raise self.error(f"no table is called {name!r}; there are: {', '.join(self.tables)}")
        return [nodes.raw("", self.tables[name]()._repr_html_(), format="html")]


class LessonWidget(SphinxDirective):
    """`{lesson-widget}` CASE: the online maximum, at its last tile."""

    required_arguments = 1

    def run(self):
        from lesson.online_max import OnlineMax

        return [nodes.raw("", OnlineMax(case=self.arguments[0]).html(), format="html")]


def setup(app):
    app.add_directive("lesson-table", LessonTable)
    app.add_directive("lesson-widget", LessonWidget)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
