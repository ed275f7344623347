"""The whole way, from the first kernel to the last: one picture and one table of all rungs."""

from dataclasses import dataclass

from ..errors import ArgumentError
from ..launch import rungs
from ..machine import gpus
from ..measure import evidence
from ..measure.bench import share
from ..measure.records import Row
from ..tables import Folded, Sentence, Table, Tables
from ..text import source
from .drawing import BIG, Panel, Picture
from .marks import NO_TENSOR, origin
from .rungs import title
from .stories import row_of

NEEDS = {"halves": rungs.HALVES, "images": rungs.IMAGES}  # sources of the launch before a rung


@dataclass(frozen=True)
class Step:
    """A Row of one of the two comparisons of a recorded run, and its share of that one's SGEMM."""

    row: Row
    share: float
    registers: int | None  # of a thread, on the recorded GPU

    @property
    def rung(self):
        """The Rung, or None for a library's call."""
        return rungs.rung(self.row.rung) if self.row.rung else None

    @property
    def name(self):
        return title(self.rung) if self.rung else self.row.what


def steps(item, n=4096, heads=1):
    """(rungs in their order, callers, the slowest first, what is outside the gate) as Steps.

    Rungs on float32 units and CuPy's call are of the ladder's comparison, all others of that on
    tensor cores.
    """
    registers = {f.kernel: f.registers for f in (*item.bench.facts, *item.tensor.facts)}

    def step(found, row):
        name = rungs.rung(row.rung).name if row.rung else None
        return Step(row, share(row, found.ceiling), registers.get(name))

    ladder = [step(item.bench, row) for r in rungs.RUNGS
              if (row := row_of(item.bench, r, n, heads))]
    narrow = [step(item.tensor, row) for r in (*rungs.TENSOR, *rungs.HOPPER)
              if (row := row_of(item.tensor, r, n, heads))]
    mine = [row for row in item.tensor.rows if (row.rung, row.n, row.heads) == (0, n, heads)]
    known = {row.what for row in mine}
    calls = [step(item.tensor, row) for row in mine] + [
        step(item.bench, row) for row in item.bench.rows
        if (row.rung, row.n, row.heads) == (0, n, heads) and row.what not in known]
    outside = [step(item.tensor, row) for row in item.tensor.failing
               if (row.n, row.heads) == (n, heads)]
    slowest = sorted(calls, key=lambda s: -s.row.median_ms)
    return [*ladder, *narrow], slowest, outside


def way(n=4096, heads=1):
    """All rungs and all callers of one recorded run: a picture of their rates, and a table of what
    each costs. Raises ArgumentError where no run has that size."""
    parts, sizes = [], set()
    for item in evidence.shown("tensor"):
        if item.bench is None:
            continue
        sizes |= {(row.heads, row.n) for row in item.tensor.rows}
        if (heads, n) in sizes:
            found = steps(item, n, heads)
            caption = (f"The whole way, {heads} head{'s' * (heads > 1)}, N = {n:,}: "
                       "rate as a multiple of the SGEMM rate in the same run")
            parts += [Picture(_panels(*found), caption, "recorded", origin(item)),
                      _table(item, n, heads, *found)]
    if sizes and not parts:
        raise ArgumentError(f"heads = {heads}, n = {n}: recorded are (heads x N) " + ", ".join(
            f"{h} x {k:,}" for h, k in sorted(sizes)))
    return Tables(parts or [Sentence(NO_TENSOR, "computed")])


def beside(item, which, sizes):
    """Rates of some rungs on tensor cores, PyTorch and what is outside the gate, in one run of a
    recorded GPU: a Picture with a panel for each (heads, N) of ``sizes``."""
    numbers, panels = [r.number for r in which], []
    groups = {(heads, n): [[Step(row, share(row, item.tensor.ceiling), None) for row in rows
                            if (row.heads, row.n) == (heads, n) and row.rung in kinds]
                           for rows, kinds in ((item.tensor.rows, numbers), (item.tensor.rows, [0]),
                                               (item.tensor.failing, [0]))]
              for heads, n in sizes}
    scale = (328 - NAMES - TIMES) / max(s.share for found in groups.values() for group in found
                                        for s in group)
    for (heads, n), found in groups.items():
        words = f"{heads} x {n:,}: float32 accuracy", "A library's calls", OUTSIDE
        panels.append(_panel(list(zip(words, found, strict=True)), scale, 30))
    return Picture(panels, "Heads x N: rate as a multiple of the SGEMM rate in the same run",
                   "recorded", origin(item))


# --- the picture ----------------------------------------------------------------------------------

NAMES = 26  # px before a bar
TIMES = 52  # px for a time behind it
OUTSIDE = "Outside the gate, so no result"


def _panels(ladder, calls, outside):
    """Two panels: rungs on float32 units; then tensor cores, libraries, and what fails."""
    most = max(s.share for s in (*ladder, *calls, *outside))
    scale = (328 - NAMES - TIMES) / most
    plain = [s for s in ladder if s.rung in rungs.RUNGS]
    narrow = [s for s in ladder if s not in plain]
    return [_panel([("On float32 units", plain)], scale, 20),
            _panel([("On tensor cores, float32 accuracy", narrow), ("A library's calls", calls),
                    (OUTSIDE, outside)], scale, 30)]


def _panel(groups, scale, tall):
    """Bars of some groups of Steps; with rows of 30 px a name stands above its bar."""
    groups = [(words, found) for words, found in groups if found]
    p = Panel(" ".join(f"{words}, times the SGEMM rate: " + ", ".join(
        f"{s.name} {s.share:.2f} ({s.row.median_ms:.4f} ms)" for s in found) + "."
        for words, found in groups),
        sum(30 + tall * len(found) for _, found in groups) + 22)
    y, sgemm = 0, NAMES + scale
    for words, found in groups:
        p.text(0, y + 16, words, BIG, bold=True)
        y += 26
        for s in found:
            name = s.rung.idea if s.rung else s.row.what
            colour = "fail" if s.row.fraction > 1 else "1" if s.rung else "2"
            length, at = scale * s.share, y + tall - 18
            if s.rung:
                p.text(0, at + 12, s.row.rung)
            p.box(NAMES, at, length, 14, colour, solid=s.row.fraction <= 1,
                  dash=s.row.fraction > 1, of=s.name)
            if tall > 20:
                p.text(NAMES, y + 9, name)
                x = NAMES + length + 4
                x = sgemm + 4 if x < sgemm < x + 44 else x  # not on the line
                p.text(x, at + 12, f"{s.row.median_ms:.4f}")
            else:
                p.text(sgemm + 6, at + 12, name)
                p.text(327, at + 12, f"{s.row.median_ms:.4f}", anchor="end")
            p.line(sgemm, at - 2, sgemm, at + 16)
            y += tall
        y += 4
    p.text(sgemm, y + 14, "| SGEMM: 1", anchor="middle", muted=True)
    p.text(327, y + 14, "numbers: ms", anchor="end", muted=True)
    return p


# --- the table ------------------------------------------------------------------------------------

def lines(r, splits=1):
    """Lines of code of a rung, comments aside: its file, and those of the launches beside it."""
    names = [r.name, *(name for kind, name in NEEDS.items() if getattr(r, kind))]
    names += [rungs.MERGE] if splits > 1 else []
    return sum(len(source.code(source.read(name)).splitlines()) for name in names)


def capabilities(r):
    """Compute capabilities of datasheets that hold a block of a rung: '7.5 and newer', '9.0'."""
    known = sorted(gpus.by_arch().values(), key=lambda gpu: int(gpu.arch[3:]))
    holds = [bool(rungs.blocks_on(r, gpu)) for gpu in known]
    named = [f"{gpu.arch[3:-1]}.{gpu.arch[-1]}" for gpu in known]
    first = holds.index(True)
    if all(holds[first:]):
        return f"{named[first]} and newer"
    return ", ".join(name for name, held in zip(named, holds) if held)


def _table(item, n, heads, ladder, calls, outside):
    t = Table(f"The whole way, {heads} head{'s' * (heads > 1)}, N = {n:,}",
              ["what", "time, ms", "of SGEMM", "gate fraction", "lines of code", "registers",
               "compute capability"], note=origin(item))
    for s in (*ladder, *calls, *outside):
        r = s.rung
        cost = (lines(r, s.row.splits), s.registers or "–", capabilities(r)) if r else ("–",) * 3
        t.add("recorded", f"fails: {s.name}" if s.row.fraction > 1 else s.name,
              f"{s.row.median_ms:.4f}", f"{s.share:.2f}", f"{s.row.fraction:.3f}", *cost)
    t.footer = ("Two interleaved comparisons of one record: rungs 1 to "
                f"{rungs.RUNGS[-1].number} and CuPy, and all others; a share is of the same one's "
                "SGEMM rate. Lines: without comments, with the launches before and after a rung. "
                "Registers: of a thread, on that GPU. Compute capability: where a block fits, of "
                + ", ".join(f"{gpu.arch[3:-1]}.{gpu.arch[-1]}" for gpu in sorted(
                    gpus.by_arch().values(), key=lambda gpu: int(gpu.arch[3:])))
                + ". fails: outside the gate, above 1")
    return Folded(f"{t.title}: the numbers, and what each costs", t)
