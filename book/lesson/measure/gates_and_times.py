"""Runs that produce the numbers of the two paths: gates, times, compiler's facts."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ..errors import GateError, InputError, RaceError, UndefinedError
from ..launch import paths
from ..machine import emulator, gpus, nvrtc
from ..machine.occupancy import occupancy
from ..problem import cases, model
from ..problem.gate import Verdict, judge
from ..problem.problem import of
from ..problem.reference import attention
from ..text.edits import current
from .records import GATE_N, PAIR, Facts, Time, gate_row


def run_path(backend, path, case, text=None):
    """Output (N, 64) of a path: on ``backend``, or by the NumPy model where backend is None."""
    if backend is None:
        return getattr(model, path)(case.q, case.k, case.v)
    return paths.run(backend, path, case, text)[0]


@dataclass(frozen=True)
class Outcome:
    """What one case said of one path: a gate's verdict, or why there is no output to judge."""

    verdict: Verdict
    counts: dict = field(default_factory=dict)  # {kernel: bytes asked for}, where they are counted
    stopped: str = ""  # 'race', 'undefined value' or 'input changed': see the verdict

    @property
    def passed(self):
        return self.verdict.passed


def outcome(backend, path, case, text=None):
    """Run a path on a Case, with a Source of one's own or the lesson's, and judge it.

    A race, an undefined value or a changed input is a failed Outcome. Any other LaunchError is
    raised: it would come again on every case.
    """
    try:
        output, planned = paths.run(backend, path, case, text)
    except (RaceError, UndefinedError, InputError) as error:
        nan = float("nan")
        kind = {RaceError: "race", UndefinedError: "undefined value"}.get(
            type(error), "input changed")
        return Outcome(Verdict(False, nan, nan, nan, nan, str(error)), stopped=kind)
    return Outcome(judged(case, output), planned.counts)


def outcomes(backend, path, text, problem=GATE_N, names=cases.NAMES):
    """Yield ``(case, Outcome)`` of a Source on the named cases, in their order.

    Emulated ones run side by side, the first case under every thread order and the others under
    one: whether a result depends on the order is a question to the kernel, and races are found in
    any order.
    """
    backend.compile(text)
    emulated = backend.mark == "emulated"
    rest = one_order() if emulated else backend
    pool = ThreadPoolExecutor((os.cpu_count() or 1) if emulated else 1)
    try:
        jobs = [pool.submit(outcome, backend if name == names[0] else rest, path,
                            cases.make(name, problem), text) for name in names]
        for name, job in zip(names, jobs):
            yield name, job.result()
    finally:
        pool.shutdown(cancel_futures=True)  # one that failed would fail everywhere


def one_order():
    """An emulated backend with one thread order: for counting, where races are not the question."""
    return emulator.HostBackend(orders=("ascending",))


def reference(case):
    """The float64 Reference of a Case."""
    return attention(case.q, case.k, case.v, problem=case.problem)


def judged(case, output):
    """The Verdict on an output for a Case."""
    ref = reference(case)
    return judge(output, ref.o, case.problem, ref.max_abs_score)


def gate_case(backend, name, problem, only=None):
    """The three gates of one case: each path against the reference, and the pair.

    ``only``: 'materialised' or 'online', for that path's gate alone.
    """
    case = cases.make(name, problem)
    paths.HANDLES.refuse(case.problem)
    ref = reference(case)
    outputs = {path: run_path(backend, path, case) for path in paths.PATHS if only in (None, path)}
    rows = [gate_row(path, name, problem, judge(o, ref.o, problem, ref.max_abs_score))
            for path, o in outputs.items()]
    if only is None:
        pair = judge(outputs["online"], outputs["materialised"], problem, ref.max_abs_score)
        rows.append(gate_row(PAIR, name, problem, pair))
    return rows


def gate_cases(backend, names=cases.NAMES, problem=GATE_N, progress=None):
    """Gates of several cases. Emulated cases run side by side, one child process a core."""
    workers = (os.cpu_count() or 1) if backend is not None and backend.mark == "emulated" else 1
    rows = []
    with ThreadPoolExecutor(workers) as pool:
        jobs = pool.map(lambda name: gate_case(backend, name, problem), names)
        for i, found in enumerate(jobs):
            rows.extend(found)
            if progress:
                progress(f"gates, {of(problem)}", i + 1, len(names))
    return rows


def time_path(backend, path, problem, case="periodic", progress=None, text=None):
    """Gate, time, gate again. Returns (rows of Gate, rows of Time) for a path and its kernels.

    ``text``: a Source for the path's kernels, the lesson's own where it is None.
    Raises GateError where a gate fails: a wrong kernel is never given a time.
    """
    inputs, p = cases.make(case, problem), of(problem)
    ref = reference(inputs)
    planned = paths.plan(backend, path, inputs, text)

    def verdict(output, when):
        found = judge(output, ref.o, p, ref.max_abs_score)
        if not found.passed:
            raise GateError(f"no time, {when}: {found.explain(path, case, p)}")
        return gate_row(path, case, p, found)

    before = verdict(planned.run(), "before timing")
    if progress:
        progress(f"timing {path}, {p}", 0, 1)
    planned.spoil()
    times = [_time(backend, planned.enqueue, path, p, planned.spoil)]
    verdict(backend.get(planned.output), "after timing")  # what the last timed runs computed
    if len(planned.steps) > 1:
        for step in planned.steps:  # the others' outputs must stay: each reads the one before
            times.append(_time(backend, lambda s=step: planned.program.enqueue(*s), step[0], p,
                               lambda: None))
        verdict(backend.get(planned.output), "after timing kernel by kernel")
    return before, times


def _time(backend, enqueue, what, problem, spoil):
    t = backend.time(enqueue, what, spoil=spoil)
    return Time(what, problem, t.median, t.low, t.high, t.runs, len(t.rounds_ms))


def facts_of(text, arch, program=None):
    """Facts of the lesson's kernels in one Source compiled for ``arch``.

    ``program``: the live program, to add the driver's own answer.
    """
    gpu = gpus.by_arch()[arch]
    rows = []
    for kernel, f in nvrtc.facts(text, arch).items():
        if kernel not in paths.KERNELS:  # a helper kernel that a reader added
            continue
        threads = paths.KERNELS[kernel].threads
        o = occupancy(f, threads, gpu)
        driver = program.resident_blocks(kernel, threads) if program else None
        rows.append(Facts(kernel, arch, threads, f.registers, f.shared_bytes, f.local_bytes,
                          f.spill_bytes, o.blocks, o.limit, o.fraction, driver))
    return sorted(rows, key=lambda row: list(paths.KERNELS).index(row.kernel))


def facts(arch="sm_75", programs=None):
    """Facts of the four kernels compiled for ``arch``, one of gpus.by_arch().

    ``programs``: {source name: live program}, to add the driver's own answer.
    """
    return [row for name in paths.PATHS
            for row in facts_of(current(name), arch, programs[name] if programs else None)]


def compile_times(backend):
    """Milliseconds that compiling each path's source takes: ``{source: ms}``."""
    found = {}
    for name in paths.PATHS:
        start = time.perf_counter()
        nvrtc.compile_cubin(current(name), backend.arch, anew=True)
        found[name] = 1e3 * (time.perf_counter() - start)
    return found


def launch_all(backend, n=256, repeats=1):
    """Launch every kernel of both paths on ``periodic``: what the profilers watch."""
    case = cases.make("periodic", n)
    for path in paths.PATHS:
        planned = paths.plan(backend, path, case)
        for _ in range(repeats):
            planned.run()
