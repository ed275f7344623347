"""A trace, small enough for a page: loops folded, the lanes' addresses as patterns.

What is folded is counted. A loop keeps its first two trips and its last one where all its trips are
alike: the same instructions, the same lanes, the same passes and sectors.
"""

import re

import numpy as np

from ..machine.emulator import trace as traces
from ..text.source import lines_of

KINDS = "rwasvb"  # of a site, by trace.py's numbers: read, write, atomic, shuffle, vote, barrier
ALIKE = 4  # trips that a loop must have, to be folded
LONGEST = 4096  # steps of a trip that is looked for


def record(trace, source):
    """What the widget draws of a Trace: a dictionary for JSON.

    source: the Source that ran. Keys of the dictionary, all offsets in bytes:

    - lines: [number, text] of the functions that ran; files: [first of the lines, file or cell].
    - arrays: {name, shape} of the arguments, then {name, start, bytes} of shared memory.
    - sites: [line, kind, place, bytes a lane, inner line]; a line is a number of ``lines``, the
      inner one that of a function which it calls, or -1; place: of ``arrays``, -1 is shared memory
      as a whole, -2 none.
    - patterns: offsets of the lanes from the lowest: [mask of the lanes, g, a, b] for lane l at
      a (l mod g) + b (l div g), or [mask, [offset, ...]].
    - steps: [site, pattern, lowest offset, cost, least]; of a barrier [site, station].
    - folds: {step: [[trips, steps], ...]} that are left out after it.
    - stations: [warp, work] pairs; works: [line, how often] pairs.
    - totals: {line: [accesses of shared memory, passes, least, of global memory, sectors, least,
      bytes]} of the whole run, folded or not.
    - count: steps of the whole run. rest: the station at its end. failed: a line, or None.
    """
    return _Recording(trace, source).data()


class _Recording:
    def __init__(self, trace, source):
        self.trace = trace
        self.tables = {"sites": {}, "patterns": {}, "works": {}, "stations": {}}
        self.lines, self.files = _lines(source, set().union(*trace.sites.values()))
        self.at = {place: i for i, place in enumerate(self.lines)}
        self.count = len(trace.buffers)

    def number(self, table, entry):
        """The place of an entry in one of the tables."""
        return self.tables[table].setdefault(entry, len(self.tables[table]))

    def data(self):
        steps = [self.step(step) for step in self.trace.steps]
        kept, folds = _fold([self.token(step, made) for step, made in
                             zip(self.trace.steps, steps, strict=True)])
        trace = self.trace
        found = {
            "lines": [[place[1], text] for place, text in self.lines.items()],
            "files": self.files,
            "arrays": [*({"name": name, "shape": list(shape)} for name, shape in
                         trace.buffers.items()),
                       *({"name": name, "start": start, "bytes": self.used(start, size)}
                         for start, size, name in trace.shared)],
            "steps": [steps[i] for i in kept],
            "folds": folds,
            "totals": self.totals(),
            "count": len(steps),
            "rest": self.station(trace.rest),
            "failed": self.at.get(trace.failed),
        }
        tables = {name: [list(entry) for entry in table] for name, table in self.tables.items()}
        return {**found, **tables}

    def line(self, pc):
        """The number of the kernel's own line that a program counter belongs to, or -1."""
        frames = self.trace.sites.get(pc, ())
        return self.at.get(frames[-1], -1) if frames else -1

    def used(self, start, size):
        """Bytes of an array of shared memory; where it is large, of the part that the warp uses."""
        if size <= 48 * 1024:
            return size
        ends = [offset + step.bytes for step in self.trace.steps if step.place == traces.SHARED
                and step.kind <= traces.ATOMIC for offset in step.offsets.values()]
        return -(-(max(ends, default=start) - start) // 128) * 128

    def step(self, step):
        place = step.place
        if place == traces.SHARED and step.kind <= traces.ATOMIC:
            first = min(step.offsets.values())
            inside = [i for i, (start, size, _) in enumerate(self.trace.shared)
                      if start <= first < start + size]
            place = self.count + inside[0] if inside else traces.SHARED
        frames = self.trace.sites.get(step.pc, ())
        inner = self.at.get(frames[0], -1) if len(frames) > 1 else -1
        site = self.number("sites", (self.line(step.pc), KINDS[step.kind], place, step.bytes,
                                     inner))
        if step.kind == traces.BARRIER:
            return [site, self.station(step.work)]
        lowest = min(step.offsets.values())
        pattern = self.number("patterns", _pattern(step.offsets, lowest))
        return [site, pattern, lowest, step.cost, step.least]

    def token(self, step, made):
        """What two steps have in common that are alike."""
        site, pattern, *rest = made
        if step.kind == traces.BARRIER:
            return (site,)
        lanes = tuple(step.offsets)
        if step.kind == traces.SHUFFLE:
            one = len(set(step.offsets.values())) == 1
            return (site, lanes, -1 if one else (pattern, rest[0]))
        return (site, lanes, step.cost, step.least)

    def station(self, work):
        """The number of a station, from {warp: {pc: how often}}."""
        pairs = []
        for warp, done in sorted(work.items()):
            lines = {}
            for pc, times in done.items():
                line = self.line(pc)
                lines[line] = lines.get(line, 0) + times
            pairs.append((warp, self.number("works", tuple(sorted(lines.items())))))
        return self.number("stations", tuple(pairs))

    def totals(self):
        found = {}
        for step in self.trace.steps:
            if step.kind > traces.ATOMIC:
                continue
            line = found.setdefault(self.line(step.pc), [0] * 7)
            first = 0 if step.place == traces.SHARED else 3
            for i, more in enumerate((1, step.cost, step.least)):
                line[first + i] += more
            if first:
                line[6] += step.bytes * len(step.offsets)
        return found


def _lines(source, touched):
    """({(file, line): text}, [[first line, file], ...]) of the functions that ran."""
    kept, files, block, ran = {}, [], {}, False
    for place, text in lines_of(source).items():
        if text.startswith(("// snippet:", "// end snippet")):
            continue
        if not text.strip() and not (block and not _ended(block)):
            block, ran = {}, False
            continue
        block[place] = text
        ran |= place in touched
        if text.rstrip() == "}":
            if ran:
                kept |= block
            block, ran = {}, False
    kept = _without_preamble(kept)
    for i, (file, _) in enumerate(kept):
        if not files or files[-1][1] != file:
            files.append([i, file])
    return kept, files


_FUNCTION = re.compile(r"^(extern|__global__|__device__|template|static|inline|struct)\b")


def _ended(block):
    """Whether no function has begun in these lines: a blank line then ends what they say."""
    return not any(_FUNCTION.match(text) for text in block.values())


def _without_preamble(lines):
    """The lines without those before a function that are no comment of it."""
    kept, inside = {}, False
    for place, text in lines.items():
        if not inside and _FUNCTION.match(text):
            inside = True
        if inside or text.startswith("//"):
            kept[place] = text
        if text.rstrip() == "}":
            inside = False
    return kept


def _pattern(offsets, lowest):
    """A pattern of the lanes' offsets, as ``record`` says."""
    mask = sum(1 << lane for lane in offsets)
    lanes = np.array(sorted(offsets))
    apart = np.array([offsets[lane] - lowest for lane in lanes.tolist()])
    for group in (32, 16, 8, 4, 2):
        terms = np.stack([lanes % group, lanes // group], axis=1)
        fit, *_ = np.linalg.lstsq(terms.astype(float), apart.astype(float), rcond=None)
        found = np.rint(fit).astype(int)
        if np.array_equal(terms @ found, apart):
            return (mask, group, *found.tolist())
    return (mask, tuple(apart.tolist()))


def _fold(tokens):
    """(the steps to keep, {place among those: what is left out after it}) of a row of tokens."""
    names = {}
    keys = np.array([names.setdefault(token, len(names)) for token in tokens], dtype=np.int64)
    nodes = list(range(len(tokens)))  # a step, or (trips, nodes of each trip)
    period = 1
    while period <= min(LONGEST, len(nodes) // ALIKE):
        run = _run(keys, period)
        if run is None:
            period += 1
            continue
        start, trips = run
        body = tuple(keys[start:start + period].tolist())
        name = names.setdefault(("loop", trips, body), len(names))
        each = [nodes[start + i * period:start + (i + 1) * period] for i in range(trips)]
        nodes[start:start + trips * period] = [each]
        keys = np.r_[keys[:start], name, keys[start + trips * period:]]
        period = 1
    kept, folds = [], {}
    _keep(nodes, kept, folds)
    return kept, folds


def _run(keys, period):
    """(start, trips) of the first loop with trips of ``period`` steps, or None."""
    same = np.r_[False, keys[period:] == keys[:-period], False]
    edges = np.flatnonzero(same[1:] != same[:-1])
    starts, ends = edges[::2], edges[1::2]
    long = np.flatnonzero(ends - starts >= (ALIKE - 1) * period)
    if not len(long):
        return None
    start, end = int(starts[long[0]]), int(ends[long[0]])
    return start, (end - start) // period + 1


def _keep(nodes, kept, folds):
    for node in nodes:
        if isinstance(node, int):
            kept.append(node)
            continue
        for trip in (0, 1):
            _keep(node[trip], kept, folds)
        left = node[2:-1]
        folds.setdefault(len(kept) - 1, []).append([len(left), sum(map(_size, left))])
        _keep(node[-1], kept, folds)


def _size(node):
    return 1 if isinstance(node, int) else sum(map(_size, node))
