"""Edited kernels beside the files: the verdict on every case, and what they cost."""

from functools import lru_cache

from ..errors import InputError, LaunchError
from ..launch import paths
from ..machine import backend as backends
from ..machine import emulator, nvrtc, prints, refusals
from ..measure import gates_and_times
from ..measure.gates_and_times import one_order, outcomes
from ..measure.records import GATE_N
from ..problem import cases
from ..problem.problem import of
from ..progress import Progress
from ..tables import Table, Tables, ms
from ..text import source
from ..text.edits import current, edited, note
from .marks import mark_of, where

COUNTED_N = 256  # where requested bytes are counted when the run itself cannot count them


@lru_cache(maxsize=8)
def _of_file(mark, path, n, digest):
    """Outcomes of the file itself: once a session. One thread order is enough for it."""
    backend = backends.choose()
    if mark == "emulated":
        backend = one_order()
    return dict(outcomes(backend, path, source.load(path), n))


@prints.limited()
def compare(n=GATE_N):
    """Compile the edited kernels, gate them on every case, and show them beside the files.

    n: keys and queries of the cases, a multiple of 64. Raises CompileError and LaunchError with
    the cell's own lines.
    """
    paths.HANDLES.refuse(of(n))
    chosen = backends.choose()
    if chosen is None:  # no error: a chapter goes on without
        return Tables([f"Nothing to run a kernel on: {backends.probe().reason}; "
                       f"{emulator.available()[1]}."])
    names = [name for name in paths.PATHS if edited(name)]
    others = [target for target in edited() if target not in edited(*names) or not names]
    parts = [f"{', '.join(others)}: edited, but compare() runs the online and the materialised "
             "path alone."] if others else []
    if not names:
        return Tables(parts or ["Nothing is edited: change a %%kernel cell, run it, then compare "
                                "again."])
    with Progress() as progress:
        for name in names:
            parts += _compare(chosen, name, n, progress)
    return Tables(parts)


def _compare(backend, path, n, progress):
    file, mine = source.load(path), current(path)
    after = {}
    for name, found in outcomes(backend, path, mine, n):
        after[name] = found
        progress(f"{path}, {of(n)}", len(after), len(cases.NAMES))
    before = _of_file(backend.mark, path, n, file.digest)
    verdicts = gate_table(path, n, before, after, mark_of(backend), where(backend, path))
    costs = cost_table(path, file, mine)
    _count(costs, backend, path, n, file, mine, before, after)
    if backend.mark == "live":
        _time(costs, backend, path, n, file, mine, after)
    return [verdicts, costs, *doubles(mine)]


def doubles(text):
    """Sentences on what a Source computes in double, by the best compiler there is."""
    if nvrtc.available()[0]:
        return refusals.doubles(nvrtc.double_lines(text))
    return refusals.doubles(emulator.double_lines(text)) if emulator.available()[0] else []


def gate_table(path, n, before, after, mark, note_):
    """One line a case; a failure with its first wrong element and what the case is there for."""
    failed = {name: o for name, o in after.items() if not o.passed}
    t = Table(f"Gates, {path}, file and edited, N = {n}",
              ["case", "verdict", "fraction, file", "fraction, edited",
               *(["first wrong element", "the case catches"] if failed else [])], note=note_)
    for name, o in after.items():
        v = o.verdict
        cells = [name, "pass" if v.passed else "fail", f"{before[name].verdict.fraction:.3f}",
                 o.stopped or f"{v.fraction:{'.3f' if v.passed else '.3g'}}"]
        if failed:
            cells += ["" if v.row is None else f"query row {v.row}, column {v.col}: yours "
                      f"{v.got:.7g}, expected {v.want:.7g}",
                      "" if v.passed else cases.make(name, 64).catches]
        t.add(mark, *cells)
    if not failed:
        t.footer = "all cases passed their gates"
        return t
    reasons = {}
    for name, o in failed.items():
        outside = not o.stopped and "finite" not in o.verdict.reason
        reasons.setdefault("outside the gate" if outside else o.verdict.reason, []).append(name)
    t.footer = "\n".join(
        f"{'every case' if len(found) == len(after) else ', '.join(found)}: {reason}"
        for reason, found in reasons.items())
    return t


def cost_table(path, file, mine):
    """Compiler's facts and T4 occupancy of the file's and of the edited kernels."""
    t = Table(f"Cost, {path}, file and edited", ["what", "file", "edited"], note=note(path))
    found, reason = nvrtc.available()
    if not found:
        t.footer = f"no compiler's facts: {reason}"
        return t
    before = {r.kernel: r for r in gates_and_times.facts_of(file, "sm_75")}
    after = {r.kernel: r for r in gates_and_times.facts_of(mine, "sm_75")}
    same = []
    for kernel in before:
        if kernel not in after:
            t.add("computed", f"{kernel}: compiled", "yes", "no: the edited source lacks it")
            continue
        if before[kernel] == after[kernel] and len(before) > 1:
            same.append(kernel)
            continue
        for what, value in (
            ("registers a thread", lambda r: r.registers),
            ("shared bytes a block", lambda r: f"{r.shared_bytes:,}"),
            ("local bytes a thread", lambda r: r.local_bytes),
            ("spilled bytes a thread", lambda r: r.spill_bytes),
            ("blocks per SM, T4", lambda r: r.blocks),
            ("occupancy, T4", lambda r: f"{r.occupancy:.0%}, limit: {r.limit}"),
        ):
            t.add("computed", f"{kernel}: {what}", value(before[kernel]), value(after[kernel]))
    if same:
        t.footer = f"the compiler's facts are the file's for {', '.join(same)}"
    return t


def _count(table, backend, path, n, file, mine, before, after):
    """Add the requested bytes: from the emulated run, or from one beside a live run."""
    first = {"before": next(iter(before.values())).counts,
             "after": next((o.counts for o in after.values() if o.counts), {})}
    if backend.mark != "emulated":
        if not emulator.available()[0]:
            return
        n, counter, case = COUNTED_N, one_order(), cases.make("periodic", COUNTED_N)
        first = {"before": paths.run(counter, path, case, file)[1].counts, "after": {}}
        try:
            first["after"] = paths.run(counter, path, case, mine)[1].counts
        except (LaunchError, InputError) as error:  # a race that the GPU did not show, say
            table.footer = "\n".join(filter(None, (table.footer, f"Emulated beside it: {error}")))
    for kernel, counts in first["before"].items():
        for what in ("loads_bytes", "stores_bytes"):
            other = first["after"].get(kernel)
            table.add("emulated", f"{kernel}: bytes its {what[:-6]} ask for, N = {n}",
                      f"{getattr(counts, what):,}", f"{getattr(other, what):,}" if other else "–")


def _time(table, backend, path, n, file, mine, after):
    """Add times, of kernels that passed every gate alone."""
    times = [gates_and_times.time_path(backend, path, n, text=text)[1][0]
             if text is file or all(o.passed for o in after.values()) else None
             for text in (file, mine)]
    table.add("live", f"time, ms (min–max), N = {n}",
              *(ms(t) if t else "no time: a gate failed" for t in times))
