"""The gated table: gates, then times, then ratios."""



from ..launch import paths
from ..machine import backend as backends
from ..measure import evidence, gates_and_times, records
from ..problem import traffic
from ..problem.problem import of
from ..progress import Progress
from ..tables import Folded, Table, Tables, ms
from ..text.edits import edited, note
from .marks import NO_EVIDENCE, mark_of

TABLE_COLUMNS = ["path", "max abs error", "gate fraction", "time, ms (min–max)", "where"]


def table(*ns):
    """The gated timing table for N = 256, 1024, 4096, or the N given."""
    groups, _ = timing_tables(ns or records.TABLE_N)
    parts = [Folded(part.title, part) if part.columns[0] == "kernel" else part
             for group in groups for part in group]
    return Tables([*stale_notice(), *parts])


def timing_tables(ns=records.TABLE_N, kind=None):
    """The gated table. Live where there is a GPU; else gates emulated here and recorded times.

    Returns (list of parts per N, list of failure messages). Raises nothing for a failed gate.
    """
    chosen = backends.choose(kind)
    parts, failures = [], []
    with Progress() as progress:
        for n in ns:
            found, failed = _tables_for(chosen, n, progress)
            parts.append(found)
            failures += failed
    return parts, failures


def _tables_for(backend, n, progress):
    paths.HANDLES.refuse(of(n))
    live = backend is not None and backend.mark == "live"
    table = Table(f"Gated timing, periodic, N = {n}", TABLE_COLUMNS, note=note())
    breakdown = Table(f"Time by kernel, N = {n}", ["kernel", "time, ms (min–max)", "where"])
    ratios = Table(f"Materialised over online, N = {n}",
                   ["ratio", "bytes, compulsory", "bytes, requested", "time", "where"])
    failures = []
    if backend is not None and not live and n > records.EMULATED_N[0]:
        # One order of threads: at the smallest N these kernels have passed under all of them.
        backend = type(backend)(orders=backend.orders[:1])
    if live or n in records.EMULATED_N:
        progress(f"gates, N = {n}", 0, 1)
        rows = gates_and_times.gate_case(backend, "periodic", n)
        failures = [r.message for r in rows if not r.passed]
        where_ = "this GPU" if live else ("emulated here" if backend else "NumPy model")
        times = {}
        if live and not failures:
            for path in paths.PATHS:
                _, found = gates_and_times.time_path(backend, path, n, progress=progress)
                times.update({t.what: t for t in found})
        _rows(table, rows, times, mark_of(backend), where_, "FAILED: no time" if failures else
              "not timed: no GPU")
        _breakdown(breakdown, times, "live", where_)
        _ratios(ratios, times, n, "live", where_)
    for item in evidence.shown("times"):
        rows = [g for g in item.gates if g.case == "periodic" and g.n == n]
        times = {t.what: t for t in item.times if t.n == n}
        where_ = f"{item.gpu}, {item.day}" + (", unedited kernels" if edited() else "")
        _rows(table, rows, times, "recorded", where_, "not timed")
        _breakdown(breakdown, times, "recorded", where_)
        _ratios(ratios, times, n, "recorded", where_)
    table.footer = "\n".join(failures)
    if not table.rows:
        table.footer = NO_EVIDENCE
    return [p for p in (table, breakdown, ratios) if p is table or p.rows], failures


def _rows(table, gates, times, mark, where_, untimed):
    for g in gates:
        if g.path in paths.PATHS:
            time = ms(times[g.path]) if g.passed and g.path in times else untimed
            table.add(mark, g.path, f"{g.max_abs_error:.1e}", f"{g.fraction:.3f}", time, where_)
        if g.path == records.PAIR:  # two outputs compared: nothing ran, so there is no time
            table.add(mark, g.path, f"{g.max_abs_error:.1e}", f"{g.fraction:.3f}", "–", where_)


def _breakdown(table, times, mark, where_):
    for kernel in paths.kernels_of("materialised"):
        if kernel in times:
            table.add(mark, kernel, ms(times[kernel]), where_)


def _ratios(table, times, n, mark, where_):
    if all(p in times for p in paths.PATHS):
        compulsory, requested = traffic.compulsory(n), paths.requested_by_path(n)
        table.add(mark, "materialised / online",
                  f"{compulsory['materialised'] / compulsory['online']:.1f}x",
                  f"{requested['materialised'] / requested['online']:.1f}x",
                  f"{times['materialised'].median_ms / times['online'].median_ms:.2f}x", where_)


def stale_notice():
    """A sentence for each recorded file that cannot be used, or an empty list."""
    notices = list(evidence.read_all()[1])
    for item in evidence.latest().values():
        changed = item.stale()
        if changed:
            files = ", ".join(f"{name}.cu" for name in changed)
            notices.append(f"stale: the run on {item.gpu}, {item.day}, measured another {files}; "
                           "its times are not shown")
    return notices
