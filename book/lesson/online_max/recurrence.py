"""One query row of online softmax, tile by tile, in float32: what the widget shows.

``core.mjs`` computes the same in JavaScript; the tests compare the two value by value. Both round
to float32 after every operation, in the order written here, so all but the exponential is fixed
by IEEE 754. The exponential is taken in float64 and rounded: two libraries that are good to one
float64 ulp then give the same float32, except where the value lies within 1e-8 of a rounding edge.

Source of the recurrence: Milakov and Gimelshein 2018 (arXiv:1805.02867).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import ArgumentError
from ..problem.gate import judge

F32 = np.float32
N = 32  # keys of a named case
COLUMNS = 3  # output columns that the widget shows

FAULTS = (
    "none",
    "forget-o",  # o is not rescaled
    "forget-l",  # l is not rescaled
    "forget-both",
    "start-at-0",  # m starts at 0 instead of -inf
    "no-maximum",  # exp(s) with nothing subtracted
    "tile-maximum",  # m' is the tile's maximum, also where an earlier one was larger
)


def _wave(j):
    """A small pattern between -1.5 and 1.5, in quarters: exact in float32."""
    return ((11 * j + 3) % 13 - 6) / 4


def _spike(key):
    return lambda j: 12.0 if j == key else _wave(j)


_SCORES = {
    "spike-late": _spike(N - 1),
    "spike-early": _spike(0),
    "spike-middle": _spike(N // 2 + 1),
    "ascending": lambda j: (j - 16) / 2,
    "descending": lambda j: (15 - j) / 2,
    "flat": lambda j: 2.0,
    "all-negative": lambda j: 4 * _wave(j) - 112,
    "large": lambda j: 4 * _wave(j) + (-110 if j // 8 % 2 == 0 else 110),
    "random": None,  # seeded
}

CASES = tuple(_SCORES)


def _random(seed):
    """32 scores near a normal distribution: sums of four bytes of a linear congruence."""
    state = seed % 2**32
    scores = []
    for _ in range(N):
        total = 0
        for _ in range(4):
            state = (1664525 * state + 1013904223) % 2**32
            total += state >> 24
        scores.append((total - 510) / 64)
    return scores


def case_scores(case, seed=0):
    """The 32 scores of a named case, float32. ``seed``: whole number, used by 'random' alone."""
    if case not in _SCORES:
        raise ArgumentError(f"case = {case!r}: no such case; there are: {', '.join(CASES)}")
    scores = _random(seed) if case == "random" else [_SCORES[case](j) for j in range(N)]
    return np.array(scores, dtype=F32)


def key_values(n):
    """The value vectors of ``n`` keys, (n, 3) float32, exact: between -0.5 and 1.5.

    Their mean is not 0: around 0 the answer would cancel and its rounding errors would not.
    """
    j, c = np.arange(n)[:, None], np.arange(COLUMNS)[None, :]
    return (((13 * j + 5 * c) % 17 - 4) / 8).astype(F32)


@dataclass(frozen=True)
class Walk:
    """The state of one query row before the first of T tiles and after each.

    m, l: (T + 1,); o: (T + 1, 3); index 0 is the state before anything is read.
    tile_max, rescale, total: (T,), of tile t + 1; ``total`` is the sum of its weights.
    w: (N,), each key's weight exp(s - m') at the time its tile was read. All float32.
    """

    scores: np.ndarray
    values: np.ndarray
    tile: int
    fault: str
    m: np.ndarray
    l: np.ndarray
    o: np.ndarray
    tile_max: np.ndarray
    rescale: np.ndarray
    w: np.ndarray
    total: np.ndarray

    @cached_property
    def answer(self):
        """o / l after the last tile, (3,) float32."""
        with np.errstate(all="ignore"):
            return self.o[-1] / self.l[-1]

    @cached_property
    def reference(self):
        """The three-pass answer in float64: maximum, then total, then the weighted sum."""
        s = self.scores.astype(np.float64)
        w = np.exp(s - s.max())
        total = np.add.accumulate(w)[-1]  # one after the other, as core.mjs does
        return np.add.accumulate(w[:, None] * self.values, axis=0)[-1] / total

    @cached_property
    def verdict(self):
        """The gate's Verdict of ``answer`` against ``reference``."""
        return judge(
            self.answer[None], self.reference[None], len(self.scores), max_abs(self.scores)
        )

    @cached_property
    def table(self):
        """A NumPy structured array, one record per tile."""
        kind = [("tile", "i4"), ("tile_max", F32), ("m_before", F32), ("m", F32),
                ("rescale", F32), ("total", F32), ("l_before", F32), ("l", F32),
                ("o_before", F32, (COLUMNS,)), ("o", F32, (COLUMNS,))]
        rows = np.empty(len(self.tile_max), dtype=kind)
        rows["tile"] = np.arange(1, len(rows) + 1)
        rows["tile_max"], rows["rescale"], rows["total"] = self.tile_max, self.rescale, self.total
        for name in ("m", "l", "o"):
            state = getattr(self, name)
            rows[name + "_before"], rows[name] = state[:-1], state[1:]
        return rows


def max_abs(scores):
    """The largest |score|, for the gate."""
    return float(np.abs(scores).max())


def exp32(x):
    """exp of a float32, taken in float64 and rounded once."""
    return F32(np.exp(np.float64(x)))


def walk(scores, values=None, tile=4, fault="none"):
    """Walk one query row's scores tile by tile and return the Walk.

    scores: (n,), finite; values: (n, 3), by default ``key_values(n)``; ``tile``: keys per tile,
    a divisor of n; ``fault``: one of FAULTS. Raises ArgumentError for anything else.
    """
    scores = check_scores(scores)
    n = len(scores)
    check_tile(tile, n)
    check_fault(fault)
    values = key_values(n) if values is None else np.asarray(values, dtype=F32)
    if values.shape != (n, COLUMNS):
        raise ArgumentError(f"values: shape {values.shape}, but {n} scores need ({n}, {COLUMNS})")

    tiles = n // tile
    m, l, o = (np.zeros(s, dtype=F32) for s in ((tiles + 1,), (tiles + 1,), (tiles + 1, COLUMNS)))
    tile_max, rescale, total = (np.zeros(tiles, dtype=F32) for _ in range(3))
    w = np.zeros(n, dtype=F32)
    m[0] = 0.0 if fault in ("start-at-0", "no-maximum") else -np.inf
    with np.errstate(all="ignore"):  # a fault may overflow: the inf and the NaN are the lesson
        for t in range(tiles):
            keys = range(t * tile, (t + 1) * tile)
            tile_max[t] = scores[keys[0] : keys[-1] + 1].max()
            if fault == "no-maximum":
                m[t + 1] = 0.0
            elif fault == "tile-maximum":
                m[t + 1] = tile_max[t]
            else:
                m[t + 1] = max(m[t], tile_max[t])
            rescale[t] = exp32(m[t] - m[t + 1])
            added = np.zeros(COLUMNS, dtype=F32)
            for j in keys:
                w[j] = exp32(scores[j] - m[t + 1])
                total[t] += w[j]
                added += w[j] * values[j]
            kept_l = l[t] if fault in ("forget-l", "forget-both") else l[t] * rescale[t]
            kept_o = o[t] if fault in ("forget-o", "forget-both") else o[t] * rescale[t]
            l[t + 1] = kept_l + total[t]
            o[t + 1] = kept_o + added
    return Walk(scores, values, int(tile), fault, m, l, o, tile_max, rescale, w, total)


def check_scores(scores):
    """``scores`` as a 1-D float32 array; ArgumentError if that cannot be."""
    try:
        scores = np.array(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise ArgumentError("scores: not numbers; give one number per key") from None
    if scores.ndim != 1 or not scores.size:
        raise ArgumentError(f"scores: shape {scores.shape}; give one number per key")
    with np.errstate(over="ignore"):
        scores = scores.astype(F32)
    if not np.isfinite(scores).all():
        raise ArgumentError(
            f"scores: key {int(np.argmin(np.isfinite(scores)))} is not a finite float32; "
            "a masked key has no place in this walk"
        )
    return scores


def check_fault(fault):
    """Refuse a name that is not in FAULTS."""
    if fault not in FAULTS:
        raise ArgumentError(
            f"fault = {fault!r}: no such fault; there are: {', '.join(FAULTS)}"
        )


def check_tile(tile, n):
    """Refuse a tile width that does not divide ``n`` keys."""
    if not (isinstance(tile, (int, np.integer)) and 0 < tile <= n and n % tile == 0):
        widths = ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)
        raise ArgumentError(f"tile = {tile!r}: must divide the {n} keys: one of {widths}")
