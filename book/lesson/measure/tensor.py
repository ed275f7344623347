"""Rungs on tensor cores beside float32 rungs and PyTorch: one run, all of them interleaved.

What is outside its gate is measured as well and set apart: that is the price of the narrow types.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from ..errors import GateError
from ..launch import ladder, rungs
from ..machine import emulator, gpus, nvcc
from ..machine.gpu import GpuBackend
from ..problem import cases
from ..problem.problem import Problem
from . import bench, counters, fragments, mutants
from .callers import CEILING_N, Inputs, Sgemm, TorchCall, half_callers, torch_callers
from .records import GATE_N, Ceiling, Repeat, Row, Tensor, ensure_passed

SIZES = ((1, (256, 1024, 4096, 16384)), (16, (1024, 4096)))  # heads, N
COPIES, ROUNDS = 10, 9  # copies in a graph; graphs, one of each caller in turn
GATED = ((GATE_N, cases.NAMES), (1024, cases.NAMES), (4096, ("periodic", "random", "flat")),
         (16384, ("periodic", "random", "flat")))
# Powers of two that Q, K and V are multiplied by: scores stay as they are.
SCALED = {"Q up, K down": (60, -60, 0), "Q down, K up": (-60, 60, 0), "V up": (0, 0, 100),
          "V down": (0, 0, -100)}
SCALED_CASES = ("random", "spike-late")
BY_NVCC = ", by nvcc"  # ends the name of a gate's path


@dataclass
class Caller:
    """Something that computes attention, COPIES times in one CUDA graph."""

    what: str
    measure: Callable  # runs the graph and gives milliseconds a copy
    get: Callable  # () -> the last output
    spoil: Callable  # overwrites the output with NaN
    rung: rungs.Rung | None = None
    splits: int = 1
    rounds_ms: list = field(default_factory=list)


def scaled(name, how, n=GATE_N):
    """A Case whose Q, K and V are multiplied by the powers of two of ``SCALED[how]``."""
    case = cases.make(name, n)
    q, k, v = (np.ldexp(x, e) for x, e in zip((case.q, case.k, case.v), SCALED[how], strict=True))
    return cases.Case(f"{name}, {how}", case.problem, q, k, v, "")


def gates(backend, which, progress, gated=GATED):
    """Gates of rungs on every case, and on inputs scaled far up and down."""
    rows = bench.gate_rungs(backend, progress, which, gated)
    for how in SCALED:
        for name in SCALED_CASES:
            rows += bench.gate_case(backend, which, scaled(name, how))
    return rows


def rung_caller(backend, r, inputs):
    """The Caller of a rung, with the launches before and after it."""
    planned = ladder.plan(backend, r, *(backend.put(x) for x in (inputs.q, inputs.k, inputs.v)))
    planned.run()  # loads the modules
    return Caller(r.label, backend.capture(planned.enqueue, COPIES),
                  lambda: backend.get(planned.output), planned.spoil, r, planned.splits)


def torch_caller(what, call, inputs, half):
    """The Caller of one of PyTorch's."""
    made = TorchCall(call, inputs, half)
    return Caller(what, made.capture(COPIES), made.get, made.spoil)


def time_group(backend, inputs, made, ceiling):
    """(rows that passed, rows that failed) of Callers on some Inputs.

    A round runs the graph of each in turn and then ``ceiling``, whose milliseconds go to its own
    list. What a graph computed before the first round and in the last one is gated. Raises
    GateError where a rung fails that should pass, or the other way round.
    """
    def afresh(caller):
        caller.spoil()
        backend.synchronize(caller.what)
        return caller.measure()

    before = {}
    for caller in made:
        afresh(caller)
        before[caller.what] = inputs.verdict(caller.get())
    for i in range(ROUNDS):
        for caller in made:
            caller.rounds_ms.append(afresh(caller) if i == ROUNDS - 1 else caller.measure())
        ceiling.rounds_ms.append(ceiling.measure())
    passing, failing = [], []
    for caller in made:
        verdicts = before[caller.what], inputs.verdict(caller.get())
        passed, r = all(v.passed for v in verdicts), caller.rung
        if r and passed == r.fails:
            raise GateError("no time: " + verdicts[0].explain(r.name, "random", inputs.problem))
        ms = caller.rounds_ms
        row = Row(caller.what, r.number if r else 0, inputs.problem, caller.splits,
                  max(v.fraction for v in verdicts), median(ms), min(ms), max(ms), COPIES, ROUNDS)
        (passing if passed else failing).append(row)
    return passing, failing


class Top:
    """The SGEMM of the ceiling, one in a graph."""

    def __init__(self, backend):
        cp = backend.cupy
        rng = cp.random.default_rng(2026)
        a, b = (rng.standard_normal((CEILING_N, CEILING_N), dtype=np.float32) for _ in range(2))
        c, sgemm = cp.empty_like(a), Sgemm(cp)
        sgemm(a, b, c)
        backend.synchronize("SGEMM")
        self.measure, self.rounds_ms = backend.capture(lambda: sgemm(a, b, c), 1), []

    def ceiling(self):
        """The Ceiling of all rounds."""
        ms = self.rounds_ms
        return Ceiling(CEILING_N, 2 * CEILING_N**3 / (median(ms) * 1e9), median(ms), min(ms),
                       max(ms), len(ms))


def times(backend, progress, top, sizes=SIZES):
    """(rows that passed, rows that failed, what did not run, versions) of everything."""
    calls, versions = torch_callers()
    versions["cupy"] = backend.cupy.__version__
    work = [(what, call, False) for what, call in calls.items()]
    work += [(what, call, True) for what, call in half_callers().items() if calls]
    passing, failing, refused = [], [], []
    for heads, ns in sizes:
        for n in ns:
            problem = Problem(n, n, heads=heads)
            progress(f"tensor cores, {problem}", 0, 1)
            inputs = Inputs(problem)
            made = [rung_caller(backend, r, inputs)
                    for r in rungs.runnable(backend, rungs.FINAL_AND_TENSOR)]
            for what, call, half in work:
                try:
                    made.append(torch_caller(what, call, inputs, half))
                except (RuntimeError, AttributeError) as error:  # no memory; an older PyTorch
                    refused.append(f"{what}, {problem}: {error}".splitlines()[0])
            good, bad = time_group(backend, inputs, made, top)
            passing += good
            failing += bad
            del made
            backend.cupy.get_default_memory_pool().free_all_blocks()
    return passing, failing, refused, versions


def repeats(backend, which, n=4096, heads=(1, 16), runs=10):
    """A Repeat of each rung and number of heads: the same inputs, again and again."""
    found = []
    for h in heads:
        problem = Problem(n, n, heads=h)
        inputs = Inputs(problem)
        arrays = [backend.put(x) for x in (inputs.q, inputs.k, inputs.v)]
        for r in which:
            planned = ladder.plan(backend, r, *arrays)
            first, *others = (planned.run().view(np.uint32) for _ in range(runs))
            found.append(Repeat(r.number, problem, runs,
                                sum(not np.array_equal(first, other) for other in others)))
    return found


def second_build(which, progress):
    """Gates of rungs as nvcc compiles them, at the small N; empty where there is no nvcc."""
    if not nvcc.available():
        return []
    rows = bench.gate_rungs(GpuBackend(nvcc), progress, which, GATED[:2])
    return [replace(row, path=f"{row.path}{BY_NVCC}") for row in rows]


def record(backend, progress, tools=True):
    """Everything that a recorded run keeps of tensor cores: a Tensor. Raises GateError."""
    every = rungs.runnable(backend, (*rungs.TENSOR, *rungs.HOPPER))
    which = [r for r in every if r in rungs.TENSOR]
    right = [r for r in every if not r.fails]
    found = ensure_passed(gates(backend, right, progress) + second_build(right, progress))
    wrong = bench.gate_rungs(backend, progress, [r for r in which if r.fails], GATED[:1])
    progress("fragments of tensor cores", 0, 1)
    rates = [fragments.rate(backend, r, gpus.of(backend)[1]) for r in which]
    agreed = None
    if emulator.available()[0]:
        host = emulator.HostBackend(orders=("ascending",))
        agreed = [a for r in which for a in fragments.agreements(backend, host, r)]
    top = Top(backend)
    passing, failing, refused, versions = times(backend, progress, top)
    progress("mutants on tensor cores", 0, 1)
    rejected = mutants.tensor_rejections(backend)
    progress("hardware counters of tensor cores", 0, 1)
    counted = counters.tensor_counters(
        rungs.runnable(backend, rungs.FINAL_AND_TENSOR)) if tools else None
    return Tensor(versions, top.ceiling(), found + wrong, passing, failing, refused,
                  bench.facts_of(backend, every), rates, rejected, agreed, counted,
                  repeats(backend, right))
