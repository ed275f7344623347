"""The pair and the win in one table: what the landing page and the README show first."""

from ..launch import rungs
from ..measure import evidence
from ..tables import Sentence, Table, Tables
from .comparison import CHOICE
from .marks import NO_BENCH
from .stories import row_called, row_of

TITLES = {"materialised": "the materialised path: the N x N matrix is in memory",
          "online": "the online path: the lesson's kernel, without it"}


def headline(n=4096):
    """Both paths, the end of the ladder and PyTorch on one head: a table for each recorded GPU.

    A run is shown, marked stale, also when kernels have changed since: the pages that show this
    have nothing else to show.
    """
    runs = [item for item in evidence.latest().values() if item.bench is not None]
    return Tables([_table(item, n) for item in runs] or [Sentence(NO_BENCH, "computed")])


def _table(item, n):
    stale = item.stale((*TITLES, *evidence.LADDER, *(evidence.TENSOR if item.tensor else ())))
    t = Table(f"One head, N = {n:,}, d = 64, float32",
              ["what", "time, ms", "materialised / this", "gate fraction"],
              note=f"{item.gpu}, {item.day}")
    times = {time.what: time.median_ms for time in item.times if time.n == n}
    gates = {g.path: g.fraction for g in item.gates if (g.case, g.n) == ("periodic", n)}
    rows = [(title, times[path], gates[path]) for path, title in TITLES.items() if path in times]
    if (best := row_called(item.bench, CHOICE, n)) is not None:
        rows.append((f"the end of the ladder: rung {best.rung}, keys in {best.splits} parts",
                     best.median_ms, best.fraction))
    if item.tensor and (last := row_of(item.tensor, rungs.HOPPER[-1], n)):
        rows.append((f"on tensor cores, for a Hopper GPU: rung {last.rung}, keys in {last.splits} "
                     "parts", last.median_ms, last.fraction))
    rows += [(row.what, row.median_ms, row.fraction) for row in item.bench.rows
             if (row.n, row.heads) == (n, 1) and row.what.startswith("PyTorch")]
    for what, ms, fraction in rows:
        ratio = f"{times['materialised'] / ms:.2f}x" if "materialised" in times else "–"
        t.add("stale" if stale else "recorded", what, f"{ms:.3f}", ratio, f"{fraction:.3f}")
    t.footer = (f"Median times of CUDA graphs, PyTorch {item.bench.versions['torch']}; above 1x: "
                "less time than the materialised path. Every row passed its gate against float64: "
                "a gate fraction above 1 fails.")
    return t
