"""The named inputs. Deterministic, the same on every machine, generated for any Problem.

Q, K and V have the problem's shapes, float32, C-contiguous. ``i`` is the row, ``e`` the column; a
second head goes on where the first one's rows end.
"""

import math
from dataclasses import dataclass

import numpy as np

from ..errors import ArgumentError
from .problem import D, Problem, of

BN = 32  # keys per tile of the online kernel


@dataclass(frozen=True)
class Case:
    """Inputs of one gate, and what they catch."""

    name: str
    problem: Problem  # a number N is taken as one head of N keys and queries
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    catches: str

    def __post_init__(self):
        object.__setattr__(self, "problem", of(self.problem))

    @property
    def n(self):
        return self.problem.n


@dataclass(frozen=True)
class _Head:
    """One head to fill: its sizes, and the rows of Q and of K where it begins."""

    queries: int
    keys: int
    d: int = D
    scale: float = D**-0.5
    q0: int = 0
    k0: int = 0

    def _formula(self, first, rows, a, b, modulus, shift, step):
        i = np.arange(first, first + rows, dtype=np.int64)[:, None]
        e = np.arange(self.d, dtype=np.int64)[None, :]
        return ((a * i + b * e) % modulus - shift).astype(np.float32) * np.float32(step)

    def q(self):
        return self._formula(self.q0, self.queries, 31, 7, 97, 48, 0.021)

    def k(self):
        return self._formula(self.k0, self.keys, 17, 11, 89, 44, 0.019)

    def v(self):
        return self._formula(self.k0, self.keys, 13, 5, 83, 41, 0.011)

    def tiles(self):
        return -(-self.keys // BN)

    def by_tile(self, levels):
        """One level a key from one level a tile."""
        return np.repeat(levels, BN)[: self.keys]


# The cases below start from the periodic data and steer the scores through column 0: every query
# has q[i, 0] = 2, so a key with k[j, 0] = s / (2 scale), 4 s for d = 64, adds s to all its scores.
def _steered(head, added):
    q, k = head.q(), head.k()
    q[:, 0] = 2.0
    k[:, 0] = np.asarray(added, dtype=np.float32) * np.float32(0.5 / head.scale)
    # V gets a mean of about 0.25. Around zero, N values would cancel in the answer but their
    # rounding errors would not, and the gate, which is relative to the answer, would measure that.
    return q, k, head.v() + np.float32(0.25)


def _spike(head, key):
    added = np.zeros(head.keys)
    added[key] = 12.0
    q, k, v = _steered(head, added)
    k[key, 1:] = 0.0  # nothing but the spike: every query scores this key 12
    return q, k, v


def _periodic(head):
    k = head.k()
    k[max(head.keys - 3, 0)] *= np.float32(3.0)
    return head.q(), k, head.v()


def _ramp(head):
    return np.arange(head.tiles()) * min(4.0, 64.0 / max(head.tiles() - 1, 1))


def _sloped(head, levels):
    q, k, v = _steered(head, head.by_tile(levels))
    k[:, 1:] *= np.float32(0.25)  # a key must not overtake the slope
    return q, k, v


def _flat(head):
    k = np.zeros((head.keys, head.d), dtype=np.float32)
    k[:] = _Head(1, 1, head.d).k()
    return head.q(), k, head.v()


def _all_negative(head):
    # The spread over keys stays, so that the weights differ; the level sits below -100.
    return _steered(head, np.full(head.keys, -110.0))


def _very_negative(head):
    return _steered(head, np.full(head.keys, -11000.0))


def _large(head):
    # Levels from -120 to +120, tile by tile in an order that rises and falls, from the middle.
    tiles = head.tiles()
    step = next(step for step in (5, 7, 11, 13, 17, 19) if math.gcd(step, tiles) == 1)
    order = (np.arange(tiles) * step + tiles // 2) % tiles
    return _steered(head, head.by_tile(-120.0 + 240.0 * order / max(tiles - 1, 1)))


def peaked(own, keys, d=D, scale=D**-0.5):
    """Q and K whose query i scores key ``own[i]`` 100 more than any other key of that tile.

    100 come from the key's place in the tile and 100 from its tile: two blocks of columns, one
    column a place and one a tile (tiles share them where there are more). Column 0 holds a level
    of +100 or -100, in turn from query to query. own: one key for each query. float32, exact.
    """
    places = min(BN, d // 2)
    tiles = min(-(-keys // BN), d - 1 - places)
    q, k = (np.zeros((rows, d), dtype=np.float32) for rows in (len(own), keys))
    for matrix, key, one in ((q, np.asarray(own), 40.0), (k, np.arange(keys), 2.5 / scale)):
        row = np.arange(len(matrix))
        matrix[:, 0] = matrix[row, 1 + key % BN % places] = one  # 40 * 2.5 = 100
        matrix[row, 1 + places + key // BN % tiles] = one
    q[1::2, 0] *= -1.0
    return q, k


def _peaks(head):
    own = (37 * (head.q0 + np.arange(head.queries)) + 11) % head.keys  # every place in a tile
    return *peaked(own, head.keys, head.d, head.scale), head.v() + np.float32(0.25)


def _ties(head):
    # The same winning key stands in the first, a middle and the last tile.
    q, k, v = _steered(head, np.zeros(head.keys))
    for key in np.clip((5, head.keys // 2 + 1, head.keys - 2), 0, head.keys - 1):
        k[key] = 0.0
        k[key, 0] = 6.0 * np.float32(0.5 / head.scale)
    return q, k, v


_CASES = {
    "periodic": (_periodic, "wrong indexing, a missing scale or division; the rescale only weakly"),
    "spike-late": (lambda s: _spike(s, s.keys - 1),
                   "a missing rescale: in the last tile every row's maximum jumps by more than 9"),
    "spike-early": (lambda s: _spike(s, min(1, s.keys - 1)),
                    "a dropped first tile, and a maximum that forgets the first tile"),
    "spike-middle": (lambda s: _spike(s, min(s.keys // 2 + 1, s.keys - 1)),
                     "a rescale that is right only in the first or in the last tile"),
    "ascending": (lambda s: _sloped(s, _ramp(s)),
                  "an error that grows with the number of rescales: one at every tile"),
    "descending": (lambda s: _sloped(s, _ramp(s)[::-1]),
                   "a maximum that falls: the first tile's must stay"),
    "flat": (_flat, "a wrong count of keys: all scores are equal, the answer is the mean of V"),
    "all-negative": (_all_negative,
                     "a maximum floored at 0 or above: near -110 every exp(score) is 0"),
    "very-negative": (_very_negative,
                      "a maximum floored at any number above -10,000: every score is below it"),
    "peaks": (_peaks, "a maximum over some of the keys, or of another row: one key, another for "
              "each query, scores 100 more than its tile, and rows differ in level by 200"),
    "large": (_large, "an exp without its maximum: scores beyond +-100 overflow float32"),
    "random": (None, "swapped rows, columns or matrices: no structure hides them"),
    "ties": (_ties, "a maximum counted once where it occurs in three tiles"),
}

NAMES = tuple(_CASES)


def make(name, problem):
    """The inputs called ``name`` for a Problem, or for N keys and queries of one head.

    Raises ArgumentError for an unknown name or what is no problem.
    """
    if name not in _CASES:
        raise ArgumentError(f"no case is called {name!r}; there are: {', '.join(NAMES)}")
    p = of(problem)
    build, catches = _CASES[name]
    q, k, v = _random(p) if build is None else _by_head(p, build)
    return Case(name, p, *(np.ascontiguousarray(x) for x in (q, k, v)), catches)


def _by_head(p, build):
    """Fill head after head: Q from the first kv head's keys, K and V once for each kv head."""
    def head(index):
        return build(_Head(p.queries, p.keys, p.d, p.scale, index * p.queries, index * p.keys))

    q = np.stack([head(i)[0] for i in range(p.batch * p.heads)])
    k, v = (np.stack(x) for x in zip(*(head(i)[1:] for i in range(p.batch * p.kv_heads))))
    return q.reshape(p.q_shape), k.reshape(p.kv_shape), v.reshape(p.kv_shape)


def _random(p):
    rng = np.random.Generator(np.random.PCG64(2026))
    return tuple(rng.standard_normal(shape, dtype=np.float32)
                 for shape in (p.q_shape, p.kv_shape, p.kv_shape))
