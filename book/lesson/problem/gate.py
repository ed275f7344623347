"""The gate: is a result attention, to within what float32 rounding explains?

|got - ref| <= atol + rtol |ref| for every element, with

    rtol = max(1e-5, 4 eps sqrt(N), 8 eps max|score|),   atol = rtol max|ref|,   eps = 2^-23.

Two of the terms rest on an assumption, that the signs of rounding errors vary.

4 eps sqrt(N): each output is a sum over N keys. With signs that vary it errs like
(eps / 2) sqrt(N); the gate allows 8 times that, for another valid order of summation, for the
denominator, and for signs that vary less. Proven for any signs is N eps / 2 alone. Equal addends
are all rounded in one direction: with Q = K = 0 and V = 0.1 a right kernel that adds key after key
is at 0.63 of the gate for N = 4096 and outside of it for N = 16384.

8 eps max|score|: a weight is exp(s - m), so the absolute error of a score s is a relative error of
its weight. A score is a sum of 64 products; with signs that vary, and partial sums no larger than
max|score|, it errs by about sqrt(64) (eps / 2) max|score| = 4 eps max|score|. An estimate, not a
bound: the lesson's inputs reach 1.7 of it. The error of m cancels in o / l. The factor 2 is for
the numerator and the denominator, sums of the same wrong weights.
For scores below 10 the term stays under the floor of 1e-5.

So the gate is for values or weights that vary, and for scores that are not much smaller than the
products of which they are the sum.
"""

from dataclasses import dataclass

import numpy as np

from .problem import of

EPS = 2.0**-23
RTOL_FLOOR = 1e-5
SUM_FACTOR = 4.0  # of eps sqrt(N)
SCORE_FACTOR = 8.0  # of eps max|score|


def terms(problem, max_abs_score=0.0):
    """The three terms of rtol: the floor, that of the number of keys, that of the scores.

    problem: a Problem, or its number of keys. ``max_abs_score``: the largest |score|.
    """
    return (RTOL_FLOOR, SUM_FACTOR * EPS * of(problem).keys ** 0.5,
            SCORE_FACTOR * EPS * max_abs_score)


def tolerance(problem, max_abs_score=0.0):
    """rtol: the largest of the terms."""
    return max(terms(problem, max_abs_score))


def formula(problem, max_abs_score=0.0):
    """The gate of a problem, with its numbers."""
    return (f"gate for {of(problem)}: |got - ref| <= atol + rtol |ref|, rtol = max({RTOL_FLOOR:g}, "
            f"{SUM_FACTOR:g} eps sqrt(N), {SCORE_FACTOR:g} eps max|score|) = "
            f"{tolerance(problem, max_abs_score):.3g}, atol = rtol max|ref|, eps = 2^-23")


@dataclass(frozen=True)
class Verdict:
    """The outcome of one gate.

    ``fraction`` is the worst |got - ref| / (atol + rtol |ref|); above 1 fails, NaN fails.
    ``row`` and ``col`` name the first bad element (query row, column) of a failure.
    """

    passed: bool
    fraction: float
    max_abs_error: float
    rtol: float
    atol: float
    reason: str = ""
    row: int | None = None
    col: int | None = None
    got: float | None = None
    want: float | None = None
    allowed: float | None = None
    wrong: int = 0  # elements outside the gate
    worst: tuple | None = None  # (row, column) of ``fraction``, or of the first that is not finite

    axis = "query row"  # what a row of the matrix belongs to

    def explain(self, path, case, problem):
        """One sentence that names path, case, problem and the first bad element."""
        where = f"{path}, {case}, {of(problem)}"
        if self.passed:
            return f"{where}: passed at {self.fraction:.3f} of the gate"
        if self.row is None:
            return f"{where}: {self.reason}"
        return (
            f"{where}: {self.reason}; first at {self.axis} {self.row}, "
            f"column {self.col}: got {self.got:.7g}, wanted {self.want:.7g} "
            f"+- {self.allowed:.2g} ({self.wrong} elements are outside the gate)"
        )


def judge(got, ref, problem, max_abs_score=0.0, rows=None):
    """Compare ``got`` with ``ref``, arrays (.., rows, d) of a Problem (or of its number of keys).

    ``rows`` are the query rows that the arrays hold, all by default. Returns a Verdict; never
    raises for a wrong result.
    """
    ref = np.asarray(ref, dtype=np.float64)
    return compare(got, ref, tolerance(problem, max_abs_score), np.abs(ref), rows)


def judge_seen(got, ref, problem, max_abs_score=0.0):
    """``judge`` where rows see different numbers of keys, as under a mask: the worst Verdict.

    A mean over n values is about sqrt(n) times smaller than one of them, so the first rows of a
    causal mask would lend the last ones a tolerance that is too large. Rows are judged with those
    that see a like number of keys, from 2^b to 2^(b + 1) - 1: N of rtol, and max|ref| of atol, are
    theirs. Rows that see no key must be exactly 0. got, ref: arrays (.., queries, d).
    """
    p = of(problem)
    got, ref = (np.asarray(x, dtype=np.float64) for x in (got, ref))
    if got.shape != ref.shape:
        return compare(got, ref, tolerance(p, max_abs_score), np.abs(ref))
    shape = (p.batch, p.heads, p.queries, p.d)
    got, ref, seen, worst = got.reshape(shape), ref.reshape(shape), p.seen(), None
    for entry in range(p.batch):
        band = np.frexp(seen[entry])[1]
        for b in np.unique(band):
            rows = np.flatnonzero(band == b)
            rtol = tolerance(max(int(seen[entry, rows].max()), 1), max_abs_score)
            mine = ref[entry][:, rows]
            found = compare(got[entry][:, rows], mine, rtol, np.abs(mine), rows)
            if worst is None or not found.passed and worst.passed or (
                    found.passed == worst.passed and found.fraction > worst.fraction):
                worst = found
    return worst


def compare(got, ref, rtol, size, rows=None):
    """A Verdict on |got - ref| <= rtol (size + max size) for arrays (.., rows, d).

    ``size``, an array of ref's shape, is what rounding errors scale with: |ref| itself, or the
    absolute terms of its sum. ``rows`` are the rows that the arrays hold, all by default.
    """
    got, ref, size = (np.asarray(x, dtype=np.float64) for x in (got, ref, size))
    if got.shape != ref.shape:
        return Verdict(False, float("nan"), float("nan"), rtol, float("nan"),
                       f"the result has shape {got.shape}, wanted {ref.shape}")
    rows = np.arange(ref.shape[-2]) if rows is None else np.asarray(rows)
    rows = np.tile(rows, ref.size // (len(rows) * ref.shape[-1]))  # of every head
    got, ref, size = (x.reshape(-1, x.shape[-1]) for x in (got, ref, size))
    atol = rtol * float(size.max())
    allowed = atol + rtol * size
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.abs(got - ref)
        good = error <= allowed  # False for NaN: a comparison that NaN cannot pass
        # 0 where there is no error: where all of ``size`` is 0, 0/0 would be NaN
        share = np.divide(error, allowed, out=np.zeros_like(error), where=error != 0)
    finite = np.isfinite(got)
    good &= finite
    place = np.argwhere(~finite)[0] if not finite.all() else np.unravel_index(
        share.argmax(), share.shape)
    at = int(rows[place[0]]), int(place[1])
    fraction, worst = ((float(share.max()), float(error.max())) if finite.all() else
                       (float("nan"), float("nan")))
    if good.all():
        return Verdict(True, fraction, worst, rtol, atol, worst=at)
    row, col = (int(x) for x in np.argwhere(~good)[0])
    if not finite.all():
        inf = np.isinf(got).any()
        reason = ("not finite: an inf means an exp that overflowed" if inf else
                  "not finite: a NaN means an element never written, 0/0, or inf - inf")
        row, col = (int(x) for x in place)
    else:
        reason = f"{fraction:.3g} times the gate"
    return Verdict(False, fraction, worst, rtol, atol, reason,
                   int(rows[row]), col, float(got[row, col]),
                   float(ref[row, col]), float(allowed[row, col]), int((~good).sum()), at)
