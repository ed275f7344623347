"""The lesson's numbers, as plain dataclasses, and the runs that produce them.

A table, a figure, the command line's text and an evidence file are drawings of these objects.
"""

import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from . import cases, model, nvrtc, paths
from .edits import current
from .errors import GateError
from .gate import judge
from .occupancy import ARCHS, occupancy
from .reference import attention

TABLE_N = (256, 1024, 4096)
EMULATED_N = (256, 1024)  # what the emulator finishes while a reader waits
PAIR = "online against materialised"


@dataclass(frozen=True)
class Gate:
    """One gate: a path's output on a case, against the float64 reference or the other path."""

    path: str
    case: str
    n: int
    passed: bool
    fraction: float  # worst |got - ref| / (atol + rtol |ref|); NaN where not finite
    max_abs_error: float
    rtol: float
    atol: float
    message: str


@dataclass(frozen=True)
class Time:
    """Milliseconds per run of a path or of one kernel, over rounds."""

    what: str
    n: int
    median_ms: float
    low_ms: float
    high_ms: float
    runs: int
    rounds: int


@dataclass(frozen=True)
class Facts:
    """The compiler's and the scheduler's facts of one kernel on one architecture."""

    kernel: str
    arch: str
    threads: int
    registers: int
    shared_bytes: int
    local_bytes: int
    spill_bytes: int
    blocks: int  # resident blocks per SM, by the rules of occupancy.py
    limit: str
    occupancy: float
    blocks_by_driver: int | None = None  # the driver's own answer, on that device


@dataclass(frozen=True)
class Counters:
    """Bytes that the hardware counters saw during one launch."""

    kernel: str
    n: int
    dram_read_bytes: int
    dram_write_bytes: int
    l2_bytes: int


@dataclass(frozen=True)
class Outcome:
    """What one case said of one mutant."""

    mutant: str
    case: str
    n: int
    rejected: bool
    message: str


def gate_row(path, case, n, verdict):
    """A Gate from a gate.Verdict."""
    return Gate(path, case, n, verdict.passed, verdict.fraction, verdict.max_abs_error,
                verdict.rtol, verdict.atol, verdict.explain(path, case, n))


def run_path(backend, path, case, text=None):
    """Output (N, 64) of a path: on ``backend``, or by the NumPy model where backend is None."""
    if backend is None:
        return getattr(model, path)(case.q, case.k, case.v)
    return paths.run(backend, path, case, text)[0]


def gate_case(backend, name, n, only=None):
    """The three gates of one case: each path against the reference, and the pair.

    ``only``: 'materialised' or 'online', for that path's gate alone.
    """
    case = cases.make(name, n)
    ref = attention(case.q, case.k, case.v)
    outputs = {path: run_path(backend, path, case) for path in paths.PATHS if only in (None, path)}
    rows = [gate_row(path, name, n, judge(o, ref.o, n, ref.max_abs_score))
            for path, o in outputs.items()]
    if only is None:
        pair = judge(outputs["online"], outputs["materialised"], n, ref.max_abs_score)
        rows.append(gate_row(PAIR, name, n, pair))
    return rows


def gate_cases(backend, names=cases.NAMES, n=256, progress=None):
    """Gates of several cases. Emulated cases run side by side, one child process a core."""
    workers = (os.cpu_count() or 1) if backend is not None and backend.mark == "emulated" else 1
    rows = []
    with ThreadPoolExecutor(workers) as pool:
        for i, found in enumerate(pool.map(lambda name: gate_case(backend, name, n), names)):
            rows.extend(found)
            if progress:
                progress(f"gates, N = {n}", i + 1, len(names))
    return rows


def time_path(backend, path, n, case="periodic", progress=None, text=None):
    """Gate, time, gate again. Returns (rows of Gate, rows of Time) for a path and its kernels.

    ``text``: a Source for the path's kernels, the lesson's own where it is None.
    Raises GateError where a gate fails: a wrong kernel is never given a time.
    """
    inputs = cases.make(case, n)
    ref = attention(inputs.q, inputs.k, inputs.v)
    planned = paths.plan(backend, path, inputs, text)

    def verdict(output, when):
        found = judge(output, ref.o, n, ref.max_abs_score)
        if not found.passed:
            raise GateError(f"no time, {when}: {found.explain(path, case, n)}")
        return gate_row(path, case, n, found)

    before = verdict(planned.run(), "before timing")
    if progress:
        progress(f"timing {path}, N = {n}", 0, 1)
    times = [_time(backend, planned.enqueue, path, n)]
    # Again on the output of the last timed run: NaN, then one more run of the same launches.
    verdict(backend.get(planned.output), "after timing")
    if len(planned.steps) > 1:
        for step in planned.steps:
            times.append(_time(backend, lambda s=step: planned.program.enqueue(*s), step[0], n))
    return before, times


def _time(backend, enqueue, what, n):
    t = backend.time(enqueue, what)
    return Time(what, n, t.median, t.low, t.high, t.runs, len(t.rounds_ms))


def threads_of(kernel):
    """Threads of a block of one of the lesson's kernels."""
    return math.prod(paths.BLOCK[kernel])


def facts_of(text, arch, program=None):
    """Facts of the lesson's kernels in one Source compiled for ``arch``.

    ``program``: the live program, to add the driver's own answer.
    """
    gpu = ARCHS[arch]
    rows = []
    for kernel, f in nvrtc.facts(text, arch).items():
        if kernel not in paths.BLOCK:  # a helper kernel that a reader added
            continue
        threads = threads_of(kernel)
        o = occupancy(f, threads, gpu)
        driver = program.resident_blocks(kernel, threads) if program else None
        rows.append(Facts(kernel, arch, threads, f.registers, f.shared_bytes, f.local_bytes,
                          f.spill_bytes, o.blocks, o.limit, o.fraction, driver))
    return sorted(rows, key=lambda row: list(paths.BLOCK).index(row.kernel))


def facts(arch="sm_75", programs=None):
    """Facts of the four kernels compiled for ``arch``, one of occupancy.ARCHS.

    ``programs``: {source name: live program}, to add the driver's own answer.
    """
    return [row for name in paths.PATHS
            for row in facts_of(current(name), arch, programs[name] if programs else None)]


def compile_times(backend):
    """Milliseconds that compiling each path's source takes: ``{source: ms}``."""
    found = {}
    for name in paths.PATHS:
        start = time.perf_counter()
        nvrtc.compile_cubin(current(name), backend.arch)
        found[name] = 1e3 * (time.perf_counter() - start)
    return found


def launch_all(backend, n=256, repeats=1):
    """Launch every kernel of both paths on ``periodic``: what the profilers watch."""
    case = cases.make("periodic", n)
    for path in paths.PATHS:
        planned = paths.plan(backend, path, case)
        for _ in range(repeats):
            planned.run()


def ensure_passed(rows):
    """Raise GateError naming every failed gate of ``rows``."""
    failed = [row.message for row in rows if not row.passed]
    if failed:
        raise GateError("\n".join(failed))
    return rows


