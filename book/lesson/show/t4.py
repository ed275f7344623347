"""A T4's times, computed: what is proven, and a prediction with the help of an H200."""

from ..launch import rungs, splits
from ..machine import gpus
from ..machine.gpus import H200, T4
from ..measure import bench, evidence
from ..problem.problem import D, of
from ..tables import Table
from .marks import NO_BENCH
from .rungs import title

PRODUCTS = 3  # of halves, in place of one


def clock(gpu):
    """Clocks a second of a product, by its datasheet's FP32 rate."""
    return gpu.flops / (2 * gpu.lanes * gpu.sms)


def pipes(r, gpu, counted=None, rate=None):
    """Clocks that each pipe of an SM of ``gpu`` needs for one key of a block: ``{pipe: clocks}``.

    Of a rung in float32: 128 multiply-adds for each of its rows, one a lane and clock, and its
    passes through shared memory. Of one on tensor cores: three products in place of one at
    ``rate`` (FLOP/s of the whole GPU), all other instructions on the lanes, and the passes.
    ``counted``: RungCounters, for passes and instructions.
    """
    keys = counted.n * -(-counted.n // r.bm) if counted else 1  # of all blocks
    passes = counted.shared_wavefronts / keys if counted else 0
    found = {"shared memory": passes * gpu.shared_clocks}
    if r not in rungs.TENSOR:
        return found | {"float32": r.bm * 2 * D / gpu.lanes}
    if counted:
        found["float32"] = counted.instructions / keys * 32 / gpu.lanes
    return found | {"mma": PRODUCTS * 4 * D * r.bm * gpu.sms * clock(gpu) / rate}


def estimated(r, n, gpu, counted=None, rate=None):
    """(ms, Split): an estimate of what the busiest SM of ``gpu`` does for a rung, one head.

    The keys that it walks along are those of ``launch.splits``, weighed by how many blocks share
    the SM. For each key the busiest of the ``pipes`` counts. No bound: the real SMs may share the
    blocks out better.
    """
    found = splits.split(r, n, gpu.sms, max(1, rungs.blocks_on(r, gpu)))
    return 1e3 * found.work * max(pipes(r, gpu, counted, rate).values()) / clock(gpu), found


def line(r, rows, counted=None, rate=None):
    """(ms that any launch takes, ms for each estimated ms) of rung ``r`` on the H200 of ``rows``.

    The straight line through its shortest and its longest row; None where it has fewer than two.
    """
    rows = sorted((row for row in rows if (row.what, row.heads) == (r.label, 1)),
                  key=lambda row: row.n)
    if len({row.n for row in rows}) < 2:
        return None
    (x0, y0), (x1, y1) = ((estimated(r, row.n, H200, counted, rate)[0], row.median_ms)
                          for row in (rows[0], rows[-1]))
    slope = (y1 - y0) / (x1 - x0)
    return y0 - slope * x0, slope


def recorded(part):
    """The newest recorded run of an H200 with counters in ``part`` of the Evidence, or None."""
    return next((i for i in evidence.shown(part) if gpus.product(i.versions["gpu"]) is H200
                 and getattr(i, part).counters), None)


def t4_times(ns=bench.BENCH_N):
    """Times of the rungs that a T4 runs: what is proven, and a prediction."""
    t = Table("A T4, one head, computed",
              ["rung", "N", "splits", "proven: at least, ms", "predicted, ms"])
    item = recorded("bench")
    counted = {c.rung: c for c in item.bench.counters} if item else {}
    for r in rungs.RUNGS:
        if not rungs.blocks_on(r, T4):
            continue
        c = counted.get(r.number)
        of_h200 = line(r, item.bench.rows, c) if c else None
        for n in ns:
            predicted = "–"
            if of_h200:
                predicted = f"{of_h200[0] + of_h200[1] * estimated(r, n, T4, c)[0]:.3f}"
            t.add("computed", title(r), f"{n:,}", estimated(r, n, T4)[1].splits,
                  f"{1e3 * of(n).operations / T4.flops:.3f}", predicted)
    t.note = f"with the help of {item.gpu}, {item.day}" if item else ""
    t.footer = (f"at least: 4 N^2 d operations at {T4.flops / 1e12:g} TFLOP/s, the datasheet's "
                "rate at the boost clock. "
                + ("predicted: the work of the busiest SM, with the shared-memory passes counted "
                   "on the H200, on the line through its shortest and its longest run"
                   if item else f"no prediction: {NO_BENCH}"))
    return t
