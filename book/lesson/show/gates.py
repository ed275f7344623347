"""Gates: the cases, the formula, and how results came out."""

from dataclasses import dataclass

import numpy as np

from ..errors import ArgumentError
from ..launch import ladder, paths, rungs
from ..machine import backend as backends
from ..machine import gpus, prints
from ..measure import evidence, gates_and_times, records
from ..measure.records import GATE_N
from ..measure.tensor import BY_NVCC
from ..problem import model
from ..problem.cases import BN, NAMES, Case, make
from ..problem.gate import terms, tolerance
from ..problem.problem import D, of
from ..progress import Progress
from ..tables import Folded, Sentence, Table, Tables
from ..text.edits import note as edited_note
from .marks import NO_TENSOR, mark_of, origin, where
from .rungs import title


def case(name, n=256):
    """The inputs called ``name``: a Case with q, k, v of shape (n, 64), float32."""
    return make(name, n)


@dataclass(frozen=True)
class Output:
    """What a path made of a Case: ``o``, a NumPy array (n, 64), float32. It shows where it ran."""

    path: str
    case: Case
    o: np.ndarray
    said: Sentence

    def text(self):
        return self.said.text()

    __repr__ = text

    def _repr_html_(self):
        return self.said._repr_html_()


def output(path="online", case="spike-late", n=GATE_N):
    """Run a path, 'materialised' or 'online', on a case, and give what it computed: an Output.

    Runs where ``gate`` does. Raises ArgumentError for an unknown path or case.
    """
    if path not in paths.PATHS:
        raise ArgumentError(f"no path is called {path!r}; there are: {', '.join(paths.PATHS)}")
    chosen, inputs = backends.choose(), make(case, n)
    paths.HANDLES.refuse(inputs.problem)
    o = gates_and_times.run_path(chosen, path, inputs)
    said = Sentence(f"O of the {path} path on {case}: {o.shape[0]} x {o.shape[1]} numbers, "
                    f"{o.dtype}.", mark_of(chosen), where(chosen, path))
    return Output(path, inputs, o, said)


@prints.limited()
def gate(path="online", case="spike-late", n=GATE_N, splits=None):
    """Run a path or a rung on a case and compare with the float64 reference.

    path: 'materialised', 'online', 'pair' (one against the other), 'all' (the three), or a rung of
    the ladder: its number or its name. case: a name, or 'all' of them with path 'all'. splits: of
    a rung's keys. Runs on the GPU, emulated, or
    as a NumPy model, whichever there is; the mark says which.
    """
    known = ("materialised", "online", "pair", "all")
    if path not in known and (isinstance(path, int) or path in rungs.names()):
        return _rung_gate(path, case, n, splits)
    if path not in known:
        raise ArgumentError(f"no path is called {path!r}; there are: {', '.join(known)}, and the "
                            f"rungs 1 to {rungs.ALL[-1].number}")
    if splits is not None:
        raise ArgumentError(f"splits = {splits}: only a rung of the ladder splits its keys")
    if case == "all" and path == "all":
        return _gates(n)
    chosen = backends.choose()
    if path == "pair":
        rows = [r for r in gates_and_times.gate_case(chosen, case, n) if r.path == records.PAIR]
    else:
        rows = gates_and_times.gate_case(chosen, case, n, only=None if path == "all" else path)
    return gate_table(rows, mark_of(chosen),
                      where(chosen, *((path,) if path in paths.PATHS else ())),
                      f"Gate: {path}, {case}, {of(n)}")


def _gates(n, names=NAMES):
    """All three gates on every case."""
    chosen = backends.choose()
    with Progress() as progress:
        rows = gates_and_times.gate_cases(chosen, names, n, progress)
    return case_table(rows, mark_of(chosen), where(chosen))


def cases(n=GATE_N, names=NAMES):
    """The cases for N: how large their scores get, what rescale they ask for, what they catch.

    Float64 arithmetic on the inputs. ``periodic`` looks like a test of the rescale and is hardly
    one; this table says so with numbers.
    """
    t = Table(f"The cases, N = {n}", ["case", "largest |score|", "rtol of the gate",
              "rows rescaled in the last tile", "smallest r there", "catches"])
    for name in names:
        case = make(name, n)
        largest, r = 0.0, []
        for row in range(0, n, 256):
            s = case.q[row : row + 256].astype(float) @ case.k.T.astype(float) / D**0.5
            largest = max(largest, float(np.abs(s).max()))
            before, last = s[:, : -BN].max(axis=1), s[:, -BN :].max(axis=1)
            r.append(np.exp(before - np.maximum(before, last)))
        r = np.concatenate(r)
        t.add("computed", name, f"{largest:.3g}", f"{tolerance(n, largest):.2g}",
              f"{(r < 1).mean():.0%}", f"{r.min():.2g}", case.catches)
    return t


def gate_formula(*ns, max_abs_score=1.0):
    """The gate's rtol, term by term, for each N and scores of at most ``max_abs_score``."""
    t = Table("The gate in numbers",
              ["N", "largest |score|", "floor", "4 eps √N", "8 eps max|score|", "rtol"],
              note="rtol is the largest of the three")
    for n in ns or records.TABLE_N:
        found = terms(n, max_abs_score)
        t.add("computed", f"{n:,}", f"{max_abs_score:g}",
              *(f"{x:.3g}" for x in (*found, max(found))))
    return t


def gate_table(rows, mark, note, title="Gates"):
    """Gates as they came out; a failure's message stands below."""
    t = Table(title, ["path", "case", "N", "verdict", "gate fraction", "max abs error", "rtol"],
              note=note)
    for r in rows:
        t.add(mark, r.path, r.case, r.n, "pass" if r.passed else "fail", f"{r.fraction:.3f}",
              f"{r.max_abs_error:.1e}", f"{r.rtol:.2g}")
    t.footer = "\n".join(r.message for r in rows if not r.passed)
    return t


def case_table(rows, mark, note):
    """One line a case: the fractions of the three gates and what the case is there to catch."""
    n = rows[0].n
    t = Table(f"Gate fractions, all cases, N = {n}",
              ["case", "verdict", "materialised", "online", "pair", "catches"], note=note)
    for name in dict.fromkeys(r.case for r in rows):
        found = {r.path: r for r in rows if r.case == name}
        ok = all(r.passed for r in found.values())
        t.add(mark, name, "pass" if ok else "fail",
              *(f"{found[p].fraction:.3f}" for p in (*paths.PATHS, records.PAIR)),
              make(name, 64).catches)
    t.footer = "\n".join(r.message for r in rows if not r.passed)
    return t


def _rung_gate(which, case, n, splits):
    """Run a rung, with this session's edits, on a case and compare with the float64 reference.

    which: a number, or a name such as '12_lazy'. n: a multiple of 64. Emulated where there is no
    GPU, or one that cannot hold the rung. Raises ArgumentError for a rung, case, N or split that
    does not exist.
    """
    r = rungs.rung(which)
    inputs = make(case, n)
    t = Table(f"Gate: rung {r.number}, {case}, N = {n}",
              ["rung", "splits", "verdict", "gate fraction", "max abs error", "rtol"])
    chosen = backends.choose()
    if r.images and (lacks := rungs.missing(r, chosen)):
        return _recorded_gate(r, case, lacks)
    if chosen is not None and not rungs.blocks_on(r, gpus.of(chosen)[0]):
        try:  # a T4 lacks the shared memory: the emulator has it
            chosen = backends.choose("emulated")
        except ArgumentError as error:
            t.footer = f"nothing ran: this GPU does not hold a block of rung {r.number}; {error}"
            return t
    if chosen is None:
        t.footer = "nothing ran: there is neither a GPU nor a C++ compiler here"
        return t
    output, planned = ladder.run(chosen, r, inputs, splits)
    verdict = gates_and_times.judged(inputs, output)
    t.note = "; ".join(filter(None, (chosen.describe(), edited_note(r.name, rungs.MERGE))))
    t.add(chosen.mark, title(r), planned.splits, "pass" if verdict.passed else "fail",
          f"{verdict.fraction:.3f}", f"{verdict.max_abs_error:.1e}", f"{verdict.rtol:.2g}")
    if not verdict.passed:
        t.footer = verdict.explain(f"rung {r.number}", case, n)
    return t


def _recorded_gate(r, case, lacks):
    """What recorded GPUs saw of a rung that nothing here can run: its gates on a case."""
    parts = [Sentence(f"Nothing ran here: {lacks.partition(', for')[0]}.", "computed")]
    for item in evidence.shown("tensor"):
        t = Table(f"Gate: rung {r.number}, {case}, every recorded N",
                  ["N", "compiled by", "verdict", "gate fraction", "max abs error", "rtol"],
                  note=origin(item))
        for g in item.tensor.gates:
            path, by, _ = g.path.partition(BY_NVCC)
            if (path, g.case) == (r.name, case):
                t.add("recorded", f"{g.n:,}", "nvcc" if by else "NVRTC",
                      "pass" if g.passed else "fail", f"{g.fraction:.3f}",
                      f"{g.max_abs_error:.1e}", f"{g.rtol:.2g}")
        if not t.rows:
            parts.append(Sentence(f"{case} is none of the cases that were gated on {item.gpu}, "
                                  f"{item.day}.", "computed"))
            continue
        verdicts, fractions = [[cells[i] for cells, _ in t.rows] for i in (2, 3)]
        parts.append(Folded(f"Recorded gates of rung {r.number} on {case}: {verdicts.count('pass')}"
                            f" of {len(verdicts)} passed, at {max(fractions, key=float)} of the "
                            "gate at worst", t))
    return Tables(parts if len(parts) > 1 else [*parts, Sentence(f"{NO_TENSOR}.", "computed")])


def trace(case="spike-late", n=256, row=0, columns=3):
    """The online recurrence on one query row, tile by tile, in NumPy float32."""
    inputs = make(case, n)
    if not 0 <= row < n:
        raise ArgumentError(f"row = {row}: the query rows are 0 to {n - 1}")
    steps = []
    model.online(inputs.q, inputs.k, inputs.v, rows=slice(row, row + 1), trace=steps)
    t = Table(f"Online recurrence, {case}, query row {row}",
              ["tile", "m before", "m after", "rescale", "l after",
               *(f"o[{i}] after" for i in range(columns))], note="NumPy float32")
    before = -np.inf
    for step in steps:
        t.add("computed", step["tile"] + 1, f"{before:.4g}", f"{step['m'][0]:.4g}",
              f"{step['rescale'][0]:.3g}", f"{step['l'][0]:.5g}",
              *(f"{x:.5g}" for x in step["o"][0, :columns]))
        before = step["m"][0]
    return t
