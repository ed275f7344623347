"""The gate: is a result attention, to within what float32 rounding explains?

|got - ref| <= atol + rtol |ref| for every element, with

    rtol = max(1e-5, 4 eps sqrt(N), 8 eps max|score|),   atol = rtol max|ref|,   eps = 2^-23.

sqrt(N): each output is a sum over N keys, and the rounding errors of a sum are uncorrelated, so
they grow as the root of the number of terms; the 4 is slack for another valid order of summation.

max|score|: a weight is exp(s - m). A score s is a sum of 64 products, so its rounding error is
about sqrt(64) (eps / 2) |s| = 4 eps |s|; the maximum m carries as much. The exponential turns the
absolute error of s - m, at most 8 eps max|score|, into a relative error of the weight.
For scores below 10 the term stays under the floor of 1e-5.
"""

from dataclasses import dataclass

import numpy as np

EPS = 2.0**-23
RTOL_FLOOR = 1e-5
SUM_SLACK = 4.0
SCORE_SLACK = 8.0


def tolerance(n, max_abs_score=0.0):
    """rtol for n keys and scores of at most ``max_abs_score`` in absolute value."""
    return max(RTOL_FLOOR, SUM_SLACK * EPS * n**0.5, SCORE_SLACK * EPS * max_abs_score)


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

    def explain(self, path, case, n):
        """One sentence that names path, case, N and the first bad element."""
        if self.passed:
            return f"{path}, {case}, N = {n}: passed at {self.fraction:.3f} of the gate"
        if self.row is None:
            return f"{path}, {case}, N = {n}: {self.reason}"
        return (
            f"{path}, {case}, N = {n}: {self.reason}; first at query row {self.row}, "
            f"column {self.col}: got {self.got:.7g}, wanted {self.want:.7g} "
            f"+- {self.allowed:.2g} ({self.wrong} elements are outside the gate)"
        )


def judge(got, ref, n, max_abs_score=0.0, rows=None):
    """Compare ``got`` with ``ref``, arrays of shape (rows, d), for N = ``n`` keys.

    ``rows`` are the query rows that the arrays hold, all by default. Returns a Verdict; never
    raises for a wrong result.
    """
    rtol = tolerance(n, max_abs_score)
    got = np.asarray(got, dtype=np.float64)
    ref = np.asarray(ref, dtype=np.float64)
    if got.shape != ref.shape:
        return Verdict(False, float("nan"), float("nan"), rtol, float("nan"),
                       f"the result has shape {got.shape}, wanted {ref.shape}")
    atol = rtol * float(np.abs(ref).max())
    allowed = atol + rtol * np.abs(ref)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.abs(got - ref)
        good = error <= allowed  # False for NaN: a comparison that NaN cannot pass
        finite = np.isfinite(got)
        fraction = float((error / allowed).max()) if finite.all() else float("nan")
    good &= finite
    worst = float(error.max()) if finite.all() else float("nan")
    if good.all():
        return Verdict(True, fraction, worst, rtol, atol)
    row, col = (int(x) for x in np.argwhere(~good)[0])
    value = got[row, col]
    if not finite.all():
        inf = np.isinf(got).any()
        reason = ("not finite: an inf means an exp that overflowed" if inf else
                  "not finite: a NaN means an element never written, 0/0, or inf - inf")
        row, col = (int(x) for x in np.argwhere(~finite)[0])
        value = got[row, col]
    else:
        reason = f"{fraction:.3g} times the gate"
    return Verdict(False, fraction, worst, rtol, atol, reason,
                   int(row if rows is None else rows[row]), col, float(value),
                   float(ref[row, col]), float(allowed[row, col]), int((~good).sum()))
