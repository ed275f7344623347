"""Keys dealt to several GPUs of this machine: gated, timed, and beside one of them."""

import math
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

from ..errors import ArgumentError
from ..machine import backend as backends
from ..problem import cases
from ..spread import links, run
from . import evidence, long_sequences
from .record import driver_version, file_name
from .records import Several, Shared

N = 1048576
ROUNDS = 3  # the first one also loads modules: their median does not
LIMIT_S = 180.0  # of the largest N
STEP = 1 << 17  # it is a multiple of this


def counts(seen):
    """1, 2, 4, .. GPUs, and all that are seen."""
    return sorted({*(2**i for i in range(seen.bit_length())), seen})


def shared(result, rounds_s):
    """A Shared from the last of some runs that differ in time alone."""
    return Shared(result.problem, result.case, result.way, len(result.ranks), median(rounds_s),
                  min(rounds_s), max(rounds_s), len(rounds_s), result.moved, result.rows,
                  result.sampled_rows, result.verdict.fraction, result.verdict.max_abs_error)


def measure(progress, n=N, limit_s=LIMIT_S, rounds=ROUNDS, seen=None, say=None):
    """Runs on 1, 2, 4, .. GPUs by both ways, then the largest N of about ``limit_s`` seconds.

    That one is on all GPUs. Yields a Several after each, with all so far. seen: GPUs to use, all by
    default. say: called with each Shared when it is there. Raises GateError.
    """
    backend = backends.choose("live")
    import cupy

    seen = seen or cupy.cuda.runtime.getDeviceCount()
    versions = {**backend.versions(), "driver": driver_version(), "nccl": links.nccl_version(),
                "gpus": seen}
    rows = []

    def add(row):
        rows.append(row)
        if say:
            say(row)

    def several():
        return Several(datetime.now(timezone.utc).isoformat(timespec="seconds"), versions, limit_s,
                       list(rows))

    plain = long_sequences.run(backend, n, progress, long_sequences.calibrate(backend))
    add(Shared(plain.problem, plain.case, "plain", 1, plain.seconds, plain.seconds, plain.seconds,
               1, 0, n, plain.sampled_rows, plain.fraction, plain.max_abs_error))
    case = cases.make("random", n)
    exact = run.sample(case)
    for size in counts(seen):
        for way in run.WAYS if size > 1 else run.WAYS[:1]:
            with run.gpus_here(size) as party:
                times = []
                for i in range(rounds):
                    progress(f"{size} GPUs by {way}, N = {n:,}", i, rounds)
                    result = run.run(party, case, way, exact=exact)
                    times.append(result.seconds)
            add(shared(result, times))
            yield several()
    best = next(row for row in rows if row.ranks == seen and row.way == "merge")
    largest = int(math.sqrt(limit_s / best.seconds) * n) // STEP * STEP
    if largest > n:
        del case, exact, result
        with run.gpus_here(seen) as party:
            result = run.run(party, cases.make("random", largest), progress=progress)
        add(shared(result, [result.seconds]))
        yield several()


def record(progress, path=None, **how):
    """Measure, and add the part to this GPU's newest evidence of these kernels: (Evidence, path).

    path: the file to write; the one of this GPU and of the evidence's day where it is None. Where
    the file is there, the part is added to the run that it holds.
    """
    gpu = backends.choose("live").versions()["gpu"].removeprefix("NVIDIA ")
    there = path is not None and Path(path).exists()
    item = evidence.read(path) if there else evidence.latest().get(gpu)
    if there and item.gpu != gpu:
        raise ArgumentError(f"{path} holds a run of {item.gpu}, and this is {gpu}: name another "
                            "file")
    if item is None or item.stale(evidence.LADDER):
        raise ArgumentError(f"no recorded run of {gpu} fits these kernels, and this is added to "
                            "one: python -m lesson record first")
    path = path or file_name(item)
    for part in measure(progress, **how):
        item = replace(item, several=part)
        evidence.write(item, path)
    return item, path
