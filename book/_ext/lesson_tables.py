"""`{lesson-table}` in a page that is no notebook: a table drawn from the evidence or this build.

Numbers on the landing page and on the provenance page are never typed in.
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


def headline(n=4096):
    """What the lesson proves, in four rows: bytes, bytes, time, correctness."""
    from lesson import evidence, traffic
    from lesson.table import Table, mib

    table = Table(f"One head, N = {n:,}", ["what", "materialised", "online", "ratio"])

    def row(mark, what, show, values):
        first, second = (values[path] for path in ("materialised", "online"))
        table.add(mark, what, show(first), show(second), f"{first / second:.1f}x")

    row("computed", "bytes it must move, MiB", mib, traffic.compulsory(n))
    row("computed", "bytes it asks for, MiB", mib, traffic.requested_by_path(n))
    for item in evidence.latest().values():
        times = {time.what: time for time in item.times if time.n == n}
        gates = {g.path: g for g in item.gates if (g.case, g.n) == ("periodic", n)}
        if not times.keys() >= {"materialised", "online"} <= gates.keys():
            continue  # this run measured other sizes
        mark = "stale" if item.stale() else "recorded"
        medians = {path: times[path].median_ms for path in ("materialised", "online")}
        row(mark, f"time, ms, {item.gpu}", "{:.3f}".format, medians)
        fractions = [f"{gates[path].fraction:.3f}" for path in medians]
        table.add(mark, f"error, share of the gate, {item.gpu}", *fractions, "")
    return table


def build():
    """What ran this build."""
    from lesson import backend
    from lesson.table import Table

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
    from lesson import evidence
    from lesson.table import Table

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


class LessonTable(SphinxDirective):
    """`{lesson-table}` NAME, one of the functions above."""

    required_arguments = 1
    tables = {"headline": headline, "build": build, "recorded": recorded}

    def run(self):
        name = self.arguments[0]
        if name not in self.tables:
            raise self.error(f"no table is called {name!r}; there are: {', '.join(self.tables)}")
        return [nodes.raw("", self.tables[name]()._repr_html_(), format="html")]


def setup(app):
    app.add_directive("lesson-table", LessonTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
