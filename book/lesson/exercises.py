"""Exercises that grade themselves: a check tests properties on inputs made at that moment.

A reader's answer is a cell ``%%kernel exercise/NAME`` or a Python function;
``lesson.exercise(NAME)`` says which requirement it meets. Inputs come from a fresh seed, so an
answer passes by computing attention and not by knowing the inputs. There are no answers here: the
solutions stand in the chapters, and the tests run them.
"""

import os
import re
import secrets
from dataclasses import dataclass

import numpy as np

from .errors import ArgumentError, InputError, LaunchError, LessonError
from .launch import ladder, masked, paths, rungs
from .machine import backend as backends
from .machine import emulator, nvrtc, prints
from .machine.occupancy import T4, KernelFacts, occupancy
from .measure import gates_and_times
from .measure.gates_and_times import one_order
from .problem.cases import BN, Case, peaked
from .problem.gate import judge
from .problem.problem import Problem
from .problem.reference import attention, weights
from .tables import Table
from .text import source
from .text.edits import answers

D = 64


# ---- inputs that nobody has seen ------------------------------------------------------------

def _steered(rng, levels):
    """Normal q, k, v; key j scores about ``levels[j]`` more with every query, through column 0."""
    n = len(levels)
    q, k, v = (rng.standard_normal((n, D), dtype=np.float32) for _ in range(3))
    q[:, 0] = 2.0
    k[:, 0] = 4.0 * np.asarray(levels, dtype=np.float32)
    return q, k, v + np.float32(0.25)


def _spike(rng, n, low, high):
    levels = np.zeros(n)
    levels[rng.integers(low, high)] = rng.uniform(10, 14)
    return _steered(rng, levels)


def _by_tile(n, levels):
    return np.repeat(levels, BN)[:n]


def _plunge(rng, tiles):
    """Levels of the tiles from -115 to 115 in a random order, but the lowest right after the
    highest: a maximum that falls with the tile's then overflows the rescale, always."""
    low, *between, high = np.linspace(-115, 115, tiles)
    between = list(rng.permutation(between))
    at = rng.integers(0, len(between) + 1)
    return [*between[:at], high, low, *between[at:]]


FRESH = {
    "random": lambda rng, n: tuple(rng.standard_normal((n, D), dtype=np.float32) for _ in range(3)),
    "a spike in the last tile": lambda rng, n: _spike(rng, n, n - BN, n),
    "a spike in the first tile": lambda rng, n: _spike(rng, n, 0, BN),
    "rising scores": lambda rng, n: _steered(
        rng, _by_tile(n, np.cumsum(rng.uniform(1, 3, n // BN)))),
    "scores below -100": lambda rng, n: _steered(rng, np.full(n, -rng.uniform(108, 118))),
    "scores below -10,000": lambda rng, n: _steered(rng, np.full(n, -rng.uniform(10500, 12000))),
    "one key far above its tile": lambda rng, n: (
        *peaked(rng.permutation(n), n),
        rng.standard_normal((n, D), dtype=np.float32) + np.float32(0.25)),
    "scores beyond ±100": lambda rng, n: _steered(rng, _by_tile(n, _plunge(rng, n // BN))),
}


def fresh(seed, multiple=64):
    """A Case of each kind in FRESH, made from ``seed``; N varies, a multiple of ``multiple``.

    One kind has more than 256 keys: a kernel that looks at the first 256 alone must not pass.
    """
    rng = np.random.default_rng(seed)
    for kind, make in FRESH.items():
        n = multiple * int(rng.integers(2, 4) if multiple == 64 else rng.integers(1, 3))
        n += multiple * (256 // multiple) if kind == "one key far above its tile" else 0
        yield Case(kind, n, *(np.ascontiguousarray(x) for x in make(rng, n)), "")


# ---- what a check says -----------------------------------------------------------------------

@dataclass(frozen=True)
class Row:
    """One requirement: met, not met, or (None) not to be decided on this machine."""

    requirement: str
    met: bool | None
    seen: str
    mark: str = "computed"
    details: str = ""


@dataclass(frozen=True)
class Check:
    """What a check found. ``passed``: every requirement is met."""

    name: str
    rows: tuple
    note: str

    @property
    def passed(self):
        return all(row.met for row in self.rows)

    def table(self):
        t = Table(f"Check: {self.name}", ["requirement", "verdict", "seen"], note=self.note)
        for row in self.rows:
            verdict = {True: "pass", False: "fail", None: "not checked here"}[row.met]
            t.add(row.mark, row.requirement, verdict, row.seen)
        failed = [row for row in self.rows if row.met is False]
        if failed:
            t.footer = "\n".join(["Not yet.", *(row.details for row in failed if row.details)])
        else:
            t.footer = "Solved." if self.passed else "Not decided on this machine."
        return t

    def __repr__(self):
        return self.table().text()

    def _repr_html_(self):
        return self.table()._repr_html_()


class _Stop(Exception):
    """The rest of a check has nothing to look at."""


@dataclass
class _Work:
    """One check in the making."""

    name: str
    backend: object
    seed: int
    rows: list

    def row(self, requirement, met, seen, mark=None, details=""):
        self.rows.append(Row(requirement, met, seen, mark or self.backend.mark, details))
        return met

    def source(self):
        """The Source of this exercise with the reader's cell in it."""
        return build(self.name, answer(self.name))

    def run(self, text, case, backend=None, rows=paths.BM):
        """(output, plan) of a Source on a Case, launched with a block for each ``rows`` queries.

        Emulated under one thread order, unless ``backend`` says otherwise.
        """
        backend = backend or (one_order() if self.backend.mark == "emulated" else self.backend)
        planned = paths.online(backend.compile(text), *(backend.put(x) for x in
                                                        (case.q, case.k, case.v)))
        planned.steps = [(kernel, (case.n // rows,), block, args)
                         for kernel, _, block, args in planned.steps]
        return planned.run(), planned

    def run_rung(self, text, case, backend=None, rows=paths.BM):
        """The same of a Source in place of ``ON_EVERY_GPU``, with the keys in one part."""
        backend = backend or (one_order() if self.backend.mark == "emulated" else self.backend)
        planned = ladder.plan(backend, ON_EVERY_GPU, *(backend.put(x) for x in (
            case.q, case.k, case.v)), 1, {ON_EVERY_GPU.name: text})
        return planned.run(), planned

    def gates(self, text, rows=paths.BM, run=None):
        """Attention on every kind of fresh input; stops the check where it is not.

        ``run``: in place of ``self.run``.
        """
        worst, backend = 0.0, self.backend  # every thread order, once
        for case in fresh(self.seed, rows):
            try:
                output, _ = (run or self.run)(text, case, backend, rows)
                backend = None
            except (LaunchError, InputError) as error:
                first, _, rest = str(error).partition("\n")
                self.row("attention on fresh inputs", False, f"{case.name}: {first}",
                         details=rest)
                raise _Stop from None
            ref = attention(case.q, case.k, case.v)
            found = judge(output, ref.o, case.n, ref.max_abs_score)
            if not found.passed:
                self.row("attention on fresh inputs", False,
                         found.explain("your kernel", case.name, case.n))
                raise _Stop
            worst = max(worst, found.fraction)
        self.row("attention on fresh inputs", True,
                 f"{len(FRESH)} kinds, worst gate fraction {worst:.3f}")

    def emulated(self, requirement):
        """An emulated backend, or None with a row that says why there is none."""
        ready, reason = emulator.available()
        if ready:
            return self.backend if self.backend.mark == "emulated" else emulator.HostBackend()
        self.row(requirement, None, f"only the emulator can see it: {reason}", "computed")
        return None

    def facts(self, text, requirement):
        """records.Facts of attentionOnline for a T4, or None with a row that says why."""
        ready, reason = nvrtc.available()
        if ready:
            return gates_and_times.facts_of(text, "sm_75")[0]
        self.row(requirement, None, f"only the compiler knows: {reason}", "computed")
        return None


def answer(name):
    """The text of the reader's cell for an exercise."""
    if answers[name] is None:
        raise LessonError(f"run the cell that begins with %%kernel exercise/{name} first")
    return answers[name]


# ---- kernels with a gap ------------------------------------------------------------------------

def _swap(text, old, new):
    if text.count(old) != 1:
        raise LessonError(f"a kernel holds {text.count(old)} times {old!r}; "
                          "the exercises need it once")
    return text.replace(old, new)


def _split(text, old):
    before, after = _swap(text, old, "\0").split("\0")
    return before, after


def _gap(snippet, *swaps):
    """online.cu around one of its snippets, after some replacements elsewhere."""
    text = source.read("online")
    for old, new in swaps:
        text = _swap(text, old, new)
    return _split(text, source.snippets("online")[snippet])


# The K tile as one row of words, and every place of it through kAt(key, e).
_K_TILE = (
    ("float kTile[BN][D + 1];", "float kTile[BN * K_STRIDE];"),
    ("kTile[i / D][i % D] =", "kTile[kAt(i / D, i % D)] ="),
    ("kTile[lane][e]", "kTile[kAt(lane, e)]"),
    ("BN * (D + 1)", "BN * K_STRIDE"),
)


def _k_tile(keep_bm):
    """online.cu around the line of BM, which the cell may hold too."""
    text = source.read("online")
    for old, new in _K_TILE:
        text = _swap(text, old, new)
    line = next(x for x in text.splitlines(True) if x.startswith("constexpr int BM "))
    before, after = _split(text, line)
    return before + line if keep_bm else before, after


ON_EVERY_GPU = rungs.TENSOR[-1]  # with tensor cores


def _scores():
    """The rung around the three products of its scores."""
    text = source.read(ON_EVERY_GPU.name)
    found = re.search(r" *for \(int product = .*?: hi\[j\]\);\n", text, re.S)
    return text[: found.start()], text[found.end():]


_MERGE = '''
// Partials are (m, l, o), three floats each: c[i] is the merge of a[i] and b[i].
extern "C" __global__ void mergeAll(const float* a, const float* b, float* c, size_t n)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    const Partial x = {a[3 * i], a[3 * i + 1], a[3 * i + 2]};
    const Partial y = {b[3 * i], b[3 * i + 1], b[3 * i + 2]};
    const Partial z = merge(x, y);
    c[3 * i] = z.m;
    c[3 * i + 1] = z.l;
    c[3 * i + 2] = z.o;
}
'''

def _of_masked(snippet):
    """masked.cu around one of its snippets."""
    return _split(source.read(masked.NAME), source.snippets(masked.NAME)[snippet])


# name -> (text before the cell, text after it)
_AROUND = {
    "update": lambda: _gap("update"),
    "barriers": lambda: _gap(
        "load", ("        __syncthreads();   // the next tile overwrites K and V: all reads must "
                 "be over\n", "\n")),
    "swizzle": lambda: _k_tile(keep_bm=True),
    "registers": lambda: _gap("score"),
    "tile": lambda: _k_tile(keep_bm=False),
    "bytes": lambda: _gap("load"),
    "merge": lambda: ("", _MERGE),
    "products": _scores,
    "align": lambda: _of_masked("causal"),
    "share": lambda: _of_masked("heads"),
}


def build(name, cell):
    """The Source of an exercise with ``cell`` in its gap; messages use the cell's own lines."""
    before, after = _AROUND[name]()
    label = f"exercise/{name}.cu"
    text = (f'{before}#line 2 "cell exercise/{name}"\n{cell.rstrip()}\n'
            f'#line {before.count(chr(10)) + 2} "{label}"\n{after}')
    return source.Source(f"exercise/{name}", text, label, edits={name: cell})


def _broken(*swaps):
    text = source.read("online")
    for old, new in swaps:
        text = _swap(text, old, new)
    return source.from_text(text, "online.cu")


def _no_rescale():
    return _broken(("o0[r] * rescale, a1 = o1[r] * rescale", "o0[r], a1 = o1[r]"),
                   ("l[r] * rescale + warpSum(w)", "l[r] + warpSum(w)"))


def _from_zero():
    return _broken(("m[r] = __int_as_float(0xff800000);", "m[r] = 0.0f;"))


# ---- the checks --------------------------------------------------------------------------------

def _update(work, _):
    work.gates(work.source())


def _barriers(work, _):
    text = work.source()
    emulator = work.emulated("no race, under several orders of the threads")
    if emulator is not None:
        case = next(fresh(work.seed))
        try:
            work.run(text, case, emulator)
        except LaunchError as error:
            first, _, rest = str(error).partition("\n")
            work.row("no race, under several orders of the threads", False, first, "emulated",
                     rest)
            raise _Stop from None
        work.row("no race, under several orders of the threads", True,
                 f"none in {', '.join(emulator.orders)} order", "emulated")
    work.gates(text)
    count = source.bare(answer(work.name)).count("__syncthreads")
    work.row("two barriers a tile, no more", count == 2, f"{count} in the cell", "computed")


def _no_conflicts(work, text, rows=paths.BM):
    """Every warp's access of shared memory takes the passes it must take, and no more."""
    requirement = "no bank conflicts in shared memory"
    emulator = work.emulated(requirement)
    if emulator is None:
        return
    rng = np.random.default_rng(work.seed)
    case = Case("random", rows, *FRESH["random"](rng, rows), "")
    planned = paths.online(emulator.compile(text), *(emulator.put(x) for x in
                                                     (case.q, case.k, case.v)))
    kernel, _, block, args = planned.steps[0]
    found = planned.program.shared_accesses(kernel, (1,), block, args)
    worst = [a for a in found if a.wavefronts > a.ideal]
    total, ideal = (sum(getattr(a, what) for a in found) for what in ("wavefronts", "ideal"))
    work.row(requirement, not worst, f"{total:,} passes counted, {ideal:,} without conflicts",
             "emulated", "\n".join(f"{a.wavefronts:,} passes instead of {a.ideal:,} at {a.line}"
                                   for a in worst))


def _two_blocks(work, text):
    requirement = "two blocks fit on a T4's SM"
    if nvrtc.available()[0]:
        found = gates_and_times.facts_of(text, "sm_75")[0]
        shared, blocks, limit = found.shared_bytes, found.blocks, found.limit
    else:  # registers are not known: shared memory alone
        emulator = work.emulated(requirement)
        if emulator is None:
            return
        shared = emulator.compile(text).static_shared_bytes("attentionOnline")
        fits = occupancy(KernelFacts("attentionOnline", 32, shared, 0, 0), paths.THREADS, T4)
        blocks, limit = fits.blocks, fits.limit
    work.row(requirement, blocks >= 2,
             f"blocks: {blocks}, each of {shared:,} shared bytes; limit: {limit}", "computed")


def _swizzle(work, _):
    text = work.source()
    work.gates(text)
    _two_blocks(work, text)
    _no_conflicts(work, text)


def _registers(work, _):
    text = work.source()
    work.gates(text)
    facts = work.facts(text, "no local memory")
    if facts:
        work.row("no local memory", facts.local_bytes == 0,
                 f"{facts.local_bytes} bytes a thread", "computed")
        work.row("nothing spilled", facts.spill_bytes == 0,
                 f"{facts.spill_bytes} bytes, {facts.registers} registers", "computed")


def _tile(work, _):
    text = work.source()
    work.gates(text, rows=128)
    requirement = "K and V requested once per 128 queries"
    emulator = work.emulated(requirement)
    if emulator is not None:
        case = next(fresh(work.seed, 128))
        _, planned = work.run(text, case, emulator, rows=128)
        n, loads = case.n, planned.counts["attentionOnline"].loads_bytes
        most = 4 * n * D + 8 * n * D * (n // 128)
        work.row(requirement, loads <= most,
                 f"{loads:,} bytes loaded at N = {n}; with blocks of 64 queries "
                 f"{4 * n * D + 8 * n * D * (n // 64):,}", "emulated")
    _no_conflicts(work, text, rows=128)
    facts = work.facts(text, "fits a T4")
    if facts:
        work.row("fits a T4", facts.blocks >= 1, f"blocks per SM: {facts.blocks}, occupancy "
                 f"{facts.occupancy:.0%}, {facts.local_bytes} local bytes a thread", "computed")


def _scores(inputs, n):
    """(Case, scores) from a reader's function; refuses what no kernel could take."""
    if not callable(inputs):
        raise ArgumentError("check needs your function: q, k, v = inputs(n)")
    try:
        q, k, v = (np.ascontiguousarray(x, dtype=np.float32) for x in inputs(n))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"inputs({n}) must return q, k, v of shape ({n}, {D}): "
                            f"{error}") from None
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.shape != (n, D) or not np.isfinite(x).all():
            raise ArgumentError(f"inputs({n}): {name} has shape {x.shape}, needs ({n}, {D}) "
                                "and finite numbers")
    return Case("yours", n, q, k, v, ""), q.astype(np.float64) @ k.T.astype(np.float64) / D**0.5


def _outside(work, text, case):
    """(verdict, query rows with an element outside the gate, output) of a Source on a Case."""
    ref = attention(case.q, case.k, case.v)
    output, _ = work.run(text, case)
    found = judge(output, ref.o, case.n, ref.max_abs_score)
    inside = np.abs(output - ref.o) <= found.atol + found.rtol * np.abs(ref.o)
    return found, int((~inside).any(axis=1).sum()), output


def _sizes(work):
    return (64 * int(np.random.default_rng(work.seed).integers(2, 4)), 256)


def _notice(work, inputs):
    for n in _sizes(work):
        case, scores = _scores(inputs, n)
        largest = float(np.abs(scores).max())
        work.row(f"no score beyond ±10, N = {n}", largest <= 10, f"largest {largest:.3g}",
                 "computed")
        right, _, _ = _outside(work, source.load("online"), case)
        work.row(f"the right kernel passes, N = {n}", right.passed,
                 f"gate fraction {right.fraction:.3g}")
        _, rows, _ = _outside(work, _no_rescale(), case)
        work.row(f"without the rescale every query row is wrong, N = {n}", rows == n,
                 f"{rows} of {n} rows")


def _start(work, inputs):
    for n in _sizes(work):
        case, scores = _scores(inputs, n)
        work.row(f"every score is above -102, N = {n}", scores.min() > -102,
                 f"smallest {scores.min():.4g}", "computed")
        right, _, _ = _outside(work, source.load("online"), case)
        work.row(f"the right kernel passes, N = {n}", right.passed,
                 f"gate fraction {right.fraction:.3g}")
        wrong, rows, output = _outside(work, _from_zero(), case)
        work.row(f"with m from 0 the result is wrong, N = {n}", not wrong.passed,
                 f"{rows} of {n} rows")
        strange = int((~np.isfinite(output)).sum())
        work.row(f"and yet has no NaN or inf, N = {n}", strange == 0, f"{strange} elements")


def _bytes(work, requested):
    text = work.source()
    work.gates(text)
    emulator = work.emulated("your formula gives the counted bytes")
    if emulator is None:
        return
    if not callable(requested):
        raise ArgumentError("check needs your function: loads, stores = requested(n)")
    for n in 64 * np.random.default_rng(work.seed).choice(np.arange(1, 6), 2, replace=False):
        n = int(n)
        rng = np.random.default_rng(work.seed)
        _, planned = work.run(text, Case("random", n, *FRESH["random"](rng, n), ""), emulator)
        counts = planned.counts["attentionOnline"]
        counted = (counts.loads_bytes, counts.stores_bytes)
        try:
            yours = tuple(int(x) for x in requested(n))
        except (TypeError, ValueError):
            raise ArgumentError(f"requested({n}) must return two numbers: bytes loaded, bytes "
                                "stored") from None
        work.row(f"your formula gives the counted bytes, N = {n}", yours == counted,
                 f"yours {yours[0]:,} loaded, {yours[1]:,} stored" if yours != counted else
                 f"{counted[0]:,} loaded, {counted[1]:,} stored", "emulated")


def _partial(scores, values):
    """(m, l, o) of scores and values in float64, as float32; o is not divided by l."""
    if not len(scores):
        return np.array([-np.inf, 0, 0], dtype=np.float32)
    m = scores.max()
    w = np.exp(scores - m)
    return np.array([m, w.sum(), w @ values], dtype=np.float32)


def _merge(work, _):
    program = work.backend.compile(work.source())

    def merge(a, b):
        a, b = (np.ascontiguousarray(x, dtype=np.float32) for x in (a, b))
        c = work.backend.full(a.shape, np.nan)
        blocks = -(-len(a) // 64)
        program.launch("mergeAll", (blocks,), (64,),
                       (work.backend.put(a), work.backend.put(b), c, len(a)))
        return work.backend.get(c).astype(np.float64)

    def close(x, y):
        """Equal up to float32 rounding: weights of 1e-5 of the larger, m to the last bit."""
        with np.errstate(invalid="ignore"):
            scale = np.maximum(np.abs(x), np.abs(y)) + 1e-5 * np.maximum(x[:, 1:2], y[:, 1:2])
            return (x[:, 0] == y[:, 0]) & (np.abs(x - y)[:, 1:] <= 1e-5 * scale[:, 1:]).all(axis=1)

    rng = np.random.default_rng(work.seed)
    parts, whole = [], []
    for _ in range(96):
        scores = rng.standard_normal(40) * rng.choice([0.1, 1, 30]) + rng.choice([-200, 0, 200])
        if rng.random() < 0.5:
            scores[rng.integers(40)] += rng.uniform(5, 60)
        scores = scores.astype(np.float32).astype(np.float64)  # so that m is exact
        values = rng.uniform(0.5, 1.5, 40)  # of one sign: nothing cancels
        cut = np.sort(rng.integers(0, 41, 2))
        cut = np.sort(rng.choice([0, 40, *cut], 2)) if rng.random() < 0.3 else cut
        parts.append([_partial(s, v) for s, v in zip(np.split(scores, cut),
                                                     np.split(values, cut), strict=True)])
        m, l, o = _partial(scores, values).astype(np.float64)
        whole.append([m, l, o])
    a, b, c = np.array(parts).transpose(1, 0, 2)
    whole, empty = np.array(whole), np.tile(_partial([], []), (len(a), 1))

    def require(requirement, got, want):
        good = close(got, want.astype(np.float64))
        seen = f"{len(good)} merges"
        if not good.all():
            i = int(np.argmin(good))
            seen = (f"{int((~good).sum())} of {len(good)} differ; first: got ({_triple(got[i])}), "
                    f"wanted ({_triple(want[i])})")
        return work.row(requirement, bool(good.all()), seen)

    left = merge(merge(a, b), c)
    require("three parts merge to the whole", left, whole)
    require("the order of the two does not matter", merge(a, b), merge(b, a))
    require("nor does which pair comes first", left, merge(a, merge(b, c)))
    require("an empty part changes nothing", merge(a, empty), a)
    require("nor on the left", merge(empty, a), a)
    require("two empty parts are empty, not NaN", merge(empty, empty), empty)


def _triple(x):
    return ", ".join(f"{value:.5g}" for value in x)


def _products(work, _):
    work.gates(work.source(), run=work.run_rung)
    count = source.bare(answer(work.name)).count("mma(")
    work.row("three products, no more", count == 3, f"{count} in the cell", "computed")


def _both_ways(work, text, requirement, problem, wanted):
    """Both paths of a masked.cu on random inputs, against ``wanted(case)``, float64."""
    rng = np.random.default_rng(work.seed)
    p = problem
    case = Case("random", p, *(rng.standard_normal(shape, dtype=np.float32)
                               for shape in (p.q_shape, p.kv_shape, p.kv_shape)), "")
    backend = one_order() if work.backend.mark == "emulated" else work.backend
    for path in masked.PATHS:
        try:
            output = masked.plan(backend, path, case, text).run()
        except LaunchError as error:
            return work.row(requirement, False, f"{path}, {p}: {str(error).splitlines()[0]}")
        found = judge(output, wanted(case), p)
        if not found.passed:
            return work.row(requirement, False, found.explain(path, "random", p))
    return work.row(requirement, True, f"both paths, {p}")


def _align(work, _):
    def top_left(case):
        p = case.problem
        q, k, v = (x.astype(np.float64) for x in (case.q, case.k, case.v))
        seen = np.minimum(np.arange(p.queries) + 1, p.keys) if p.causal else np.full(
            p.queries, p.keys)
        found, total, _, _ = weights(q, k, p.scale, seen)
        return found @ v / total

    rng, text = np.random.default_rng(work.seed), work.source()
    few, many = int(rng.integers(2, 30)), int(rng.integers(34, 70))
    for requirement, p in (("more keys than queries", Problem(few, many, causal=True)),
                           ("more queries than keys", Problem(many, few, causal=True)),
                           ("a square", Problem(many, many, causal=True)),
                           ("no mask", Problem(few, many))):
        _both_ways(work, text, requirement, p, top_left)


def _share(work, _):
    def in_turn(case):
        p = case.problem
        order = sorted(range(p.heads), key=lambda head: (head % p.kv_heads, head))
        q = case.q.reshape(p.batch, p.heads, p.queries, p.d)
        o = np.empty(q.shape)
        o[:, order] = attention(q[:, order].reshape(p.q_shape), case.k, case.v,
                                problem=p).o.reshape(q.shape)
        return o.reshape(p.q_shape)

    text = work.source()
    for batch, heads, kv_heads in ((1, 6, 2), (2, 6, 3), (2, 4, 1)):
        p = Problem(int(np.random.default_rng(work.seed + batch).integers(2, 20)), 33, batch=batch,
                    heads=heads, kv_heads=kv_heads)
        _both_ways(work, text, f"{heads} heads on {kv_heads}, batch {batch}", p, in_turn)


def _walk(work, walked):
    if not callable(walked):
        raise ArgumentError("check needs your function: tiles = walked(row0, queries, keys, bm, "
                            "bn)")
    rng = np.random.default_rng(work.seed)
    low, high = int(rng.integers(40, 80)), int(rng.integers(230, 300))
    for what, queries, keys in (("a square", high, high), ("more keys", high, None),
                                ("more queries", high, low)):
        bn, bm = sorted(int(x) for x in rng.choice((16, 32, 64), 2))
        keys = keys or queries + 3 * bn + 1  # a block's last key is then the first of a tile
        seen = Problem(queries, keys, causal=True).seen()[0]
        want = sum(bool((seen[row : row + bm] > key).any())
                   for row in range(0, queries, bm) for key in range(0, keys, bn))
        got = sum(walked(row0, queries, keys, bm, bn) for row0 in range(0, queries, bm))
        work.row(f"{what}: the tiles that some row sees", got == want,
                 f"yours {got}, counted {want}; {queries} queries, {keys} keys, {bm} x {bn}",
                 "computed")


def _blind(work, lengths):
    if not callable(lengths):
        raise ArgumentError("check needs your function: queries, keys = lengths()")
    p = Problem(*lengths(), causal=True)
    if not work.row("at most 128 of each", max(p.queries, p.keys) <= 128, str(p), "computed"):
        return

    def want(case):
        return attention(case.q, case.k, case.v, problem=p).o

    _both_ways(work, source.load(masked.NAME), "the right kernel passes", p, want)
    text = _swap(source.read(masked.NAME), "return m == __int_as_float(0xff800000) ? 0.0f : m;",
                 "return m;")
    rng = np.random.default_rng(work.seed)
    case = Case("random", p, *(rng.standard_normal(shape, dtype=np.float32)
                               for shape in (p.q_shape, p.kv_shape, p.kv_shape)), "")
    backend = one_order() if work.backend.mark == "emulated" else work.backend
    for path in masked.PATHS:
        o = masked.plan(backend, path, case, source.from_text(text, "masked.cu")).run()
        rows = int(np.isnan(o).any(axis=1).sum())
        work.row(f"without the guard the {path} path gives NaN", rows > 0,
                 f"{rows} of {p.queries} rows")


_CHECKS = {
    "update": _update, "notice": _notice, "start": _start, "barriers": _barriers,
    "swizzle": _swizzle, "registers": _registers, "tile": _tile, "bytes": _bytes, "merge": _merge,
    "products": _products, "align": _align, "share": _share, "walk": _walk, "blind": _blind,
}
NAMES = tuple(_CHECKS)
answers.update(dict.fromkeys(_AROUND))


@prints.limited()
def exercise(name, answer=None, seed=None):
    """Check the answer to an exercise. Returns a Check, which shows what was required and seen.

    name: one of 'update', 'notice', 'start', 'barriers', 'swizzle', 'registers', 'tile', 'bytes',
    'merge', 'products', 'align', 'share', 'walk', 'blind'. answer: your function, where the
    exercise asks for one. seed: the number that an earlier check showed, to see the same inputs
    again. Raises CompileError in your cell's lines.
    """
    if name not in _CHECKS:
        raise ArgumentError(f"no exercise is called {name!r}; there are: {', '.join(NAMES)}")
    backend = backends.choose()
    if backend is None:  # no error: a chapter goes on without
        reason = f"{backends.probe().reason}; {emulator.available()[1]}"
        return Check(name, (Row("a kernel must run", None, reason),), "")
    if seed is None:  # the build sets one, so that its pages are the same each time
        seed = os.environ.get("LESSON_SEED") or secrets.randbelow(10**6)
    seed = int(seed)
    work = _Work(name, backend, seed, [])
    try:
        _CHECKS[name](work, answer)
    except _Stop:
        pass
    return Check(name, tuple(work.rows), f"{backend.describe()}; seed {seed}")
