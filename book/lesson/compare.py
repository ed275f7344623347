"""Edited kernels beside the files: the verdict on every case, and what they cost."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

from . import backend as backends
from . import cases, explain, host, nvrtc, paths, results, source
from .edits import current, edited, note
from .errors import InputError, LaunchError, RaceError
from .gate import Verdict, judge
from .progress import Progress
from .reference import attention
from .report import mark_of, where
from .table import Table, Tables, ms

COUNTED_N = 256  # where requested bytes are counted when the run itself cannot count them


@dataclass(frozen=True)
class Outcome:
    """What one case said of one source: a gate's verdict, or why there is no output to judge."""

    verdict: Verdict
    counts: dict  # {kernel: bytes of global memory asked for}, where the backend counts them
    stopped: str = ""  # 'race' or 'input changed': the verdict's reason says more

    @property
    def passed(self):
        return self.verdict.passed


def one(backend, path, case, text):
    """Run a Source on a Case and judge it. A race or a changed input is a failed Outcome.

    Any other LaunchError is raised: it would come again on every case.
    """
    ref = attention(case.q, case.k, case.v)
    try:
        output, planned = paths.run(backend, path, case, text)
    except (RaceError, InputError) as error:
        nan = float("nan")
        kind = "race" if isinstance(error, RaceError) else "input changed"
        return Outcome(Verdict(False, nan, nan, nan, nan, str(error)), {}, kind)
    return Outcome(judge(output, ref.o, case.n, ref.max_abs_score), planned.counts)


def outcomes(backend, path, text, n, progress=None, names=cases.NAMES):
    """``{case: Outcome}`` of a Source on the named cases; emulated ones run side by side.

    Emulated, the first case runs under every thread order and the others under one: whether a
    result depends on the order is a question to the kernel, and races are found in any order.
    """
    backend.compile(text)
    emulated = backend.mark == "emulated"
    rest = one_order() if emulated else backend
    found = {}
    pool = ThreadPoolExecutor((os.cpu_count() or 1) if emulated else 1)
    try:
        jobs = [pool.submit(one, backend if name == names[0] else rest, path,
                            cases.make(name, n), text) for name in names]
        for name, job in zip(names, jobs, strict=True):
            found[name] = job.result()
            if progress:
                progress(f"{path}, N = {n}", len(found), len(names))
    finally:
        pool.shutdown(cancel_futures=True)  # one that failed would fail everywhere
    return found


@lru_cache(maxsize=8)
def _of_file(mark, path, n, digest):
    """Outcomes of the file itself: once a session. One thread order is enough for it."""
    backend = backends.choose()
    if mark == "emulated":
        backend = one_order()
    return outcomes(backend, path, source.load(path), n)


def one_order():
    """An emulated backend with one thread order: for counting, where races are not the question."""
    return host.HostBackend(orders=("ascending",))


def compare(n=256):
    """Compile the edited kernels, gate them on every case, and show them beside the files.

    n: keys and queries of the cases, a multiple of 64. Raises CompileError and LaunchError with
    the cell's own lines.
    """
    cases.check_n(n)
    chosen = backends.choose()
    if chosen is None:  # no error: a chapter goes on without
        return Tables([f"Nothing to run a kernel on: {backends.probe().reason}; "
                       f"{host.available()[1]}."])
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
    after = outcomes(backend, path, mine, n, progress)
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
        return explain.doubles(nvrtc.double_lines(text))
    return explain.doubles(host.double_lines(text)) if host.available()[0] else []


def gate_table(path, n, before, after, mark, note_):
    """One line a case; a failure with its first wrong element and what the case is there for."""
    failed = {name: o for name, o in after.items() if not o.passed}
    t = Table(f"Gates, {path}, file and edited, N = {n}",
              ["case", "verdict", "fraction, file", "fraction, edited",
               *(["first wrong element", "the case catches"] if failed else [])], note=note_)
    for name, outcome in after.items():
        v = outcome.verdict
        cells = [name, "pass" if v.passed else "fail", f"{before[name].verdict.fraction:.3f}",
                 outcome.stopped or f"{v.fraction:{'.3f' if v.passed else '.3g'}}"]
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
    before = {r.kernel: r for r in results.facts_of(file, "sm_75")}
    after = {r.kernel: r for r in results.facts_of(mine, "sm_75")}
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
        if not host.available()[0]:
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
    times = [results.time_path(backend, path, n, text=text)[1][0]
             if text is file or all(o.passed for o in after.values()) else None
             for text in (file, mine)]
    table.add("live", f"time, ms (min–max), N = {n}",
              *(ms(t) if t else "no time: a gate failed" for t in times))
