"""The gradients of attention in float64, and their gate.

With S = scale Q K^T, P = softmax(S), O = P V and a given dO, the gradient of the loss by O:

    dV = P^T dO,   dP = dO V^T,   D_i = sum_c dO_ic O_ic,   dS = P * (dP - D),
    dQ = scale dS K,   dK = scale dS^T Q

(FlashAttention, arXiv:2205.14135, appendix B; ``*`` is element by element). What is added cancels:
with equal keys dQ is 0, a sum of terms that are not, and each of them is rounded. So the gate is
relative to T, the sum of the absolute terms, and not to the gradient:

    |got - ref| <= r (T + max T),   r = max(4e-6, 2 eps sqrt(N), 4 eps max|score|),   eps = 2^-23,
    T_dV = P^T |dO|,   B = P * (|dP| + |D|),   T_dQ = scale B |K|,   T_dK = scale B^T |Q|.

max T is that of the whole matrix, since a weight that underflows leaves a row with T near 0. N is
the longest sum: that over the keys, or over the queries of all heads that share a K and V. The
terms of r are half of the forward gate's (gate.py), or less, and rest on the same assumption, that
the signs of rounding errors vary: O is a quotient of two sums of wrong weights, while here P is
divided before it is summed. They are estimates; the tests hold float32 gradients to 0.35 of the
gate.
"""

import zlib
from dataclasses import dataclass

import numpy as np

from ..errors import ArgumentError
from . import cases
from .gate import EPS, Verdict, compare
from .problem import Problem, of
from .reference import weights

FLOOR = 4e-6
SUM_FACTOR = 2.0  # of eps sqrt(N)
SCORE_FACTOR = 4.0  # of eps max|score|
NAMES = {"dq": "dQ", "dk": "dK", "dv": "dV"}
KINDS = ("normal", "all-positive")  # of dO


@dataclass(frozen=True)
class Gradients:
    """Float64 gradients, and what the gate needs beside them.

    dq, t_dq and o have Q's shape; dk, dv, t_dk and t_dv that of K and V; lse, the natural logarithm
    of a row's sum of exp(score), Q's without the columns. t_..: the absolute terms T of that
    gradient. max_abs_score: the largest absolute score that a query sees.
    """

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    lse: np.ndarray
    o: np.ndarray
    t_dq: np.ndarray
    t_dk: np.ndarray
    t_dv: np.ndarray
    max_abs_score: float


def gradients(q, k, v, do, block=256, problem=None):
    """The Gradients of sum(do * attention(q, k, v)) by q, k and v, in float64.

    q, k, v: arrays of a Problem's shapes, by default one head of (queries, d) and (keys, d); do:
    that of q. ``block`` query rows are held at a time: a few arrays of block x keys float64 at
    most. A query that sees no key adds nothing to any gradient; its lse is -inf.
    Raises ArgumentError where ``do`` has another shape.
    """
    p = problem or Problem(len(q), len(k), d=q.shape[-1])
    if np.shape(do) != p.q_shape:
        raise ArgumentError(f"do has shape {np.shape(do)}: needs the output's shape, {p.q_shape}")
    q, do = (np.asarray(x, dtype=np.float64).reshape(p.batch, p.heads, p.queries, p.d)
             for x in (q, do))
    k, v = (np.asarray(x, dtype=np.float64).reshape(p.batch, p.kv_heads, p.keys, p.d)
            for x in (k, v))
    o, dq, t_dq = (np.zeros_like(q) for _ in range(3))
    dk, t_dk, dv, t_dv = (np.zeros_like(k) for _ in range(4))
    lse, largest, all_seen = np.full(q.shape[:-1], -np.inf), 0.0, p.seen()
    for entry, head, start in np.ndindex(p.batch, p.heads, -(-p.queries // block)):
        rows = slice(start * block, (start + 1) * block)
        seen = all_seen[entry, rows]
        end = int(seen.max())  # nothing beyond is read, whatever stands there
        if end == 0:
            continue
        i, j = (entry, head, rows), (entry, head // (p.heads // p.kv_heads), slice(end))
        w, total, top, found = weights(q[i], k[j], p.scale, seen)
        largest = max(largest, found)
        w /= total  # P
        lse[i] = (top + np.log(total))[:, 0]
        o[i] = w @ v[j]
        dv[j] += w.T @ do[i]
        t_dv[j] += w.T @ np.abs(do[i])
        dp, d = do[i] @ v[j].T, (do[i] * o[i]).sum(axis=1, keepdims=True)
        ds, b = w * (dp - d), w * (np.abs(dp) + np.abs(d))
        dq[i], t_dq[i] = p.scale * (ds @ k[j]), p.scale * (b @ np.abs(k[j]))
        dk[j] += p.scale * (ds.T @ q[i])
        t_dk[j] += p.scale * (b.T @ np.abs(q[i]))
    of_q = (x.reshape(p.q_shape) for x in (dq, o, t_dq))
    of_kv = (x.reshape(p.kv_shape) for x in (dk, dv, t_dk, t_dv))
    (dq, o, t_dq), (dk, dv, t_dk, t_dv) = of_q, of_kv
    return Gradients(dq, dk, dv, lse.reshape(p.q_shape[:-1]), o, t_dq, t_dk, t_dv, largest)


@dataclass(frozen=True)
class GradientVerdict(Verdict):
    """A Verdict on the gradient ``which``: rtol is r, atol is r max T, ``fraction`` is relative to
    r (T + max T), a row is a query's (dQ) or a key's (dK, dV).
    """

    which: str = "dq"

    @property
    def axis(self):
        return "query row" if self.which == "dq" else "key row"

    def explain(self, path, case, problem):
        """One sentence that names path, gradient, case, problem and the worst element."""
        text = super().explain(f"{path}, {NAMES[self.which]}", case, problem)
        if self.worst in (None, (self.row, self.col)):  # another shape, or named already
            return text
        return f"{text}; worst at {self.axis} {self.worst[0]}, column {self.worst[1]}"


def tolerance(problem, max_abs_score=0.0):
    """r of the gate. problem: a Problem, or its number of keys and queries."""
    p = of(problem)
    longest = max(p.keys, p.queries * p.heads // p.kv_heads)
    return max(FLOOR, SUM_FACTOR * EPS * longest**0.5, SCORE_FACTOR * EPS * max_abs_score)


def judge(got, ref, which, problem):
    """Compare ``got`` with the gradient ``which``, 'dq', 'dk' or 'dv', of ``ref``, a Gradients.

    problem: a Problem, or N of one head. Returns a GradientVerdict; never raises for a wrong
    result. Raises ArgumentError for another ``which``.
    """
    if which not in NAMES:
        raise ArgumentError(f"which = {which!r}: needs one of {', '.join(map(repr, NAMES))}")
    found = compare(got, getattr(ref, which), tolerance(problem, ref.max_abs_score),
                    getattr(ref, f"t_{which}"))
    return GradientVerdict(**vars(found), which=which)


def gradient_case(name, problem, kind="normal"):
    """(Case, dO) of the case called ``name``, see cases.make. dO: float32, of the output's shape.

    kind: 'normal', standard normal numbers; or 'all-positive', their magnitudes + 0.5, since a dO
    with mean 0 hides what a truncating sum loses. Each case has a dO of its own, from its name.
    Raises ArgumentError for an unknown name or kind.
    """
    if kind not in KINDS:
        raise ArgumentError(f"kind = {kind!r}: needs one of {', '.join(map(repr, KINDS))}")
    case = cases.make(name, problem)
    rng = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    do = rng.standard_normal(case.problem.q_shape, dtype=np.float32)
    return case, do if kind == "normal" else np.abs(do) + np.float32(0.5)
