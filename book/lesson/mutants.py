"""Kernels broken on purpose, each with the case that must catch it: the gate is tested too."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from . import backend as backends
from . import cases, evidence, results, source
from .errors import LaunchError, LessonError, RaceError
from .gate import judge
from .progress import Progress
from .reference import attention
from .table import Table

_HEAD = ('extern "C" __global__ void attentionOnline(const float* q, const float* k, '
         "const float* v, float* o, size_t n, float scale)\n")
_EACH = ("    for (size_t i = threadIdx.x; i < 64 * 64; i += 256)\n"
         "        o[(size_t)blockIdx.x * 64 * 64 + i] = ")
_NAN = "__int_as_float(0x7fc00000)"
RACE = "race"  # in place of a case: any case shows it, to a checker that sees the order of threads


@dataclass(frozen=True)
class Mutant:
    """One broken kernel.

    ``edits``: (old, new, which) replacements in the file of ``path``; ``which`` counts from 0 the
    occurrence meant. ``whole``: a complete other source instead. ``caught_by``: the case that must
    reject it, or RACE. ``equivalent``: where, and why, it computes the same as the original.
    """

    name: str
    path: str
    caught_by: str
    edits: tuple = ()
    whole: str = ""
    equivalent: str = ""

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


def _online(name, caught_by, *edits, **more):
    return Mutant(name, "online", caught_by, tuple((*e, 0)[:3] for e in edits), **more)


def _materialised(name, caught_by, *edits, **more):
    return Mutant(name, "materialised", caught_by, tuple((*e, 0)[:3] for e in edits), **more)


_NEVER_MOVES = "the same wherever the maximum stands in the first tile: every factor is 1"
_NO_OVERFLOW = "the same wherever nothing overflows: any m gives the same quotient"

MUTANTS = (
    _online("no rescale of o", "spike-late", (_O, "float a0 = o0[r], a1 = o1[r];"),
            equivalent=_NEVER_MOVES),
    _online("no rescale of l", "spike-late", (_L, "l[r] + warpSum(w)"), equivalent=_NEVER_MOVES),
    _online("no rescale at all", "spike-late", (_O, "float a0 = o0[r], a1 = o1[r];"),
            (_L, "l[r] + warpSum(w)"), equivalent=_NEVER_MOVES),
    _online("reciprocal of the rescale", "periodic", ("expf(m[r] - mNew)", "expf(mNew - m[r])")),
    _online("m starts at 0", "all-negative", (_INIT, "m[r] = 0.0f;"), equivalent=_NO_OVERFLOW),
    _online("m starts at 1e-30", "all-negative", (_INIT, "m[r] = 1e-30f;"),
            equivalent=_NO_OVERFLOW),
    _online("no maximum, online", "large", (_MAX, "0.0f"), equivalent=_NO_OVERFLOW),
    _materialised("no maximum, softmaxRows", "large", ("expf(s[row * n + j] - m)",
                  "expf(s[row * n + j])"), equivalent=_NO_OVERFLOW),
    _online("tile maximum, not running", "large", (_MAX, "warpMax(s)"), equivalent=_NO_OVERFLOW),
    _online("maximum of the first tile for ever", "large", (_MAX, "key0 == 0 ? warpMax(s) : m[r]"),
            equivalent=_NO_OVERFLOW),
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


def outcome(backend, mutant, name, n=256):
    """Run one mutant on one case."""
    case = cases.make(name, n)
    try:
        output = results.run_path(backend, mutant.path, case, mutant.source())
    except RaceError as error:
        return results.Outcome(mutant.name, name, n, True, str(error))
    except LaunchError as error:
        return results.Outcome(mutant.name, name, n, True, str(error))
    ref = attention(case.q, case.k, case.v)
    found = judge(output, ref.o, n, ref.max_abs_score)
    return results.Outcome(mutant.name, name, n, not found.passed,
                   found.explain(mutant.path, name, n))


def outcomes(backend, n=256, names=None, progress=None):
    """Outcomes of all mutants: on ``periodic`` and on the case that must catch each.

    names: other cases for every mutant.
    """
    work = [(mutant, name) for mutant in MUTANTS
            for name in (names or dict.fromkeys(("periodic", _case(mutant))))]
    workers = (os.cpu_count() or 1) if backend.mark == "emulated" else 1
    rows = []
    with ThreadPoolExecutor(workers) as pool:
        for i, row in enumerate(pool.map(lambda job: outcome(backend, *job, n), work)):
            rows.append(row)
            if progress:
                progress("mutants", i + 1, len(work))
    return rows


def _case(mutant):
    return "periodic" if mutant.caught_by == RACE else mutant.caught_by


def show(n=256):
    """The table of mutants: run here, or recorded."""
    chosen = backends.choose()
    if chosen is not None:
        if chosen.mark == "emulated":  # races are seen in any order, and rejection needs but one
            chosen = type(chosen)(orders=chosen.orders[:1])
        with Progress() as progress:
            rows = outcomes(chosen, n, progress=progress)
        return draw(rows, chosen.mark, chosen.describe())
    for item in evidence.latest().values():
        if item.mutants and not item.stale():
            return draw(item.mutants, "recorded", f"{item.gpu}, {item.day}")
    return Table("Mutants", ["mutant"],
                 footer="broken kernels must run to be caught: this needs a GPU or a C++ compiler")


def draw(rows, mark, note):
    """A Table of outcomes, one row a mutant."""
    found = {(r.mutant, r.case): r for r in rows}
    t = Table(f"Broken kernels and what catches them, N = {rows[0].n}",
              ["broken kernel", "must be caught by", "verdict there", "periodic alone",
               "the same as the original"], note=note)
    passed = []
    for mutant in MUTANTS:
        there, alone = found[mutant.name, _case(mutant)], found[mutant.name, "periodic"]
        if not alone.rejected:
            passed.append(mutant.name)
        t.add(mark, mutant.name,
              "thread order" if mutant.caught_by == RACE else mutant.caught_by,
              "rejected" if there.rejected else "LET THROUGH",
              "rejected" if alone.rejected else "let through", mutant.equivalent or "never")
    t.footer = (f"periodic alone would have let {len(passed)} of {len(MUTANTS)} through"
                + (": " + "; ".join(passed) + "." if passed else "."))
    return t
