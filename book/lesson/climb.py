"""What the chapter on the ladder shows: each rung's difference, prediction and measurement."""

from dataclasses import dataclass
from html import escape

import numpy as np

from . import backend as backends
from . import bench, cases, evidence, impossible, ladder, traffic
from .edits import edited
from .edits import note as edited_note
from .errors import ArgumentError
from .gate import judge
from .occupancy import H200, T4
from .progress import Progress
from .reference import attention
from .table import Sentence, Table, Tables, mark_html, mib, ms

SOURCES = (*(r.name for r in ladder.RUNGS), ladder.MERGE)
SHOWN_N = (4096, 16384)
OPEN_LINES = 60  # a longer diff is folded
NO_BENCH = ("no recorded run of the ladder fits these kernels: times need a GPU "
            "(python -m lesson bench)")
NO_LONG = ("no recorded run of the long sequences fits these kernels: they need a GPU "
           "(lesson.run_long())")


# --- what was recorded ---------------------------------------------------------------------------

def recorded(part):
    """The newest Evidence of each GPU that has ``part`` ('bench', 'long') of these sources."""
    found = {}
    for item in evidence.read_all()[0]:
        if getattr(item, part) is not None and not item.stale(SOURCES):
            found.setdefault(item.gpu, item)
    return list(found.values())


def note(item):
    """What a recorded number refers to."""
    return f"{item.gpu}, {item.day}" + (", unedited kernels" if edited() else "")


def title(r):
    """A rung in a table: a cell that begins with a word stands on the left."""
    return f"rung {r.number}, {r.idea}"


def before(r):
    """The rung that a prediction compares with: the one before; rung 13 is a final kernel too."""
    return ladder.BEST if r is ladder.SMALL else ladder.rung(r.number - 1)


def row_called(found, what, n, heads=1):
    """A Row of a Bench by what was timed, or None."""
    return next((row for row in found.rows
                 if (row.what, row.n, row.heads) == (what, n, heads)), None)


def row_of(found, r, n, heads=1):
    """A rung's Row of a Bench, or None; not the row of the lesson's choice."""
    return row_called(found, r.label, n, heads)


# --- one rung ------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Change:
    """A rung's file against the one before, as a diff; a long one is folded."""

    rung: ladder.Rung
    lines: list

    def text(self):
        return "\n".join(self.lines)

    __repr__ = text

    def _repr_html_(self):
        lines = self.lines
        label = f"Rung {self.rung.number} against rung {self.rung.number - 1}"
        body = ('<div class="lesson-scroll" role="region" tabindex="0" style="overflow-x:auto" '
                f'aria-label="{label}"><pre class="lesson-diff">{escape(self.text())}</pre></div>')
        said = f"{label}: {len(lines)} lines of diff"
        if len(lines) > OPEN_LINES:
            body, said = f"<details><summary>{said}</summary>{body}</details>", ""
        return (f'<div class="lesson-output" data-mark="computed">{body}'
                f'<p class="lesson-note">{said} {mark_html("computed")}</p></div>')


def rung(which):
    """A rung in its order: what was predicted, what changes in the file, what was measured."""
    r = ladder.rung(which)
    change = Change(r, ladder.difference(r))
    predicted = Sentence(f"Rung {r.number}, {r.idea}. Predicted before it was measured: "
                         f"{ladder.prediction(r)}", "computed")
    return Tables([predicted, change, *measured(r)])


def measured(r):
    """Sentences on a rung's recorded times against the rung that its prediction names."""
    base, said = before(r), []
    for item in recorded("bench"):
        parts = []
        for n in SHOWN_N:
            this, that = (row_of(item.bench, x, n) for x in (r, base))
            if this and that:
                parts.append(f"at N = {n:,}: {this.median_ms:.4f} ms, {compared(this, that)} "
                             f"rung {base.number}")
        if parts:
            said.append(Sentence(f"Measured: {'; '.join(parts)}.", "recorded", note(item)))
    return said or [Sentence(f"Measured: {NO_BENCH}.", "computed")]


def compared(this, that):
    """'1.30 times as fast as', or how much slower, from two Rows."""
    ratio = that.median_ms / this.median_ms
    if ratio >= 1:
        return f"{ratio:.2f} times as fast as"
    return f"{1 / ratio:.2f} times the time of"


def rung_gate(which, case="spike-late", n=128, splits=None):
    """Run a rung, with this session's edits, on a case and compare with the float64 reference.

    which: 1 to 13, or a name such as '07_lazy'. n: a multiple of 64. Emulated where there is no
    GPU, or one that cannot hold the rung. Raises ArgumentError for a rung, case, N or split that
    does not exist.
    """
    r = ladder.rung(which)
    inputs = cases.make(case, n)
    t = Table(f"Gate: rung {r.number}, {case}, N = {n}",
              ["rung", "splits", "verdict", "gate fraction", "max abs error", "rtol"])
    chosen = backends.choose()
    if chosen is not None and not ladder.blocks_on(r, ladder.device_gpu(chosen)[0]):
        try:  # a T4 lacks the shared memory: the emulator has it
            chosen = backends.choose("emulated")
        except ArgumentError as error:
            t.footer = f"nothing ran: this GPU does not hold a block of rung {r.number}; {error}"
            return t
    if chosen is None:
        t.footer = "nothing ran: there is neither a GPU nor a C++ compiler here"
        return t
    output, planned = ladder.run(chosen, r, inputs, splits)
    ref = attention(inputs.q, inputs.k, inputs.v)
    verdict = judge(output, ref.o, n, ref.max_abs_score)
    t.note = "; ".join(filter(None, (chosen.describe(), edited_note(r.name, ladder.MERGE))))
    t.add(chosen.mark, title(r), planned.splits, "pass" if verdict.passed else "fail",
          f"{verdict.fraction:.3f}", f"{verdict.max_abs_error:.1e}", f"{verdict.rtol:.2g}")
    if not verdict.passed:
        t.footer = verdict.explain(f"rung {r.number}", case, n)
    return t


# --- all rungs -----------------------------------------------------------------------------------

def rung_times(n=4096, live=True):
    """Every rung for one N: gate fraction, time, share of the SGEMM rate.

    ``live``: also measured here where there is a GPU; at N = 16384 that takes a T4 a minute.
    """
    cases.check_n(n)
    t = Table(f"The ladder, one head, N = {n:,}",
              ["rung", "splits", "gate fraction", "time, ms (min–max)", "against", "of SGEMM",
               "where"])
    chosen = backends.choose()
    if live and chosen is not None and chosen.mark == "live":
        with Progress() as progress:
            inputs, rows = bench.Inputs(n, 1), []
            runnable = ladder.runnable(chosen)
            for i, r in enumerate(runnable):
                progress(f"the ladder, N = {n}", i, len(runnable))
                rows.append(bench.time_rung(chosen, r, inputs))
            try:
                top = bench.ceiling(chosen, bench.Sgemm(chosen.cupy))
            except Exception as error:  # CuPy's wheel brings no cuBLAS: the times stand without it
                top = None
                t.footer = f"no SGEMM rate, since cuBLAS does not run here: {error}"
        _rung_rows(t, {row.rung: row for row in rows}, top, "live", "this GPU")
    for item in recorded("bench"):
        rows = {r.number: row_of(item.bench, r, n) for r in ladder.RUNGS}
        _rung_rows(t, {k: row for k, row in rows.items() if row}, item.bench.ceiling, "recorded",
                   note(item))
    if not t.rows:
        t.footer = NO_BENCH
    places = {cells[-1] for cells, _ in t.rows}
    if len(places) == 1:  # said once, in the caption
        t.note = places.pop()
        t.columns.pop()
        t.rows = [(cells[:-1], mark) for cells, mark in t.rows]
    return t


def _rung_rows(t, rows, top, mark, where):
    for r in ladder.RUNGS:
        if row := rows.get(r.number):
            base = rows.get(before(r).number) if r.number > 1 else None
            against = f"{base.median_ms / row.median_ms:.2f}x rung {base.rung}" if base else "–"
            t.add(mark, title(r), row.splits, f"{row.fraction:.3f}",
                  ms(row), against, f"{bench.share(row, top):.1%}" if top else "–", where)


def rung_counters():
    """What the hardware counters saw of each rung, and those rungs that did not get faster."""
    parts = []
    for item in recorded("bench"):
        counted = {c.rung: c for c in item.bench.counters or []}
        if not counted:
            continue
        n = next(iter(counted.values())).n
        t = Table(f"Counters of the ladder, N = {n:,}",
                  ["rung", "instructions, million", "shared passes, million", "local, MiB",
                   "L2, MiB", "DRAM, MiB", "SMs busy", "issue slots used", "warps wait most for"],
                  note=note(item))
        for r in ladder.RUNGS:
            if c := counted.get(r.number):
                t.add("recorded", title(r), f"{c.instructions / 1e6:.1f}",
                      f"{c.shared_wavefronts / 1e6:.1f}", mib(c.local_bytes), mib(c.l2_bytes),
                      mib(c.dram_bytes), f"{c.busy:.0%}", f"{c.issued:.0%}", _waits(c))
        t.footer = ("warps wait most for: mean number of warps of a scheduler that wait for this "
                    "when an instruction is issued")
        parts += [t, *_slower(item, counted, n)]
    return Tables(parts or [Sentence(f"no counters: {NO_BENCH}, with Nsight Compute", "computed")])


def _waits(c):
    """The two reasons that most warps wait for."""
    most = sorted(c.stalls.items(), key=lambda kv: -kv[1])[:2]
    return ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in most) or "–"


def _slower(item, counted, n):
    """A Sentence for each rung that is not faster than the one its prediction compares with."""
    said = []
    for r in ladder.RUNGS[1:]:
        base = before(r)
        this, that = (row_of(item.bench, x, n) for x in (r, base))
        if not (this and that) or this.median_ms < that.median_ms:
            continue
        words = f"Rung {r.number} took {compared(this, that)} rung {base.number}."
        if r.number in counted and base.number in counted:
            a, b = counted[r.number], counted[base.number]
            words += (f" Against it, it issued {a.instructions / b.instructions:.2f} times the "
                      f"instructions and needed {a.shared_wavefronts / b.shared_wavefronts:.2f} "
                      "times the passes through shared memory; issue slots in use went from "
                      f"{b.issued:.0%} to {a.issued:.0%}, and SMs were busy for {a.busy:.0%} of "
                      f"the time, before {b.busy:.0%}. Its warps wait most for {_waits(a)}; those "
                      f"of rung {base.number} for {_waits(b)}.")
        said.append(Sentence(words, "recorded", note(item)))
    return said


# --- splits, the choice, the merge, the lazy rescale ---------------------------------------------

def splits(ns=bench.BENCH_N, which=ladder.BEST.number):
    """How the rule splits the keys of a rung on an H200 and, where it runs there, on a T4."""
    r = ladder.rung(which)
    t = Table(f"Splits of rung {r.number}, one head",
              ["GPU", "N", "tiles", "blocks unsplit", "places", "splits", "blocks"])
    for gpu in (H200, T4):
        resident = ladder.blocks_on(r, gpu)
        for n in ns if resident else ():
            found = ladder.split(r, n, 1, gpu.sms, resident)
            t.add("computed", gpu.name, f"{n:,}", f"{n // r.bn:,}", f"{-(-n // r.bm):,}",
                  gpu.sms * resident, found.splits, f"{found.blocks:,}")
    t.footer = "places: SMs times the blocks that one holds at once"
    return t


def choice(ns=bench.BENCH_N):
    """Which final kernel the lesson takes for each N: on an H200, a T4, and here."""
    t = Table("The lesson's choice, one head", ["GPU", "N", "rung", "splits", "why"])
    gpus = [(gpu.name, gpu, gpu.sms) for gpu in (H200, T4)]
    chosen = backends.choose()
    if chosen is not None and chosen.mark == "live":
        gpus.append(("this GPU", *ladder.device_gpu(chosen)))
    for name, gpu, sms in gpus:
        for n in ns:
            found = ladder.choose(n, 1, gpu, sms)
            t.add("computed", name, f"{n:,}", found.rung.number, found.split.splits, found.why)
    return t


def merge_properties(trials=200, rows=64):
    """The merge on random parts, float32: worst difference of each law, in units of 2^-23.

    Parts have maxima spread over hundreds, so that weights from 1 down to 0 occur.
    """
    rng, worst = np.random.default_rng(6), dict.fromkeys(("commutative", "associative",
                                                           "no keys change nothing"), 0.0)

    def part():
        m = (100 * rng.standard_normal((rows, 1)) * rng.integers(0, 2, (rows, 1)))
        return (m[:, 0].astype(np.float32), rng.uniform(1, 64, rows).astype(np.float32),
                rng.standard_normal((rows, 64)).astype(np.float32))

    none = (np.full(rows, -np.inf, np.float32), np.zeros(rows, np.float32),
            np.zeros((rows, 64), np.float32))
    for _ in range(trials):
        a, b, c = part(), part(), part()
        pairs = {
            "commutative": (ladder.merge(a, b), ladder.merge(b, a)),
            "associative": (ladder.merge(ladder.merge(a, b), c),
                            ladder.merge(a, ladder.merge(b, c))),
            "no keys change nothing": (ladder.merge(a, none), a),
        }
        for law, (one, other) in pairs.items():
            worst[law] = max(worst[law], _apart(one, other))
    t = Table(f"The merge, {trials} random triples of {rows} rows",
              ["law", "worst difference, units of 2^-23"], note="NumPy float32")
    for law, found in worst.items():
        t.add("computed", law, f"{found:.1f}")
    t.footer = "of l relative to l, of o relative to the row's largest |o|; m is equal throughout"
    return t


def _apart(one, other):
    """The worst relative difference of two parts, in units of 2^-23; inf where m differs."""
    (m1, l1, o1), (m2, l2, o2) = one, other
    if not np.array_equal(m1, m2):
        return float("inf")
    apart_l = np.abs(l1 - l2) / np.maximum(np.abs(l2), 1e-30)
    apart_o = np.abs(o1 - o2).max(axis=1) / np.maximum(np.abs(o2).max(axis=1), 1e-30)
    return float(max(apart_l.max(), apart_o.max()) * 2**23)


def rescales(n=1024, names=("periodic", "random", "descending", "ascending", "large"), slack=8.0):
    """How often a warp of 32 rows rescales: at every rise of a maximum, and lazily. Arithmetic.

    Tiles of 64 keys, as in rung 7. ``slack``: in powers of 2, how far a score may exceed m.
    """
    t = Table(f"Rescales of a warp, N = {n:,}",
              ["case", "steps", "some maximum rises", f"rises by more than 2^{slack:g}",
               "largest weight, 2^"])
    for name in names:
        case = cases.make(name, n)
        eager = lazy = steps = 0
        largest = -np.inf
        for row in range(0, n, 32):
            s = case.q[row : row + 32].astype(float) @ case.k.T.astype(float) / 8 * ladder.LOG2E
            top = s.reshape(len(s), -1, 64).max(axis=2)
            m_eager, m = np.full(len(s), -np.inf), np.full(len(s), -np.inf)
            for tile in top.T:
                steps += 1
                eager += bool((tile > m_eager).any())
                m_eager = np.maximum(m_eager, tile)
                if (tile > m + slack).any():
                    lazy += 1
                    m = np.maximum(m, tile)
                largest = max(largest, float((tile - m).max()))
        t.add("computed", name, f"{steps:,}", f"{eager / steps:.0%}", f"{lazy / steps:.0%}",
              f"{largest:.2f}")
    t.footer = "a step is one tile of 64 keys for one warp; each warp's first one rescales"
    return t


# --- against what a reader would call ------------------------------------------------------------

CHOICE = "the lesson's choice"
CUBLAS = "cuBLAS, CuPy softmax, cuBLAS"


def comparison():
    """Every rung, the lesson's choice and the callers, in one recorded run: tables, a sentence."""
    parts = []
    for item in recorded("bench"):
        tables = [bench.times_table(item.bench, heads, "recorded", note(item))
                  for heads in sorted({row.heads for row in item.bench.rows})]
        tables.append(bench.spread_table(item.bench, 4096, 1, "recorded", note(item)))
        parts += [t for t in tables if t.rows] + _verdict(item)
    return Tables(parts or [Sentence(NO_BENCH, "computed")])


def _verdict(item):
    """The choice against each caller and the first kernel, at N = 4096, one head."""
    n, found = 4096, item.bench
    ours = row_called(found, CHOICE, n)
    if ours is None:
        return []
    first = row_of(found, ladder.RUNGS[0], n)
    rest = [row for row in found.rows if (row.n, row.heads, row.rung) == (n, 1, 0)]
    words = [f"{compared(ours, row)} {row.what}" for row in rest]
    if first:
        words.append(f"{compared(ours, first)} the lesson's first kernel")
    return [Sentence(f"At N = {n:,}, one head, the lesson's choice is rung {ours.rung} in "
                     f"{ours.splits} parts: {'; '.join(words)}. It reaches "
                     f"{bench.share(ours, found.ceiling):.0%} of the SGEMM rate.", "recorded",
                     note(item))]


def requested(r, n, splits=1):
    """Bytes of global memory that a rung and its merge ask for; n a multiple of its rows."""
    blocks, row = n // r.bm, 4 * ladder.D
    total = 2 * n * row * blocks + n * row * splits + n * row  # K and V; Q for each part; O
    if splits > 1:
        total += 2 * n * splits * ladder.PART_BYTES  # the parts, written and read
        # the 16 threads of a row in mergeSplits each read its (m, l) of every part
        total += n * splits * 8 * (ladder.D // 4 - 1)
    return total


# --- a T4, computed ------------------------------------------------------------------------------

# Datasheets: FP32 FLOP/s and FP32 lanes of an SM; together they are a clock.
RATES = {"T4": (8.1e12, 64), "H200": (67e12, 128)}


def estimated(r, n, gpu, passes=0.0):
    """(ms, splits) that a rung takes at least on T4 or H200, one head, by two rules.

    The busiest SM has ceil(blocks / SMs) blocks. For each key a block does 128 multiply-adds for
    each of its rows, one a lane and clock, and ``passes`` through shared memory, one a clock; the
    longer of the two counts.
    """
    rate, lanes = RATES[gpu.name]
    clock = rate / (2 * lanes * gpu.sms)
    found = ladder.split(r, n, 1, gpu.sms, max(1, ladder.blocks_on(r, gpu)))
    keys = -(-(n // r.bn) // found.splits) * r.bn * -(-found.blocks // gpu.sms)
    return 1e3 * keys * max(r.bm * 2 * ladder.D / lanes, passes) / clock, found.splits


def t4_times(ns=bench.BENCH_N):
    """Times of the rungs that a T4 runs: a bound, and a prediction with the help of an H200."""
    t = Table("A T4, one head, computed",
              ["rung", "N", "splits", "arithmetic alone, ms", "predicted, ms"])
    item = next((i for i in recorded("bench") if i.gpu.startswith("H200") and i.bench.counters),
                None)
    counted = {c.rung: c for c in item.bench.counters} if item else {}
    for r in ladder.RUNGS:
        if not ladder.blocks_on(r, T4):
            continue
        c = counted.get(r.number)
        passes = c.shared_wavefronts / (c.n * -(-c.n // r.bm)) if c else 0.0
        for n in ns:
            row = row_of(item.bench, r, n) if c else None
            predicted = "–"
            if row:
                near = row.median_ms / estimated(r, n, H200, passes)[0]
                predicted = f"{estimated(r, n, T4, passes)[0] * near:.3f}"
            least, parts = estimated(r, n, T4)
            t.add("computed", title(r), f"{n:,}", parts, f"{least:.3f}", predicted)
    t.note = f"with the help of {item.gpu}, {item.day}" if item else ""
    t.footer = ("predicted: with the shared-memory passes counted on the H200, and as near to "
                "this estimate as the H200 came to its own" if item else
                f"no prediction: {NO_BENCH}")
    return t


# --- the impossible row ---------------------------------------------------------------------------

def long_estimates(ns=impossible.LONG_N):
    """Before anything runs: what N would take, by datasheets; on a GPU also by a short run."""
    t = Table("Before the start", ["N", "score matrix, MiB", "online path in all, MiB",
                                   "H200, at least, s", "T4, at least, s"])
    for n in ns:
        work = 4 * n * n * ladder.D
        t.add("computed", f"{n:,}", mib(traffic.score_matrix_bytes(n)),
              mib(traffic.working_memory(n)["online"]),
              *(f"{work / RATES[name][0]:.3g}" for name in ("H200", "T4")))
    t.footer = "the multiplications and additions alone, at 67 and 8.1 TFLOP/s by the datasheets"
    chosen = backends.choose()
    if chosen is None or chosen.mark != "live":
        return t
    return Tables([t, impossible.estimates_table(chosen, impossible.calibrate(chosen), ns)])


def long_runs():
    """The sequence lengths whose score matrix cannot exist, as they were recorded."""
    parts = []
    for item in recorded("long"):
        parts.append(impossible.table(item.long, "recorded", note(item)))
        first, last = item.long[-2:] if len(item.long) > 1 else item.long * 2
        if last.n > first.n:
            per_key = (last.seconds / last.n) / (first.seconds / first.n)
            parts.append(Sentence(
                f"N = {last.n:,} has {last.n // first.n} times the keys of N = {first.n:,}. It "
                f"took {last.seconds / first.seconds:,.0f} times the time, {per_key:.1f} times "
                f"the time for each key, and {mib(last.device_bytes)} MiB where its score matrix "
                f"would have {mib(last.score_matrix_bytes)}.", "recorded", note(item)))
    return Tables(parts or [Sentence(NO_LONG, "computed")])


def run_long(n=None):
    """Run N keys on this GPU, or the size that it finishes in about ten seconds, and gate it.

    Interrupt it like any cell. Without a GPU it says so and runs nothing.
    """
    if n is not None and (not isinstance(n, int) or n < 1 or n % ladder.BEST.bm):
        raise ArgumentError(f"n = {n}: choose a multiple of {ladder.BEST.bm}, such as 32768")
    chosen = backends.choose()
    if chosen is None or chosen.mark != "live":
        return Sentence("Nothing ran: this needs a GPU. The recorded run stands in.", "computed")
    return impossible.show(n)


# --- plots ----------------------------------------------------------------------------------------

def plot_rungs():
    """Share of the SGEMM rate against rung, at N = 4096 and 16384."""
    return _plots("rungs")


def plot_times():
    """Time against N, log-log: every rung and every caller."""
    return _plots("times")


def plot_roofline():
    """Rate against operations per byte: requested bytes, and those that the counters saw."""
    return _plots("roofline")


def _plots(name):
    found = recorded("bench")
    if not found:
        return Sentence(f"no plot: {NO_BENCH}", "computed")
    from . import ladder_figures

    return Tables([getattr(ladder_figures, name)(item, note(item)) for item in found])
