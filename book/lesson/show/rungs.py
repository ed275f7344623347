"""Each rung's header, difference and story, and all rungs beside each other."""

import difflib
import re
from dataclasses import dataclass
from html import escape

from ..errors import ArgumentError
from ..launch import paths, rungs
from ..machine import backend as backends
from ..measure import bench, callers, evidence
from ..problem.problem import of
from ..progress import Progress
from ..tables import Folded, Sentence, Table, Tables, mark_html, mib, ms
from ..text import source
from . import bars
from .figures import fallback
from .marks import NO_BENCH, origin
from .stories import COUNTED_N, row_of, story

OPEN_LINES = 25  # a longer diff is folded
PARTS = ("What changes", "What it buys", "What it costs", "Prediction")  # of a header, in order


def title(r):
    """A rung in a table: a cell that begins with a word stands on the left."""
    return f"rung {r.number}, {r.idea}"


@dataclass(frozen=True)
class Header:
    """The head of a rung's file: its first sentence, then {part: text} in the order of the file."""

    title: str
    parts: dict

    def text(self):
        return "\n".join([self.title, *(f"{name}: {said}" for name, said in self.parts.items())])

    __repr__ = text

    def _repr_html_(self):
        said = "".join(f"<dt>{escape(name)}</dt><dd>{escape(_begun(words))}</dd>"
                       for name, words in self.parts.items())
        return (f'<div class="lesson-output" data-mark="computed"><p><strong>{escape(self.title)}'
                f'</strong> {mark_html("computed")}</p><dl class="lesson-header">{said}</dl></div>')


def _begun(words):
    """A sentence with its capital letter, unless it begins with a name: b, m, l, o, cp.async."""
    return words if re.match(r"[bmlo]\b|\w+\.\w", words) else words[:1].upper() + words[1:]


@dataclass(frozen=True)
class Change:
    """A rung's file against that of the rung it changes, as a diff; a long one is folded."""

    rung: rungs.Rung
    lines: list

    @property
    def label(self):
        r = self.rung
        branch = ", a branch," if r.leaves else ""
        return (f"Rung {r.number}{branch} against rung {rungs.before(r).number}: "
                f"{changed_lines(r)} changed lines of code")

    def text(self):
        return "\n".join([self.label, *self.lines])

    __repr__ = text

    def _repr_html_(self):
        body = ('<div class="lesson-scroll" role="region" tabindex="0" style="overflow-x:auto" '
                f'aria-label="{self.label}"><pre class="lesson-diff">'
                f'{"".join(map(diff_line, self.lines))}</pre></div>')
        said = f'{self.label} {mark_html("computed")}'
        if len(self.lines) > OPEN_LINES:
            shown = f"<details><summary>{said}</summary>{body}</details>"
        else:
            shown = f'<p class="lesson-note">{said}</p>{body}'
        return f'<div class="lesson-output" data-mark="computed">{shown}</div>'


def diff_line(line):
    """A line of a diff. Its sign says what it is; the colour says it again."""
    heading = line.startswith(("--- ", "+++ ", "@@ "))  # of a file, or of a place in it
    kind = "place" if heading else {"+": "added", "-": "removed"}.get(line[:1], "")
    colour = (f";background:var(--lesson-{kind}, {fallback(kind)}40)"
              if kind in ("added", "removed") else "")
    return f'<span class="{kind}" style="display:block{colour}">{escape(line) or " "}\n</span>'


def rung(which):
    """A rung in its order: what its header says, what changes in the file, and what came of it."""
    r = rungs.rung(which)
    return Tables([header(r), Change(r, difference(r)), *_with_bars(r, story(r))])


def _with_bars(r, told):
    """A story whose sentences on counts open the bars of rung ``r`` and the one it changes."""
    base = rungs.before(r)
    for item in evidence.shown("bench"):
        found = {c.rung: c for c in item.bench.counters or [] if c.n == COUNTED_N}
        of_item = [x for x in told if x.note == origin(item)]
        if {r.number, base.number} <= found.keys() and len(of_item) > 1:
            picture = bars.counts([found[base.number], found[r.number]],
                                  f"Rung {r.number} beside rung {base.number}, N = {COUNTED_N:,}",
                                  origin(item))
            told = [Behind(x, picture) if x is of_item[-1] else x for x in told]
    return told


@dataclass(frozen=True)
class Behind:
    """A Sentence, and the picture that a page shows behind it when it is asked for."""

    said: Sentence
    picture: bars.Picture

    def text(self):
        return f"{self.said.text()}\n{self.picture.text()}"

    def _repr_html_(self):
        words = f"{escape(self.said.words)} {mark_html(self.said.mark, self.said.note)}"
        return ('<details style="border:0;padding:0"><summary style="font-weight:normal" '
                f'data-mark="{self.said.mark}">{words}</summary>{self.picture._repr_html_()}'
                "</details>")


def times_of_rungs(n=4096, live=True):
    """Every rung for one N, and the library's calls: bars, and gate fraction, time, share of SGEMM.

    ``live``: also measured here where there is a GPU; at N = 16384 that takes a T4 a minute.
    """
    paths.HANDLES.refuse(of(n))
    t = Table(f"The ladder, one head, N = {n:,}",
              ["rung", "splits", "gate fraction", "time, ms (min–max)", "against", "of SGEMM",
               "where"])
    chosen, pictures = backends.choose(), []
    if live and chosen is not None and chosen.mark == "live":
        with Progress() as progress:
            inputs, rows = callers.Inputs(n), []
            runnable = rungs.runnable(chosen)
            for i, r in enumerate(runnable):
                progress(f"the ladder, N = {n}", i, len(runnable))
                rows.append(bench.time_rung(chosen, r, inputs))
            try:
                top = callers.ceiling(chosen, callers.Sgemm(chosen.cupy))
            except Exception as error:  # CuPy's wheel brings no cuBLAS: the times stand without it
                top = None
                t.footer = f"no SGEMM rate, since cuBLAS does not run here: {error}"
        _rung_rows(t, {row.rung: row for row in rows}, top, "live", "this GPU")
        pictures.append(bars.times(rows, t.title, "live", "this GPU"))
    for item in evidence.shown("bench"):
        rows = {r.number: row_of(item.bench, r, n) for r in rungs.RUNGS}
        _rung_rows(t, {k: row for k, row in rows.items() if row}, item.bench.ceiling, "recorded",
                   origin(item))
        if timed := [row for row in item.bench.rows if (row.n, row.heads) == (n, 1)]:
            pictures.append(bars.times(timed, t.title, "recorded", origin(item), [
                line for line in item.bench.refused if f"{of(n)}:" in line]))
    if not t.rows:
        t.footer = NO_BENCH
        return t
    places = {cells[-1] for cells, _ in t.rows}
    if len(places) == 1:  # said once, in the caption
        t.note = places.pop()
        t.columns.pop()
        t.rows = [(cells[:-1], mark) for cells, mark in t.rows]
    return Tables([*pictures, Folded(f"{t.title}: the numbers", t)])


def _rung_rows(t, rows, top, mark, where):
    for r in rungs.RUNGS:
        if row := rows.get(r.number):
            base = rows.get(rungs.before(r).number) if r.number > 1 else None
            against = f"{base.median_ms / row.median_ms:.2f}x rung {base.rung}" if base else "–"
            t.add(mark, title(r), row.splits, f"{row.fraction:.3f}",
                  ms(row), against, f"{bench.share(row, top):.1%}" if top else "–", where)


def counters_of_rungs():
    """What the hardware counters saw of each rung: bars, and the numbers."""
    parts = []
    for item in evidence.shown("bench"):
        counted = {c.rung: c for c in item.bench.counters or []}
        if not counted:
            continue
        n = next(iter(counted.values())).n
        t = Table(f"Counters of the ladder, N = {n:,}",
                  ["rung", "instructions, million", "shared passes, million", "local, MiB",
                   "L2, MiB", "DRAM, MiB", "SMs busy", "issue slots used", "warps wait most for"],
                  note=origin(item))
        for r in rungs.RUNGS:
            if c := counted.get(r.number):
                t.add("recorded", title(r), f"{c.instructions / 1e6:.1f}",
                      f"{c.shared_wavefronts / 1e6:.1f}", mib(c.local_bytes), mib(c.l2_bytes),
                      mib(c.dram_bytes), f"{c.busy:.0%}", f"{c.issued:.0%}", _waits(c))
        t.footer = ("warps wait most for: mean number of warps of a scheduler that wait for this "
                    "when an instruction is issued")
        parts += [bars.counts(list(counted.values()), t.title, origin(item)),
                  Folded(f"{t.title}: the numbers", t)]
    return Tables(parts or [Sentence(f"no counters: {NO_BENCH}, with Nsight Compute", "computed")])


def _waits(c):
    """The two reasons that most warps wait for."""
    most = sorted(c.stalls.items(), key=lambda kv: -kv[1])[:2]
    return ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in most) or "–"


def header(which):
    """The Header of a rung's file."""
    r = rungs.rung(which)
    if r.number == 1:
        raise ArgumentError("rung 1 is the lesson's kernel: there is none before it")
    lines = source.read(r.name).split("\n\nconstexpr")[0].splitlines()
    first, parts, name = [], {}, None
    for line in (line.removeprefix("//").strip() for line in lines):
        if begins := re.match(rf"({'|'.join(PARTS)}|Why it is safe)[:.] (.*)", line):
            name, line = begins.groups()
            parts[name] = []
        if line:
            (parts[name] if name else first).append(line)
    return Header(" ".join(first), {name: " ".join(said) for name, said in parts.items()})


def prediction(which):
    """What a rung's header predicted before it was measured, in one line."""
    return header(which).parts["Prediction"]


def difference(which):
    """A rung's file against that of the rung it changes: unified-diff lines, headers left out."""
    base, r = _pair(which)
    old, new = (_body(source.read(x.name)) for x in (base, r))
    return list(difflib.unified_diff(old, new, base.name + ".cu", r.name + ".cu", n=2, lineterm=""))


def changed_lines(which):
    """How many lines of code a rung adds and removes; comments and empty lines do not count."""
    base, r = _pair(which)
    old, new = (source.code(source.read(x.name)).splitlines() for x in (base, r))
    return sum(line[:1] in "+-" for line in
               list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:])


def _pair(which):
    """The rung that a rung changes, and the rung."""
    r = rungs.rung(which)
    if r.number == 1:
        raise ArgumentError("rung 1 is the lesson's kernel: there is none before it")
    return rungs.before(r), r


def _body(text):
    """Lines of a source without its header and its snippet marks."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line and not line.startswith("//"))
    return [line for line in lines[start:]
            if not line.startswith(("// snippet: ", "// end snippet"))]
