"""Mutation testing: is every small change of a kernel seen by the gate?

A mutant is compiled for the emulator and run on one check after the other, the cheap ones first,
until one rejects it. What passes some is compared with the original by the GPU's compiler: if that
makes the same of both, they are one kernel. What passes all is a survivor: ``survivors.py`` says
why it may, or it is a hole.
"""

import functools
import hashlib
from dataclasses import dataclass, replace

import numpy as np

from ..errors import CompileError, InputError, LaunchError, RaceError, UndefinedError
from ..launch import ladder, paths, rungs
from ..machine import nvrtc
from ..machine.emulator.variants import VariantBackend, used_unwritten
from ..problem import cases, gate
from ..problem.problem import Problem
from ..text import mutations, source
from . import gates_and_times, late_copies
from .records import GATE_N

# Rungs that are mutated. Rung 22 is left out: the gate rejects it as it is.
RUNGS = tuple(r for r in (*rungs.RUNGS[1:], *rungs.TENSOR) if not r.fails)
PREPARED = (rungs.MERGE, rungs.HALVES)  # what rungs are given, or give
SOURCES = (*paths.PATHS, *(r.name for r in RUNGS), *PREPARED)
EACH = 100  # mutants of a source of the ladder

# What the emulator says of a launch, in the words of a verdict.
KINDS = {
    "race": ("race", "order"),
    "undefined value": ("unset", "unset_buffer", "undefined"),
    "address": ("bounds", "null", "wild", "fault", "dynamic", "index", "misaligned", "const"),
    "barrier": ("divergence", "mask"),
    "no end": ("time", "killed"),
}
# What came of a mutant. "same code": the GPU's compiler makes the same of it and the original.
REJECTED, SAME, SURVIVED, NONE = "rejected", "same code", "survived", "does not compile"


@dataclass(frozen=True)
class Check:
    """One launch of a kernel and its gate.

    way: '' as the lesson launches it; 'ragged': N no multiple of a tile, and a block more than
    needed; 'late': copies arrive when they are waited for; 'orders': every order of threads;
    'filled': variables without a first value are large numbers, and not NaN;
    'warned': what the compiler says of variables without a first value;
    'huge', 'tiny', 'zero', 'nan', 'lone', 'small', 'levels': the numbers of ``_changed``.
    """

    case: str
    n: int
    heads: int = 1
    splits: int = 1
    way: str = ""

    def __str__(self):
        parts = [f"N = {self.n}"]
        parts += [f"{self.heads} heads"] if self.heads > 1 else []
        parts += [f"{self.splits} splits"] if self.splits > 1 else []
        return ", ".join([self.case, *parts, *([self.way] if self.way else [])])

    @property
    def problem(self):
        return Problem(self.n, self.n, heads=self.heads)


@dataclass(frozen=True)
class Verdict:
    """What came of one mutant. ``by``: what rejected it, a case or one of KINDS; ``check``: where.

    ``code``: 12 digits of a hash of its machine code on the host.
    """

    status: str
    by: str = ""
    check: str = ""
    code: str = ""


def chosen(name, each=EACH):
    """The mutations of a source that are run.

    Of the two paths all. Of a rung those with the smallest keys, first of the lines that the rung
    before does not have, then of the others: more of them contain the fewer.
    """
    every = mutations.mutations(name)
    if name in paths.PATHS:
        return every
    own = every if name in PREPARED else mutations.own(name, _before(name))
    mine = {m.key for m in own}
    order = sorted(every, key=lambda m: (m.key not in mine, m.key))
    return sorted(order[:each], key=lambda m: m.edits)


def _before(name):
    r = rungs.rung(name)
    r = rungs.before(r)
    return rungs.before(r).name if r.fails else r.name


def launched(name):
    """The rung through which a source of the ladder is run."""
    return rungs.rung({rungs.MERGE: 10, rungs.HALVES: 25}.get(name, name))


@functools.cache
def battery(name):
    """(checks that come first, the others) of a source, each a tuple in the order of trying."""
    rest = cases.NAMES[1:]
    if name in paths.PATHS:
        early = ("random", "large", "peaks")
        first = [Check("periodic", 64), *(Check(case, 128) for case in ("periodic", *early))]
        last = [Check(case, 128) for case in rest if case not in early]
        if name == "materialised":
            last.insert(0, Check("periodic", 40, way="ragged"))
        last += [Check(case, GATE_N) for case in ("periodic", "peaks", "spike-late", "large")]
        last += [Check("peaks", 128, way="levels"), Check("periodic", 64, way="filled"),
                 Check("periodic", 64, way="warned"), Check("periodic", 128, way="orders")]
        return (*first,), (*last,)
    r = launched(name)
    # Three splits, heads and query blocks differ in number, or a mix-up of them would not show.
    heads, splits, more = 1 + r.heads, 1 + r.splits, 1 + 2 * r.splits
    one = 2 if name == rungs.MERGE else 1  # fewest splits that launch it
    first = [Check("periodic", 64)] * (name != rungs.MERGE)
    first += [Check("periodic", 128, splits=splits), Check("peaks", 128, splits=one)]
    last = [Check("random", 192, heads, more)]
    if r.number >= rungs.TENSOR[0].number:  # a product takes the host a while
        last += [Check(case, 128) for case in ("random", "spike-early", "spike-late", "large",
                                               "very-negative", "ties")]
        last.append(Check("periodic", GATE_N))
    else:
        last += [Check(case, 128, splits=one) for case in cases.NAMES if case != "peaks"]
        last += [Check(case, 192, heads, more)
                 for case in ("periodic", "peaks", "spike-late", "large")]
        last += [Check(case, GATE_N, splits=one) for case in ("periodic", "peaks")]
    if r.asynchronous and name not in PREPARED:
        last.insert(0, Check("periodic", 192, way="late"))
    if r.heads and r.bn == 32 and not r.splits:
        last[:0] = [Check("periodic", n, way="ragged") for n in (32, 96)]
    if r.halves:
        last += [Check("random", 128, way=way) for way in ("huge", "tiny", "zero", "nan")]
        last.append(Check("random", 256, way="lone"))
    last.append(Check("peaks", 128, splits=one, way="levels"))
    last += [Check("periodic", 128, splits=splits, way=way)
             for way in ("filled", "warned", "orders")]
    return (*first,), tuple(check for check in last if check not in first)


# For what one case alone would let through: every case, and small random numbers.
ALONE = (*(Check(case, 128) for case in cases.NAMES), Check("random", 128, way="small"))


@functools.cache
def digest(checks):
    """SHA-256 over some checks: their inputs, how they launch, and the gate."""
    total = hashlib.sha256(repr((gate.RTOL_FLOOR, gate.SUM_FACTOR, gate.SCORE_FACTOR)).encode())
    for check in checks:
        total.update(f"{check}\0{_inputs(check.case, check.problem, check.way)[1]}\0".encode())
    return total.hexdigest()


@functools.cache
def _inputs(name, problem, way):
    """(Case, SHA-256 of its inputs)."""
    case = _changed(cases.make(name, problem), way)
    return case, hashlib.sha256(b"".join(x.tobytes() for x in (case.q, case.k, case.v))).hexdigest()


@functools.cache
def _reference(name, problem, way):
    """The Reference of a check; where an input is no number, what sees it is NaN."""
    if way != "nan":
        return gates_and_times.reference(_inputs(name, problem, way)[0])
    found = gates_and_times.reference(cases.make(name, problem))
    found.o[7], found.o[:, 3] = np.nan, np.nan
    return found


def _changed(case, way):
    """A Case with other numbers.

    'huge', 'tiny': near the ends of float32; Q and K change by inverse factors, so that the scores
    stay. 'zero': the first tile of 64 keys is 0, in K and in V. 'nan': a column of V has numbers
    that are none, and a row of Q one. 'lone': in each row of Q and in each tile of K and V one
    number, below 0, is much larger than the others. 'small': a tenth of all numbers, what many a
    test takes. 'levels', of peaks: the scores of two rows differ in level by 600 where one bit of
    the rows' numbers differs, and so also of rows that one thread has.
    """
    if way not in ("huge", "tiny", "zero", "nan", "lone", "small", "levels"):
        return case
    if way == "levels":
        q = case.q.copy()
        ones = [bin(row).count("1") % 2 for row in range(q.shape[-2])]
        q[..., 0] = np.where(ones, -120.0, 120.0)  # a key's share of the level is 2.5
        return replace(case, q=q)
    if way == "small":
        return replace(case, **{x: getattr(case, x) * np.float32(0.1) for x in "qkv"})
    q, k, v = (x.copy() for x in (case.q, case.k, case.v))
    if way in ("huge", "tiny"):
        sign = 1 if way == "huge" else -1
        q, k, v = (np.ldexp(x, sign * e).astype(np.float32)
                   for x, e in ((q, -60), (k, 60), (v, 118)))
    elif way == "lone":  # in each of the four numbers that a thread reads at once
        rows, tile = np.arange(len(q)), np.arange(len(k) // 64)
        q[rows, rows % 64] = -64.0
        k[64 * tile + 9, tile % 4] = -64.0
        v[64 * tile + np.array([0, 1, 8, 9])[tile % 4], 5] = -1000.0
    elif way == "zero":
        k[:64] = v[:64] = 0.0
    else:
        v[5:8, 3], q[7, 2] = (np.nan, -np.inf, np.inf), np.inf
    return replace(case, q=q, k=k, v=v)


def judged(case, reference, output):
    """Whether an output passes; where an input is no number, its row or column must be NaN."""
    lost = np.isnan(reference.o)
    if lost.any() and not np.isnan(output[lost]).all():
        return False
    output, wanted = (np.where(lost, 0.0, x) for x in (output, reference.o))
    return gate.judge(output, wanted, case.problem, reference.max_abs_score).passed


class Gate:
    """Runs the mutants of one source."""

    def __init__(self, name):
        self.name, self.original = name, source.load(name)
        tensor = name not in paths.PATHS and launched(name).number >= rungs.TENSOR[0].number
        labels = {f"mutant of {name}.cu": self.original, f"late mutant of {name}.cu": self.original}
        limit_s = 5.0 if tensor else 2.0  # of a block; those of a right kernel take a tenth
        self.one = VariantBackend(labels, orders=("ascending",), limit_s=limit_s)
        self.every = VariantBackend(labels, limit_s=limit_s)
        self.large = VariantBackend(labels, large=True, orders=("ascending",), limit_s=limit_s)
        self.code = self._machine_code(self.one.compile(self._variant(self.original.text)))

    def verdict(self, mutation):
        """The Verdict on a Mutation."""
        text = self._variant(mutation.text)
        try:
            code = self._machine_code(self.one.compile(text))
        except CompileError:
            return Verdict(NONE)
        first, rest = battery(self.name)
        late = [check for check in rest if check.way == "late"]
        same = code == self.code  # then every check that runs it as it is would pass
        for check in late if same else first:
            if by := self.rejected(text, check):
                return Verdict(REJECTED, by, str(check), code)
        try:
            if same_on_a_gpu(self.original.text, mutation.text):
                return Verdict(SAME, code=code)
        except CompileError:
            return Verdict(NONE)
        for check in () if same else rest:
            if by := self.rejected(text, check):
                return Verdict(REJECTED, by, str(check), code)
        return Verdict(SURVIVED, code=code)

    def alone(self, mutation):
        """Which of ALONE reject a Mutation: a 1 or a 0 for each, as text."""
        text = self._variant(mutation.text)
        return "".join(str(int(bool(self.rejected(text, check)))) for check in ALONE)

    def original_fails(self):
        """The checks that the original itself does not pass, as (check, what rejects it)."""
        text, (first, rest) = self._variant(self.original.text), battery(self.name)
        return [(str(check), by) for check in (*first, *rest)
                if (by := self.rejected(text, check))]

    def rejected(self, text, check):
        """What rejects a Source on one Check: the case, or one of KINDS; '' if nothing does."""
        if check.way == "warned":
            return "undefined value" if used_unwritten(text) else ""
        of = check.case, check.problem, check.way
        case, reference = _inputs(*of)[0], _reference(*of)
        backend = {"orders": self.every, "filled": self.large}.get(check.way, self.one)
        if check.way == "late":
            text = replace(text, text=late_copies.late(text.text), label=f"late {text.label}")
        try:
            output = self._plan(backend, text, case, check).run()
        except CompileError:  # of a mutant that compiles: only its form with late copies does not
            return "launch"
        except (LaunchError, RaceError, UndefinedError, InputError) as error:
            kind = (getattr(error, "report", None) or {}).get("error")
            return next((name for name, kinds in KINDS.items() if kind in kinds), "launch")
        return "" if judged(case, reference, output) else check.case

    def _plan(self, backend, text, case, check):
        arrays = [backend.put(x) for x in (case.q, case.k, case.v)]
        if check.way == "ragged":
            return ragged(backend, self.name, text, *arrays)
        if self.name in paths.PATHS:
            return paths.PATHS[self.name](backend.compile(text), *arrays)
        return ladder.plan(backend, launched(self.name), *arrays, check.splits,
                           {self.name: text})

    def _variant(self, text):
        return source.from_text(text, f"mutant of {self.name}.cu")

    @staticmethod
    def _machine_code(program):
        return program._built.code[:12]


def ragged(backend, name, text, q, k, v):
    """A Plan for a number of keys that no tile divides, with a block more than needed each way.

    The launches of the lesson never are like this; the kernels guard their edges all the same.
    """
    n, program = len(q), backend.compile(text)
    o = backend.full((n, paths.D), np.nan)
    up = -(-n // paths.BLK) + 1
    if name == "materialised":
        s, p = backend.full((n, n), np.nan), backend.full((n, n), np.nan)
        total, scale = backend.full((n,), np.nan), paths.D**-0.5
        steps = [("scoresQKt", (up, up), (paths.BLK, paths.BLK), (q, k, s, n, scale)),
                 ("softmaxRows", (n,), (paths.THREADS,), (s, p, total, n)),
                 ("weightedV", (paths.D // paths.BLK, up), (paths.BLK, paths.BLK),
                  (p, v, total, o, n))]
        return paths.Plan(program, steps, o, {}, [s, p, total])
    r = rungs.rung(name)
    steps = [("attentionOnline", (-(-n // r.bm), 1, 1), (r.threads,), (q, k, v, o, n,
                                                                       paths.D**-0.5))]
    return paths.Plan(program, steps, o, {}, [])


def same_on_a_gpu(first, second):
    """Whether NVRTC makes the same PTX of two texts, for an H200 and for a T4: the same kernel.

    False without NVRTC. Raises CompileError where it refuses the second.
    """
    if not nvrtc.available()[0]:
        return False
    return all(_on_a_gpu(first, arch) == _on_a_gpu(second, arch)
               for arch in ("compute_90", "compute_75"))


@functools.lru_cache(maxsize=8)
def _on_a_gpu(text, arch):
    """The PTX of a text; None where an older GPU lacks something that it uses."""
    try:
        return nvrtc._compile(source.from_text(text, "kernel.cu"), (f"-arch={arch}",), "getPTX")[0]
    except CompileError:
        if arch == "compute_75":
            return None
        raise
