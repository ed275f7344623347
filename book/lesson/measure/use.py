"""Attention for any Problem on a GPU: gates over lengths, masks, widths and heads, and times.

Times stand beside PyTorch's float32 back ends on the same Problem, and a copy of K and V on the
device: one run, all of them interleaved.
"""

from itertools import cycle

import numpy as np

from ..launch import attention
from ..problem import cases
from ..problem.gate import judge
from ..problem.problem import Problem
from ..problem.reference import attention as reference
from .callers import Inputs, sdpa, torch_callers
from .records import Row, Use, ensure_passed, gate_row
from .tensor import COPIES, ROUNDS, Caller, Top, time_group, torch_caller

# Lengths of FlashAttention's own tests, and those that lie beside a tile's.
LENGTHS = ((113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (512, 256), (1024, 1024),
           (1023, 1024), (1024, 1023), (2048, 2048), (1, 1), (1, 500), (500, 1), (3, 700), (8, 64),
           (63, 65), (65, 63), (64, 64), (127, 129), (129, 127), (1, 46341), (46341, 70))
WIDTHS = (8, 32, 40, 56, 64, 96, 120, 128)
HEADS = ((1, 1), (6, 6), (6, 3), (6, 1))  # of Q, of K and V
TIMED = (Problem(4096, 4096, heads=16), Problem(4096, 4096, heads=16, causal=True),
         Problem(4096, 4096, heads=16, d=128), Problem(4096, 4096, heads=16, d=128, causal=True),
         Problem(256, 256, batch=64, heads=8), Problem(128, 128, batch=512, heads=8),
         Problem(1, 131072, heads=16))
OURS, COPY = "lesson.attention", "a copy of K and V on the device"


def gated():
    """The Problems that are gated, in lists of one pair of lengths: every width with every one."""
    heads = cycle(HEADS)
    for queries, keys in LENGTHS:
        for causal in (False, True):
            some = []
            for d in WIDTHS:
                of_q, of_kv = next(heads)
                if queries * keys > 1 << 21:  # a reference in float64 takes its time
                    of_q = of_kv = 1
                batch = 2 if (of_q, of_kv) == (6, 3) else 1
                lengths = (keys // 2, keys) if batch == 2 else None
                some.append(Problem(queries, keys, batch, of_q, of_kv, d, causal, lengths))
            yield some
        next(heads)  # so that widths meet other heads


def gates(backend, progress, groups=None):
    """(how many were gated, the worst Gate of each group). Raises GateError."""
    worst, count = [], 0
    groups = list(gated() if groups is None else groups)
    for i, group in enumerate(groups):
        progress("attention for any problem: gates", i, len(groups))
        rows = []
        for p in group:
            case = cases.make("random", p)
            ref = reference(case.q, case.k, case.v, problem=p)
            made = attention.planned(backend, p, [backend.put(x) for x in
                                                  (case.q, case.k, case.v)])
            rows.append(gate_row("attention", "random", p,
                                 judge(made.run().reshape(p.q_shape), ref.o, p,
                                       ref.max_abs_score)))
        count += len(ensure_passed(rows))
        worst.append(max(rows, key=lambda row: row.fraction))
    return count, worst


def _ours(backend, inputs):
    made = attention.planned(backend, inputs.problem, [backend.put(x) for x in
                                                       (inputs.q, inputs.k, inputs.v)])
    made.run()  # loads the modules
    return Caller(OURS, backend.capture(made.enqueue, COPIES), lambda: backend.get(made.output),
                  made.spoil, None, made.splits)


def _copy(backend, inputs):
    """A function that gives the milliseconds of one copy of K and V."""
    cp = backend.cupy
    source = cp.asarray(np.stack([inputs.k, inputs.v]))
    to = cp.empty_like(source)

    def enqueue():
        to.data.copy_from_device_async(source.data, source.nbytes)

    enqueue()
    backend.synchronize(COPY)
    return backend.capture(enqueue, COPIES)


def times(backend, progress, problems=TIMED):
    """(Rows, versions): this lesson's, PyTorch's, and a copy's, for each Problem."""
    calls, versions = torch_callers()
    versions["cupy"] = backend.cupy.__version__
    rows = []
    for i, p in enumerate(problems):
        progress("attention for any problem: times", i, len(problems))
        inputs = Inputs(p)
        made = [_ours(backend, inputs)]
        for kind, what in (("MATH", "PyTorch SDPA, math"),
                           ("EFFICIENT_ATTENTION", "PyTorch SDPA, memory-efficient")):
            if calls:
                made.append(torch_caller(what, sdpa(kind, p.causal), inputs, False))
        copied = []
        top = type("Copy", (), {"measure": staticmethod(_copy(backend, inputs)),
                                "rounds_ms": copied})
        rows += time_group(backend, inputs, made, top)[0]
        rows.append(Row(COPY, 0, p, 1, 0.0, float(np.median(copied)), min(copied), max(copied),
                        COPIES, ROUNDS))
        del made, top
        backend.cupy.get_default_memory_pool().free_all_blocks()
    return rows, versions


def record(backend, progress):
    """Everything that a recorded run keeps of attention for any Problem: a Use."""
    count, worst = gates(backend, progress)
    rows, versions = times(backend, progress)
    top = Top(backend)
    for _ in range(ROUNDS):
        top.rounds_ms.append(top.measure())
    return Use(versions, top.ceiling(), count, worst, rows)
