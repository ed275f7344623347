"""The ladder against what a reader would call instead: gates first, then times, in one run.

Every time is of CUDA graphs, so the callers' launch overhead is not in it; every row passed its
gate before it was timed and again after.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from ..errors import GateError
from ..launch import ladder, rungs
from ..machine import gpus
from ..machine.occupancy import occupancy
from ..problem import cases
from ..problem.gate import judge
from ..problem.problem import Problem
from ..problem.reference import attention
from ..text import source
from . import counters
from .callers import SAMPLED_ROWS, Inputs, Sgemm, ceiling, time_cublas, time_torch, torch_callers
from .records import GATE_N, Bench, Facts, ensure_passed, gate_row

BENCH_N = (256, 1024, 4096, 16384)
HEADS = (1, 16)
GATED = ((GATE_N, cases.NAMES), (1024, cases.NAMES), (4096, ("periodic", "spike-late", "random")))
ALL_ROWS = 4096  # query rows that are compared; of more keys an evenly spread part of them


def share(row, ceiling):
    """A Row's rate as a share of the SGEMM rate."""
    return row.problem.operations / (row.median_ms * 1e9) / ceiling.tflops


def gate_rungs(backend, progress, which=None, gated=GATED):
    """Gates of every rung that runs here, or of ``which``, on every case and N of ``gated``."""
    which, rows = rungs.runnable(backend) if which is None else which, []
    for n, names in gated:
        for i, name in enumerate(names):
            progress(f"gates of the ladder, N = {n}", i, len(names))
            rows += gate_case(backend, which, cases.make(name, n))
    return rows


def gate_case(backend, which, case):
    """Gates of the rungs ``which`` on one Case."""
    n, rows = case.problem.n, None
    if n > ALL_ROWS:
        rows = np.linspace(0, n - 1, SAMPLED_ROWS).astype(int)
    ref = attention(case.q, case.k, case.v, rows)
    found = []
    for r in which:
        output, _ = ladder.run(backend, r, case)
        found.append(gate_row(r.name, case.name, n, judge(
            output[ref.rows], ref.o, n, ref.max_abs_score, ref.rows)))
    return found


def time_rung(backend, which, inputs):
    """Gate, time and gate again one rung, or 'best'. Returns a Row."""
    planned = ladder.plan(backend, which, *(backend.put(x) for x in (inputs.q, inputs.k, inputs.v)))
    r = planned.rung
    what = "the lesson's choice" if which == "best" else r.label
    fraction = inputs.judge(planned.run(), what)
    t = backend.time(planned.enqueue, what, spoil=planned.spoil, runs=inputs.runs)
    inputs.judge(backend.get(planned.output), what)
    return inputs.row(what, r.number, planned.splits, fraction, t)


def facts_of(backend, which):
    """Facts of the rungs ``which`` as compiled for this GPU."""
    gpu, _ = gpus.of(backend)
    return [_facts_row(r, backend.compile(source.load(r.name)).facts("attentionOnline"), gpu)
            for r in which]


def _facts_row(r, f, gpu):
    o = occupancy(f, r.threads, gpu, r.shared)
    return Facts(r.name, gpu.arch, r.threads, f.registers, f.shared_bytes + r.shared,
                 f.local_bytes, f.spill_bytes, o.blocks, o.limit, o.fraction)


def measure(backend, progress, ns=BENCH_N, all_heads=HEADS, gated=GATED):
    """Gate every rung, then time everything. Returns a Bench; raises GateError."""
    gates = ensure_passed(gate_rungs(backend, progress, gated=gated))
    sgemm = Sgemm(backend.cupy)
    top = ceiling(backend, sgemm)
    torch_calls, versions = torch_callers()
    versions["cupy"] = backend.cupy.__version__
    rows, refused = [], []
    for heads in all_heads:
        for n in ns:
            problem = Problem(n, n, heads=heads)
            progress(f"comparison, {problem}", 0, 1)
            inputs = Inputs(problem)
            rows += [time_rung(backend, r, inputs) for r in rungs.runnable(backend)
                     if heads == 1 or r.heads]
            rows.append(time_rung(backend, "best", inputs))
            callers = [partial(time_cublas, backend, sgemm, inputs)]
            callers += [partial(time_torch, *item, inputs) for item in torch_calls.items()]
            for caller in callers:
                try:
                    rows.append(caller())
                except GateError as error:  # not the lesson's: said, and the others go on
                    refused.append(str(error))
                except Exception as error:  # CuPy's and PyTorch's share no class but this name
                    if type(error).__name__ != "OutOfMemoryError":
                        raise
                    what = caller.func.__name__.removeprefix("time_")
                    refused.append(f"{what}, {problem}: {error}".splitlines()[0])
                backend.cupy.get_default_memory_pool().free_all_blocks()
    return Bench(versions, top, gates, rows, facts_of(backend, rungs.runnable(backend)),
                 refused)


def record(backend, progress, tools=True):
    """The comparison as evidence keeps it: a Bench, with counters where ``tools`` and ncu are."""
    found = measure(backend, progress)
    if tools:
        progress("hardware counters of the ladder", 0, 1)
        found = replace(found, counters=counters.rung_counters(rungs.runnable(backend)))
    return found
