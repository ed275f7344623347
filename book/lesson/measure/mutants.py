"""Kernels broken on purpose, each with the case that must catch it: the gate is tested too."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ..errors import LaunchError, LessonError
from ..launch import ladder, masked
from ..launch.rungs import HALVES
from ..problem import cases
from ..problem.gate import Verdict, compare, judge_seen, tolerance
from ..problem.problem import Problem
from ..text import source
from . import gates_and_times
from .records import GATE_N, Rejection

_HEAD = ('extern "C" __global__ void attentionOnline(const float* q, const float* k, '
         "const float* v, float* o, size_t n, float scale)\n")
_EACH = ("    for (size_t i = threadIdx.x; i < 64 * 64; i += 256)\n"
         "        o[(size_t)blockIdx.x * 64 * 64 + i] = ")
_NAN = "__int_as_float(0x7fc00000)"
# In place of a case: any case shows it, to a checker that sees the order of threads, or the values
# that nobody has written.
RACE, UNDEFINED = "race", "undefined value"


@dataclass(frozen=True)
class Mutant:
    """One broken kernel.

    ``edits``: (old, new, which) replacements in the file of ``path``; ``which`` counts from 0 the
    occurrence meant. ``whole``: a complete other source instead. ``caught_by``: the case that must
    reject it, or RACE or UNDEFINED. ``equivalent``: where, and why, it computes the same as the
    original.
    """

    name: str
    path: str
    caught_by: str
    edits: tuple = ()
    whole: str = ""
    equivalent: str = ""

    @property
    def case(self):
        """The case that must reject it."""
        return "periodic" if self.caught_by in (RACE, UNDEFINED) else self.caught_by

    def source(self):
        """The broken Source. Each edit must apply: a mutant that changes nothing is an error."""
        if self.whole:
            return source.from_text(self.whole, f"mutant {self.name}.cu")
        text = source.load(self.path).text
        for old, new, which in self.edits:
            parts = text.split(old)
            if len(parts) < which + 2:
                raise LessonError(f"mutant {self.name!r}: {old!r} is not in {self.path}.cu")
            text = old.join(parts[: which + 1]) + new + old.join(parts[which + 1 :])
        return source.from_text(text, f"mutant {self.name}.cu")


_MAX = "fmaxf(m[r], warpMax(s))"
_O = "float a0 = o0[r] * rescale, a1 = o1[r] * rescale;"
_L = "l[r] * rescale + warpSum(w)"
_INIT = "m[r] = __int_as_float(0xff800000);"
_BARRIER = "__syncthreads();"
_STEP = "int offset = 16;"
_STRIDE = "j += ROW_THREADS"


def _online(name, caught_by, *edits, **more):
    return Mutant(name, "online", caught_by, tuple((*e, 0)[:3] for e in edits), **more)


def _materialised(name, caught_by, *edits, **more):
    return Mutant(name, "materialised", caught_by, tuple((*e, 0)[:3] for e in edits), **more)


_NEVER_MOVES = "the same wherever the maximum stands in the first tile: every factor is 1"
_IN_RANGE = "the same while nothing overflows or vanishes: any m gives the same quotient"

MUTANTS = (
    _online("no rescale of o", "spike-late", (_O, "float a0 = o0[r], a1 = o1[r];"),
            equivalent=_NEVER_MOVES),
    _online("no rescale of l", "spike-late", (_L, "l[r] + warpSum(w)"), equivalent=_NEVER_MOVES),
    _online("no rescale at all", "spike-late", (_O, "float a0 = o0[r], a1 = o1[r];"),
            (_L, "l[r] + warpSum(w)"), equivalent=_NEVER_MOVES),
    _online("reciprocal of the rescale", "periodic", ("expf(m[r] - mNew)", "expf(mNew - m[r])")),
    _online("m starts at 0", "all-negative", (_INIT, "m[r] = 0.0f;"), equivalent=_IN_RANGE),
    _online("m starts at 1e-30", "all-negative", (_INIT, "m[r] = 1e-30f;"),
            equivalent=_IN_RANGE),
    _online("no maximum, online", "large", (_MAX, "0.0f"), equivalent=_IN_RANGE),
    _materialised("no maximum, softmaxRows", "large", ("expf(s[row * n + j] - m)",
                  "expf(s[row * n + j])"), equivalent=_IN_RANGE),
    _online("tile maximum, not running", "large", (_MAX, "warpMax(s)"), equivalent=_IN_RANGE),
    _online("maximum of the first tile for ever", "large", (_MAX, "key0 == 0 ? warpMax(s) : m[r]"),
            equivalent=_IN_RANGE),
    _online("maximum of one key in 32", "peaks", (_MAX, "fmaxf(m[r], __shfl_sync(FULL, s, 0))"),
            equivalent=_IN_RANGE),
    _online("maximum of half of the keys", "peaks",
            (_MAX, "fmaxf(m[r], warpMax(lane < 16 ? s : m[r]))"), equivalent=_IN_RANGE),
    _online("maximum of the first 256 keys", "peaks", (_MAX, "key0 < 256 ? " + _MAX + " : m[r]"),
            equivalent=_IN_RANGE),
    _online("maximum of another row", "peaks", (_MAX, "r % 2 ? m[r - 1] : " + _MAX),
            equivalent=_IN_RANGE),
    _online("m floored at -100", "very-negative", (_MAX, "fmaxf(-100.0f, " + _MAX + ")"),
            equivalent=_IN_RANGE),
    _online("m floored at -10,000", "very-negative", (_MAX, "fmaxf(-1e4f, " + _MAX + ")"),
            equivalent=_IN_RANGE),
    _online("o never set to 0", UNDEFINED, ("        o0[r] = 0.0f;\n", "")),
    _online("maximum of a lane outside the mask", UNDEFINED,
            (_MAX, "fmaxf(m[r], lane < 16 ? __shfl_xor_sync(0xffffu, s, 16) : s)")),
    _online("last tile dropped", "spike-late", ("key0 < n;", "key0 + BN < n;")),
    _online("first tile dropped", "spike-early", ("size_t key0 = 0;", "size_t key0 = BN;")),
    _online("scale left out, online", "periodic", ("s *= scale;", "")),
    _materialised("scale left out, scoresQKt", "periodic", ("scale * sum", "sum")),
    _online("a step missing in warpMax", "random", (_STEP, "int offset = 8;", 0),
            equivalent="the same where both halves of a tile have the same maximum (flat)"),
    _online("a step missing in warpSum", "periodic", (_STEP, "int offset = 8;", 1)),
    _materialised("a step missing in warpMax, softmaxRows", "large", (_STEP, "int offset = 8;", 0),
                  equivalent="the same where the maximum lies in the lower half of a warp (flat)"),
    _materialised("a step missing in warpSum, softmaxRows", "periodic",
                  (_STEP, "int offset = 8;", 1)),
    _materialised("one key a thread, softmaxRows", "periodic", (_STRIDE, "j += n", 0),
                  (_STRIDE, "j += n", 0), equivalent="the same at N = 256, the threads of a block"),
    _materialised("maximum over 32 warps where 8 wrote, softmaxRows", UNDEFINED,
                  ("partial[ROW_WARPS]", "partial[32]"), ("i < ROW_WARPS", "i < 32")),
    _online("barrier after the load missing, online", RACE, (_BARRIER, "", 0)),
    _online("barrier before the next tile missing, online", RACE, (_BARRIER, "", 1)),
    _materialised("barrier after the load missing, scoresQKt", RACE, (_BARRIER, "", 0)),
    _materialised("barrier before the next step missing, scoresQKt", RACE, (_BARRIER, "", 1)),
    _materialised("barrier after the maxima missing, softmaxRows", RACE, (_BARRIER, "", 2)),
    _materialised("barrier before reuse missing, softmaxRows", RACE, (_BARRIER, "", 3)),
    _materialised("barrier after the sums missing, softmaxRows", RACE, (_BARRIER, "", 4)),
    _materialised("barrier after the load missing, weightedV", RACE, (_BARRIER, "", 5)),
    _materialised("barrier before the next step missing, weightedV", RACE, (_BARRIER, "", 6)),
    _online("V read where K belongs", "periodic", ("k[key0 * D + i]", "v[key0 * D + i]")),
    _online("output columns of a lane swapped", "periodic",
            ("o[row * D + lane] = o0[r]", "o[row * D + lane] = o1[r]"),
            ("o[row * D + lane + 32] = o1[r]", "o[row * D + lane + 32] = o0[r]")),
    _online("half of the columns unwritten", "periodic",
            ("o[row * D + lane + 32] = o1[r] / l[r];", "")),
    _online("division by l left out", "periodic", ("o0[r] / l[r]", "o0[r]"),
            ("o1[r] / l[r]", "o1[r]")),
    _materialised("division by the row sum left out", "periodic", ("sum / rowSum[row]", "sum")),
    _online("no-op", "periodic", whole=_HEAD + "{\n}\n"),
    _online("zeros", "periodic", whole=_HEAD + "{\n" + _EACH + "0.0f;\n}\n"),
    _online("NaN", "periodic", whole=_HEAD + "{\n" + _EACH + _NAN + ";\n}\n"),
    _online("mean of V", "periodic", whole=_HEAD + (
        "{\n    if (threadIdx.x >= 64)\n        return;\n    float sum = 0.0f;\n"
        "    for (size_t j = 0; j < n; ++j)\n        sum += v[j * 64 + threadIdx.x];\n"
        "    for (size_t i = 0; i < 64; ++i)\n"
        "        o[((size_t)blockIdx.x * 64 + i) * 64 + threadIdx.x] = sum / n;\n}\n"),
        equivalent="the right answer on flat: equal scores average V"),
)


_FP16 = "ladder/24_fp16"


def _fp16(name, caught_by, *edits, path=_FP16, **more):
    return Mutant(name, path, caught_by, tuple((*e, 0)[:3] for e in edits), **more)


_PRODUCTS = "int product = 0; product < 3; ++product"
_FRESH = "float fresh[TM][WIDE][4] = {};"
_FACTOR = "qFactor[i][h] * kUndo"
_FIRST = "qHi[i][step][h], qLo[i][step][h]"

# New ways to be wrong, on tensor cores: of rung 24 and of the halves that it is given.
TENSOR = (
    _fp16("lo dropped everywhere", "random", (_PRODUCTS, "int product = 2; product < 3; ++product"),
          (_PRODUCTS, "int product = 2; product < 3; ++product")),
    _fp16("lo of Q dropped", "random", (_PRODUCTS, "int product = 1; product < 3; ++product")),
    _fp16("lo of P dropped", "random", (_PRODUCTS, "int product = 1; product < 3; ++product", 1)),
    _fp16("lo of K and V dropped", "random", ("lo = pack(x - h.x, y - h.y);", "lo = 0;"),
          path=HALVES),
    _fp16("lo lo in place of hi lo, scores", "random",
          ("product == 0 ? qLo[i][step]", "product < 2 ? qLo[i][step]")),
    _fp16("lo lo in place of hi lo, output", "random",
          ("product == 0 ? pLo[step][i]", "product < 2 ? pLo[step][i]")),
    _fp16("scale of K applied twice", "random", (_FACTOR, _FACTOR + " * kUndo")),
    _fp16("scale of V applied twice", "random", ("fresh[i][j][x], undo,",
                                                 "fresh[i][j][x] * undo, undo,")),
    _fp16("scale of Q applied twice", "random", ("power(-e) * scale",
                                                 "power(-e) * power(-e) * scale")),
    _fp16("scale of another row", "random", (_FACTOR, "qFactor[i][1 - h] * kUndo")),
    _fp16("scale of another tile", "spike-late", ("        scales += 2;", ""),
          equivalent="the same where all tiles have the same power of two"),
    _fp16("fragment rows of Q swapped", "random", (_FIRST,
          "qHi[i][step][1 - h], qLo[i][step][1 - h]")),
    _fp16("fragment rows of P swapped", "random",
          ("split(p0, p1, pHi[i][x], pLo[i][x])", "split(p0, p1, pHi[i][x ^ 1], pLo[i][x ^ 1])")),
    _fp16("accumulator kept across tiles, and added again", "random", (_FRESH, (
        "float fresh[TM][WIDE][4];\n        for (int i = 0; i < TM; ++i)\n"
        "            for (int j = 0; j < WIDE; ++j)\n"
        "                for (int x = 0; x < 4; ++x)\n"
        "                    fresh[i][j][x] = acc[i][j0 + j][x];"))),
    _fp16("P rounded before its sum", "random", ("            l[i][h] += p0 + p1;", ""), (
        "            split(p0, p1, pHi[i][x], pLo[i][x]);",
        "            split(p0, p1, pHi[i][x], pLo[i][x]);\n"
        "            l[i][h] += unpack(pHi[i][x]).x + unpack(pHi[i][x]).y;")),
)


def tensor_rejections(backend, problem=GATE_N):
    """Rejections of the mutants on tensor cores, each on the case that must catch it."""
    return [tensor_rejection(backend, mutant, mutant.caught_by, problem) for mutant in TENSOR]


def tensor_rejection(backend, mutant, name, problem=GATE_N, splits=1):
    """Run one mutant of TENSOR on one case, through rung 24: a Rejection.

    One split by default: what goes wrong from tile to tile needs several tiles in a block.
    """
    case = cases.make(name, problem)
    arrays = (backend.put(x) for x in (case.q, case.k, case.v))
    planned = ladder.plan(backend, _FP16, *arrays, splits, {mutant.path: mutant.source()})
    verdict = gates_and_times.judged(case, planned.run())
    return Rejection(mutant.name, name, case.problem, not verdict.passed,
                     verdict.explain(mutant.path, name, problem))


# The classic mistakes of masks: each with a small problem that catches it on ``random``, or (case,
# problem), and one that lets it through. None: the index of the last number of a matrix that nobody
# holds.
_SCORE_LINE = "            s = masked(scale * s, key0 + lane, seen);\n"
MASKED = tuple(
    (Mutant(name, masked.NAME, caught[0] if isinstance(caught, tuple) else "random",
            tuple((*e, 0)[:3] for e in edits)),
     caught[1] if isinstance(caught, tuple) else caught, passes)
    for name, edits, caught, passes in (
        ("minus infinity minus minus infinity",
         [("return m == __int_as_float(0xff800000) ? 0.0f : m;", "return m;")],
         Problem(65, 40, causal=True), Problem(65, 65, causal=True)),
        ("no end: keys past the last are scored 0",
         [("return key < seen ? score : __int_as_float(0xff800000);", "return score;"),
          ("min(BN, seen - key0)", "BN")],
         Problem(64, 50), Problem(64, 64)),
        ("the mask after the maximum",
         [(_SCORE_LINE, "            s *= scale;\n"),
          ("const float w = expf(s - reference(mNew));",
           "const float w = expf(masked(s, key0 + lane, seen) - reference(mNew));")],
         ("peaks", Problem(65, 65, causal=True)), Problem(65, 65, causal=True)),
        ("the mask off by one", [("row + 1 + nK - nQ", "row + nK - nQ")],
         Problem(65, 65, causal=True), Problem(64, 64)),
        ("top left in place of bottom right", [("row + 1 + nK - nQ", "row + 1")],
         Problem(5, 9, causal=True), Problem(65, 65, causal=True)),
        ("a NaN in the padding leaks",
         [("key < blockSees && column < d", "key < nK && column < d"),
          ("min(BN, seen - key0)", "BN")],
         Problem(8, 40, key_lengths=(37,)), Problem(8, 40)),
        ("the lengths of another batch entry", [("lengths[head / heads]", "lengths[0]")],
         Problem(8, 40, batch=2, heads=2, key_lengths=(20, 30)),
         Problem(8, 40, batch=2, heads=2, key_lengths=(30, 30))),
        ("heads of a group dealt in turn",
         [("head % heads / (heads / kvHeads)", "head % heads % kvHeads")],
         Problem(8, 40, heads=4, kv_heads=2), Problem(8, 40, heads=4, kv_heads=1)),
        ("columns past d are read", [("key < blockSees && column < d", "key < blockSees"),
                                     ("row0 + i / D < nQ && i % D < d", "row0 + i / D < nQ")],
         Problem(8, 40, d=40), Problem(8, 40)),
        ("an int index", [("((size_t)head * rows + row) * width + column",
                           "(head * rows + row) * width + column")],
         None, Problem(8, 40)),
    ))
FAR = 46341  # N: N^2 is above 2^31 for the first time


def masked_rejection(backend, mutant, problem, name="random"):
    """Run one mutant of MASKED on a case, both paths: a Rejection if either is rejected.

    problem None: where index() puts the last number of a matrix FAR x FAR.
    """
    text = mutant.source()
    if problem is None:
        got, want = masked.index(backend, 0, FAR, FAR - 1, FAR, FAR - 1, text), FAR * FAR - 1
        return Rejection(mutant.name, "index", Problem(FAR, FAR), got != want,
                         f"the last number of {FAR:,} x {FAR:,} stands at {want:,}; index() gives "
                         f"{got:,}")
    case = masked_case(problem, name)
    for path, verdict in masked_verdicts(backend, case, text):
        if not verdict.passed:
            return Rejection(mutant.name, case.name, problem, True,
                             verdict.explain(path, case.name, problem))
    return Rejection(mutant.name, case.name, problem, False, "both paths pass")


def masked_case(problem, name="random"):
    """A Case whose padding, what ``key_lengths`` leaves of K and V, holds NaN."""
    case = cases.make(name, problem)
    if (p := case.problem).key_lengths is not None:
        for x in (case.k, case.v):
            rows = x.reshape(p.batch, p.kv_heads, p.keys, p.d)
            for entry, length in enumerate(p.key_lengths):
                rows[entry, :, length:] = np.nan
    return case


def masked_verdicts(backend, case, text=None):
    """Yield (path, Verdict) of both paths of masked.cu, and of the online one's log-sum-exp.

    What the emulator refuses, such as a read outside of an array, is a failed Verdict.
    """
    ref, p = gates_and_times.reference(case), case.problem
    for path in masked.PATHS:
        try:
            planned = masked.plan(backend, path, case, text)
            output = planned.run()
        except LaunchError as error:
            nan = float("nan")
            yield path, Verdict(False, nan, nan, nan, nan, str(error).partition("\n")[0])
            continue
        yield path, judge_seen(output, ref.o, p, ref.max_abs_score)
        if path == "online":
            yield "log-sum-exp", _judge_lse(backend.get(planned.scratch[0]), ref, p)


def _judge_lse(got, ref, problem):
    """A log-sum-exp errs like a score and like the logarithm of a sum: rtol times 1 + |lse|."""
    want = ref.lse.reshape(got.shape)
    blind = np.isneginf(want)
    if (np.isneginf(got) != blind).any():
        row = int(np.argwhere(np.isneginf(got) != blind)[0][-1])
        nan = float("nan")
        return Verdict(False, nan, nan, nan, nan, f"query row {row}: -inf where a key is seen, or "
                       "a number where none is")
    got, want = (np.where(blind, 0.0, x)[..., None] for x in (got, want))
    return compare(got, want, tolerance(problem, ref.max_abs_score), 1.0 + np.abs(want))


def rejection(backend, mutant, name, problem=GATE_N):
    """Run one mutant on one case: a Rejection."""
    case = cases.make(name, problem)
    try:
        found = gates_and_times.outcome(backend, mutant.path, case, mutant.source())
    except LaunchError as error:
        return Rejection(mutant.name, name, case.problem, True, str(error))
    message = (found.verdict.reason if found.stopped else
               found.verdict.explain(mutant.path, name, problem))
    return Rejection(mutant.name, name, case.problem, not found.passed, message)


def rejections(backend, problem=GATE_N, names=None, progress=None):
    """Rejections of all mutants: on ``periodic`` and on the case that must catch each.

    names: other cases for every mutant.
    """
    work = [(mutant, name) for mutant in MUTANTS
            for name in (names or dict.fromkeys(("periodic", mutant.case)))]
    workers = (os.cpu_count() or 1) if backend.mark == "emulated" else 1
    rows = []
    with ThreadPoolExecutor(workers) as pool:
        for i, row in enumerate(pool.map(lambda job: rejection(backend, *job, problem), work)):
            rows.append(row)
            if progress:
                progress("mutants", i + 1, len(work))
    return rows
