"""Tensor cores: rungs beside float32 and FP16, their products bit for bit, and a T4 computed."""

from ..launch import rungs
from ..machine.gpus import H200, T4
from ..measure import evidence, fragments, mutants
from ..measure.bench import BENCH_N, share
from ..problem.problem import of
from ..tables import Folded, Sentence, Table, Tables
from . import t4
from .drawing import Panel, Picture
from .marks import NO_TENSOR, origin
from .rungs import title

SHOWN = ((1, 4096), (1, 16384), (16, 4096))  # heads, N


def beside(which=rungs.TENSOR):
    """Rungs on tensor cores, float32 rungs and PyTorch in one recorded run; what fails apart.

    which: the rungs that are shown beside those on float32 units.
    """
    parts, numbers = [], {0, *(r.number for r in (*rungs.FINAL, *which))}
    for item in evidence.shown("tensor"):
        found, note = item.tensor, origin(item)
        right = _rows("Inside the gate", [row for row in found.rows if row.rung in numbers], found,
                      note)
        wrong = _rows("Outside the gate, so no result: its time, set apart",
                      [row for row in found.failing if row.rung in numbers], found, note)
        right.footer = (f"SGEMM in the same run: {found.ceiling.tflops:.1f} TFLOP/s. Ten copies of "
                        "each in one CUDA graph, the graphs in turn, with the launches before and "
                        "after a rung; median of 9. Gate fraction: the worst on random, every N")
        wrong.footer = "\n".join(("fails: above 1", *found.refused))
        parts += [right, wrong, *_verdict(item, which)]
    return Tables(parts or [Sentence(NO_TENSOR, "computed")])


def _rows(words, rows, found, note):
    """A Table of some rows of a Tensor."""
    t = Table(words, ["what", "gate fraction",
                      *(f"ms, {heads} x {n:,}" for heads, n in SHOWN),
                      *(f"of SGEMM, {heads} x {n:,}" for heads, n in SHOWN)], note=note)
    for what in dict.fromkeys(row.what for row in rows):
        mine = {(row.heads, row.n): row for row in rows if row.what == what}
        number = next(iter(mine.values())).rung
        shown = [mine.get(size) for size in SHOWN]
        t.add("recorded", title(rungs.rung(number)) if number else what,
              f"{max(row.fraction for row in mine.values()):.3f}",
              *(f"{row.median_ms:.4f}" if row else "–" for row in shown),
              *(f"{share(row, found.ceiling):.2f}" if row else "–" for row in shown))
    return t


def fastest(found, which, heads, n, rows=None):
    """The fastest Row of a Tensor for which ``which`` holds, of what passed or of ``rows``; None
    without one."""
    rows = [row for row in (found.rows if rows is None else rows)
            if (row.heads, row.n) == (heads, n) and which(row)]
    return min(rows, key=lambda row: row.median_ms, default=None)


def _verdict(item, which):
    """The fastest of some rungs on tensor cores against the others, in a sentence."""
    numbers = {r.number for r in which}
    finals = {r.number for r in rungs.FINAL}
    words = []
    for heads, n in SHOWN:
        ours = fastest(item.tensor, lambda row: row.rung in numbers, heads, n)
        ladder = fastest(item.tensor, lambda row: row.rung in finals, heads, n)
        torch = fastest(item.tensor, lambda row: row.what.startswith("PyTorch"), heads, n)
        half = fastest(item.tensor, lambda row: row.what.startswith("FlashAttention"), heads, n,
                       item.tensor.failing)
        if ours and ladder and torch:
            words.append(
                f"{heads} x {n:,}: rung {ours.rung} at "
                f"{share(ours, item.tensor.ceiling):.2f} times the SGEMM rate, "
                f"{ladder.median_ms / ours.median_ms:.2f} times as fast as rung {ladder.rung}, "
                f"{torch.median_ms / ours.median_ms:.2f} times as fast as {torch.what}"
                + (f", {ours.median_ms / half.median_ms:.2f} times the time of {half.what}, which "
                   f"misses the gate by {half.fraction:.0f} times" if half else ""))
    if not words:
        return []
    return [Sentence(f"Heads x N. {'; '.join(words)}.", "recorded", origin(item))]


def fragments_picture(lane=5):
    """Who holds which number of an FP16 product of 16 x 16 x 8: lanes, and one of them marked."""
    found = fragments.places(rungs.TENSOR[2])
    panels = [_panel(*found["a"], "left operand: 16 rows, 16 summed over", 2, lane),
              _panel(*found["b"], "right operand: 16 summed over, 8 columns", 1, lane),
              _panel(*found["c"], "result: 16 rows, 8 columns", 2, lane)]
    return Picture(panels, f"The numbers of one product, each with the lane that holds it; lane "
                   f"{lane} is marked", "computed")


def _panel(rows, columns, words, wide, lane):
    """One operand: a box for two numbers that a lane holds next to each other."""
    height, width = 18, 320 // (columns.max() + 1)
    panel = Panel(f"{words}; lane {lane} holds " + ", ".join(
        f"row {r} column {c}" for r, c in zip(rows[lane], columns[lane])),
        height * (rows.max() + 1) + 24)
    panel.text(0, 12, words, bold=True)
    for who in range(32):
        for r, c in list(zip(rows[who], columns[who]))[::2]:
            panel.box(4 + c * width, 22 + r * height, width * wide - 2, height * (3 - wide) - 2,
                      "1" if who == lane else "line", of=who)
            panel.text(4 + c * width + (width * wide - 2) / 2, 22 + (r + (3 - wide) / 2) * height
                       + 3, who, anchor="middle", bold=who == lane)
    return panel


def counted():
    """What the counters saw of tensor cores, and how fast their products go alone."""
    parts = []
    for item in evidence.shown("tensor"):
        busy = {c.rung: c for c in item.tensor.counters or []}
        rates = {rate.rung: rate.tflops for rate in item.tensor.rates}
        n = next(iter(busy.values())).n if busy else BENCH_N[-2]
        t = Table("Tensor cores, one head", ["rung", "products alone, TFLOP/s",
                  f"tensor cores busy, N = {n:,}", "instructions, million",
                  "shared passes, million", "registers", "spilled, bytes"], note=origin(item))
        for r, facts in zip(rungs.TENSOR, item.tensor.facts):
            c = busy.get(r.number)
            t.add("recorded", title(r), f"{rates[r.number]:.0f}",
                  f"{c.tensor:.0%}" if c and c.tensor is not None else "–",
                  *((f"{c.instructions / 1e6:.1f}", f"{c.shared_wavefronts / 1e6:.1f}") if c
                    else ("–", "–")), facts.registers, facts.spill_bytes)
        parts.append(t)
    return Tables(parts or [Sentence(NO_TENSOR, "computed")])


def agreement():
    """Products of random fragments: a recorded GPU's beside those of the host form, bit for bit."""
    parts = []
    for item in evidence.shown("tensor"):
        t = Table("Products on this GPU and in the host form",
                  ["rung", "numbers", "results", "bits differ in"], note=origin(item))
        found = item.tensor.fragments or []
        for a in found:
            t.add("recorded", title(rungs.rung(a.rung)), a.kind, f"{a.results:,}", a.different)
        if found:
            parts += [Sentence(f"Of {sum(a.results for a in found):,} results "
                               f"{sum(a.different for a in found)} differ in any bit.", "recorded",
                               origin(item)), Folded("By rung and kind of numbers", t)]
    return Tables(parts or [Sentence(NO_TENSOR, "computed")])


def broken():
    """The broken kernels on tensor cores, and the case that rejected each, as recorded."""
    parts = []
    for item in evidence.shown("tensor"):
        rows = item.tensor.mutants
        parts.append(Sentence(f"Rejected: {sum(row.rejected for row in rows)} of {len(rows)} "
                              "broken kernels.", "recorded", origin(item)))
        t = Table(f"Broken on purpose, N = {rows[0].n}",
                  ["broken kernel", "must be caught by", "verdict there"], note=origin(item))
        for row in rows:
            t.add("recorded", row.mutant, row.case,
                  "rejected" if row.rejected else "LET THROUGH")
        parts.append(Folded(t.title, t))
    t = Table("Broken on purpose", ["broken kernel", "must be caught by"])
    for mutant in mutants.TENSOR:
        t.add("computed", mutant.name, mutant.caught_by)
    return Tables(parts or [Folded(t.title, t), Sentence(NO_TENSOR, "computed")])


def on_a_t4(ns=BENCH_N):
    """The rung for a T4 there, computed, beside the float32 rung for a T4; and the method's test.

    By the method of ``t4_times``: the busiest pipe of the busiest SM, on the line through the
    H200's shortest and longest run. Between these two the same line is held to what was recorded.
    """
    r, base = rungs.TENSOR[-1], rungs.SMALL
    item = t4.recorded("tensor")
    t = Table("A T4, one head, computed",
              ["N", *(f"rung {x.number}, ms" for x in (base, r)), "times as fast",
               "proven: at least, ms", f"rung {r.number} on the H200: computed, ms",
               "recorded, ms"])
    times = {}
    if item:
        counted_ = {c.rung: c for c in item.tensor.counters}
        rates = {rate.rung: 1e12 * rate.tflops for rate in item.tensor.rates}
        for x in (base, r):
            c, rate = counted_[x.number], rates.get(x.number)
            of_h200 = t4.line(x, item.tensor.rows, c, rate)
            for gpu, speed in ((T4, T4.tensor_flops), (H200, rate)):
                for n in ns:
                    ms = t4.estimated(x, n, gpu, c, speed)[0]
                    times[x, gpu, n] = of_h200[0] + of_h200[1] * ms
    for n in ns:
        least = 1e3 * t4.PRODUCTS * of(n).operations / T4.tensor_flops
        if not item:
            t.add("computed", f"{n:,}", "–", "–", "–", f"{least:.3f}", "–", "–")
            continue
        row = next((row for row in item.tensor.rows
                    if (row.what, row.heads, row.n) == (r.label, 1, n)), None)
        t.add("computed", f"{n:,}", f"{times[base, T4, n]:.3f}", f"{times[r, T4, n]:.3f}",
              f"{times[base, T4, n] / times[r, T4, n]:.2f}", f"{least:.3f}",
              f"{times[r, H200, n]:.4f}", f"{row.median_ms:.4f}" if row else "–")
    t.note = f"with the help of {item.gpu}, {item.day}" if item else ""
    t.footer = (f"at least: 3 x 4 N^2 d operations at the datasheet's "
                f"{T4.tensor_flops / 1e12:g} TFLOP/s. "
                + ("computed: the busiest of three pipes (mma, shared memory, float32) on the "
                   "busiest SM, with what was counted on the H200, on the line through its "
                   "shortest and its longest run" if item else f"no prediction: {NO_TENSOR}"))
    return t

