"""Recorded runs of GPUs that do not exist."""

from dataclasses import replace

from lesson.launch import rungs, splits
from lesson.measure import (
    bench,
    callers,
    evidence,
    fragments,
    long_sequences,
    mutants,
    records,
    tensor,
    use,
)
from lesson.problem.problem import Problem, of
from lesson.show.comparison import CHOICE, CUBLAS

VERSIONS = {"gpu": "NVIDIA Test", "driver": "1", "cuda": "12.9", "cupy": "14.0.1", "nvrtc": "12.9"}
CALLERS = (CUBLAS, "PyTorch: matmul, softmax, matmul", "PyTorch SDPA, math",
           "PyTorch SDPA, memory-efficient")


def sample():
    """A small, valid Evidence whose digests fit the kernels as they are."""
    n = of(256)
    gate = records.Gate("online", "periodic", n, True, 0.0625, 1e-7, 1e-5, 1e-6, "passed")
    other = replace(gate, path="materialised")
    pair = replace(gate, path=records.PAIR)
    times = [records.Time(what, n, 2.0, 1.5, 2.5, 10, 5) for what in
             ("online", "materialised", "scoresQKt", "softmaxRows", "weightedV")]
    facts = records.Facts("attentionOnline", "sm_75", 256, 56, 32896, 128, 0, 1, "shared memory",
                          0.25)
    counters = [records.Counters(k, n, 1 << 20, 1 << 20, 1 << 22) for k in
                ("scoresQKt", "softmaxRows", "weightedV", "attentionOnline")]
    return evidence.Evidence(
        evidence.FORMAT, "2026-11-29T12:00:00+00:00", VERSIONS,
        evidence.digests(("materialised", "online")),
        [other, gate, pair], times, [facts], {"online": 300.0}, counters=counters)


def on_tensor_cores(top):
    """A Tensor: its rungs at 2.5 times the ceiling, callers in float32 and FP16."""
    passing, failing = [], []
    for heads, ns in tensor.SIZES:
        for n in ns:
            problem = Problem(n, n, heads=heads)
            best = problem.operations / (top.tflops * 1e9) + 0.002
            rows = [(r.label, r.number, 3.0 if r.fails else 0.1, best * (
                1.2 if r in rungs.FINAL else 0.4 + r.number / 1000))
                for r in rungs.FINAL_AND_TENSOR]
            rows += [(what, 0, 0.03, best * 5) for what in CALLERS[1:]]
            rows += [(what, 0, 20.0, best / 4) for what in callers.half_callers()]
            for what, number, fraction, ms in rows:
                (passing if fraction < 1 else failing).append(records.Row(
                    what, number, problem, 1, fraction, ms, ms * 0.99, ms * 1.01, 10, 9))
    gates = [records.Gate(r.name, "periodic", of(320), not r.fails, 200.0 if r.fails else 0.1, 1e-7,
                          1e-5, 1e-6, "") for r in (*rungs.TENSOR, *rungs.HOPPER)]
    gates += [replace(g, path=g.path + tensor.BY_NVCC, fraction=0.2) for g in gates if g.passed]
    counters = [records.RungCounters(r.number, of(4096), 4 << 20, 90 << 20, 0, 10**7, 10**6, 0.9,
                                     0.4, {"wait": 0.5}, 0.0 if r in rungs.FINAL else 0.6)
                for r in rungs.FINAL_AND_TENSOR]
    facts = [records.Facts(r.name, "sm_90", r.threads, 255, r.shared + r.static, 0, 0, 2,
                           "registers", 0.125) for r in (*rungs.TENSOR, *rungs.HOPPER)]
    rates = [records.Rate(r.number, 600.0 if r.halves else 300.0) for r in rungs.TENSOR]
    caught = [records.Rejection(m.name, m.caught_by, of(320), True, "outside the gate")
              for m in mutants.TENSOR]
    agreed = [records.Agreement(r.number, kind, 8192, 0) for r in rungs.TENSOR
              for kind in fragments.KINDS]
    again = [records.Repeat(r.number, Problem(4096, 4096, heads=heads), 10, 0)
             for heads in (1, 16) for r in (*rungs.TENSOR, *rungs.HOPPER) if not r.fails]
    return records.Tensor({"torch": "2"}, top, gates, passing, failing, [], facts, rates,
                          caught, agreed, counters, again)


def in_use(top):
    """A Use: half of PyTorch's best time, and a copy at 2,000 GB/s."""
    rows = []
    for p in use.TIMED:
        copied = 4 * 4 * p.batch * p.kv_heads * p.keys * p.d / 2e9
        for what, ms in ((use.OURS, 0.5), (CALLERS[2], 2.0), (CALLERS[3], 1.0), (use.COPY, copied)):
            rows.append(records.Row(what, 0, p, 1, 0.0 if what == use.COPY else 0.1, ms, ms * 0.9,
                                    ms * 1.1, 10, 9))
    gates = [records.Gate("attention", "random", p, True, 0.02 + p.d / 1000, 1e-7, 1e-5, 1e-6, "")
             for p in (use.TIMED[0], use.TIMED[2])]
    return records.Use({"torch": "2"}, top, 352, gates, rows)


def with_ladder():
    """The sample with a comparison, long runs and tensor cores, of another GPU."""
    top = records.Ceiling(8192, 50.0, 22.0, 21.9, 22.1, 5)
    rows, ms_per_operation = [], 1e-9 / 50.0  # at the ceiling
    for heads in (1, 16):
        for n in bench.BENCH_N:
            problem = Problem(n, n, heads=heads)
            best = problem.operations * ms_per_operation + 0.002

            def row(what, number, splits, median, low, high, problem=problem, best=best):
                rows.append(records.Row(what, number, problem, splits, 0.1, best * median,
                                        best * low, best * high, 10, 5))

            for r in rungs.RUNGS:
                if heads == 1 or r.heads:
                    slow = 1.2 + 10 / r.number - (0.3 if r is rungs.BEST else 0)
                    row(r.label, r.number, splits.split(r, n).splits, slow, slow * 0.99,
                        slow * 1.01)
            row(CHOICE, rungs.BEST.number, 2, 1.8, 1.7, 1.9)
            for i, what in enumerate(CALLERS):
                row(what, 0, 1, 3 + i, 3, 7)
    counters = [records.RungCounters(r.number, of(4096), 4 << 20, 90 << 20, 0, 10**7, 3 * 10**7,
                                     0.9, 0.4 + r.number / 100, {"barrier": 1.5, "wait": 0.5})
                for r in rungs.RUNGS]
    long = [records.Long(of(n), "random", rungs.BEST.number, 1, 1e-11 * n * n, 1e-11 * n * n,
                         1024 * n, 4 * n * n, 256, 0.1, 1e-7) for n in long_sequences.LONG_N]
    return replace(
        sample(), versions={**VERSIONS, "gpu": "NVIDIA H200 Sample"},
        kernels=evidence.digests(("materialised", *evidence.LADDER, *evidence.TENSOR,
                                  *evidence.USE)),
        tensor=on_tensor_cores(top), use=in_use(top),
        bench=records.Bench({"torch": "2"}, top, [], rows, [], [], counters), long=long)
