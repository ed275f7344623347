"""Attention for any Problem: how far inside the gate, and how fast beside PyTorch and a copy."""

from ..measure import evidence
from ..measure.use import COPY, OURS
from ..tables import Folded, Sentence, Table, Tables
from .marks import NO_USE, origin


def in_use():
    """Times beside PyTorch's float32 back ends for the same problems, and gates: as recorded."""
    parts = []
    for item in evidence.shown("use"):
        found, note = item.use, origin(item)
        worst = max(found.gates, key=lambda g: g.fraction)
        parts += [_times(found, note), Sentence(
            f"Gated: {found.gated} problems of other lengths, masks, widths and heads, each at "
            f"most {worst.fraction:.3f} of the gate ({worst.problem}).", "recorded", note)]
        t = Table("The worst of each pair of lengths", ["problem", "gate fraction"], note=note)
        for g in found.gates:
            t.add("recorded", str(g.problem), f"{g.fraction:.3f}")
        parts.append(Folded(t.title, t))
    return Tables(parts or [Sentence(NO_USE, "computed")])


def _times(found, note):
    t = Table("Any problem, float32", ["problem", "ms", "gate fraction", "PyTorch's best, ms",
                                       "times as fast", "TFLOP/s", "GB/s of Q, K, V, O",
                                       "of a copy's"], note=note)
    for ours in (row for row in found.rows if row.what == OURS):
        p = ours.problem
        others = {row.what: row for row in found.rows if row.problem == p and row is not ours}
        copy = others.pop(COPY)
        best = min(others.values(), key=lambda row: row.median_ms, default=None)
        rate = p.tensor_bytes / ours.median_ms / 1e6
        copied = 2 * 4 * 2 * p.batch * p.kv_heads * p.keys * p.d / copy.median_ms / 1e6
        t.add("recorded", str(p), f"{ours.median_ms:.4f}", f"{ours.fraction:.3f}",
              f"{best.median_ms:.4f}, {best.what.removeprefix('PyTorch SDPA, ')}" if best else "–",
              f"{best.median_ms / ours.median_ms:.2f}" if best else "–",
              f"{p.operations / ours.median_ms / 1e9:.1f}", f"{rate:,.0f}", f"{rate / copied:.0%}")
    t.footer = (f"SGEMM in the same run: {found.ceiling.tflops:.1f} TFLOP/s. A copy's GB/s count "
                "its reading and its writing, of K and V of the row. Ten calls in one CUDA graph, "
                "the graphs in turn; median of 9; every row passed its gate before and after")
    return t
