"""Long sequences, up to a score matrix that no GPU holds: an estimate, pieces, and a gate."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ..errors import ArgumentError, GateError
from ..launch import ladder, rungs
from ..machine import gpus
from ..problem import cases, traffic
from ..problem.gate import judge
from ..problem.problem import D
from ..problem.reference import attention
from ..tables import mib
from .records import Long

LONG_N = (32768, 131072, 1048576)
SAMPLED_ROWS = 256
CALIBRATE_N = 8192
PIECE_S = 0.3  # about how long a piece of the queries takes: between two, a reader can interrupt
OFFER_S = 10.0


@dataclass(frozen=True)
class Estimate:
    """What this GPU needs for N, from a short run: time grows with N^2, memory with N."""

    n: int
    seconds: float
    device_bytes: int
    fits: bool


def calibrate(backend):
    """Seconds for one query and one key on this GPU, from a run at a moderate N."""
    case = cases.make("random", CALIBRATE_N)
    planned = ladder.plan(backend, "best", *(backend.put(x) for x in (case.q, case.k, case.v)))
    planned.run()  # modules load at their first launch
    t = backend.time(planned.enqueue, "calibration", spoil=planned.spoil, warmups=1, runs=2,
                     rounds=3)
    return 1e-3 * t.median / CALIBRATE_N**2


def estimate(backend, n, unit):
    """An Estimate for n, where ``unit`` is what calibrate() found."""
    needed = traffic.working_memory(n)["online"]
    return Estimate(n, unit * n * n, needed, needed <= backend.free_bytes())


def offer(backend, unit, seconds=OFFER_S):
    """The largest power of two of keys that this GPU finishes in about ``seconds`` and holds."""
    n = 64
    while unit * (2 * n) ** 2 <= seconds and (
            traffic.working_memory(2 * n)["online"] <= backend.free_bytes()):
        n *= 2
    return n


def run(backend, n, progress, unit, case="random"):
    """Attention over n keys in pieces of its queries, then the gate on sampled rows. A Long.

    The reference is computed on the host meanwhile. Raises GateError, and KeyboardInterrupt
    between two pieces.
    """
    guess = estimate(backend, n, unit)
    if not guess.fits:
        raise ArgumentError(f"n = {n}: the online path needs {mib(guess.device_bytes)} MiB, "
                            f"{mib(backend.free_bytes())} MiB are free; "
                            f"{offer(backend, unit):,} fits")
    if n % rungs.BEST.bm:
        raise ArgumentError(f"n = {n}: a piece has whole blocks of {rungs.BEST.bm} query rows; "
                            f"choose a multiple of {rungs.BEST.bm}")
    inputs = cases.make(case, n)
    rows = np.linspace(0, n - 1, SAMPLED_ROWS).astype(int)
    q, k, v = (backend.put(x) for x in (inputs.q, inputs.k, inputs.v))
    planned = ladder.plan(backend, "best", q, k, v, splits=1)
    planned.output.fill(np.nan)
    r = planned.rung
    workers = min(8, os.cpu_count() or 1)
    pool = ThreadPoolExecutor(workers)
    try:
        exact = [x.astype(np.float64) for x in (inputs.q, inputs.k, inputs.v)]
        jobs = [pool.submit(attention, *exact, rows=part) for part in np.array_split(rows, workers)]
        seconds = _pieces(backend, planned, n, progress, guess.seconds)
        device_bytes = backend.cupy.get_default_memory_pool().used_bytes()
        progress(f"reference for {len(rows)} query rows", 0, 1)
        found = [job.result() for job in jobs]
    finally:
        pool.shutdown(cancel_futures=True)
    ref = np.concatenate([f.o for f in found])
    got = backend.get(planned.output[rows])
    verdict = judge(got, ref, n, max(f.max_abs_score for f in found), rows)
    if not verdict.passed:
        raise GateError(verdict.explain(f"rung {r.number}", case, n))
    return Long(inputs.problem, case, r.number, 1, seconds, guess.seconds, device_bytes,
                inputs.problem.score_matrix_bytes, len(rows), verdict.fraction,
                verdict.max_abs_error)


def _pieces(backend, planned, n, progress, guess):
    """Launch a plan piece by piece of its query rows; seconds in all.

    A piece is a slice of Q and O: the kernel takes its rows from the grid and its keys from n. It
    has whole rounds of blocks, so that all SMs end together.
    """
    r, (q, k, v) = planned.rung, planned.inputs.values()
    gpu, sms = gpus.of(backend)
    round_rows = r.bm * sms * max(1, rungs.blocks_on(r, gpu))
    piece = round_rows * max(1, round(PIECE_S / guess * n / round_rows))
    start = time.perf_counter()
    for row in range(0, n, piece):
        part = slice(row, min(n, row + piece))
        planned.program.launch(
            "attentionOnline", (-(-(part.stop - row) // r.bm), 1, 1), (r.threads,),
            (q[part], k, v, planned.output[part], n, D**-0.5), r.shared)
        progress(f"N = {n:,}, about {guess:.1f} s, query rows", part.stop, n)
    return time.perf_counter() - start


def record(backend, progress, ns=LONG_N):
    """The long sequences as evidence keeps them: a list of Long."""
    unit = calibrate(backend)
    return [run(backend, n, progress, unit) for n in ns]
