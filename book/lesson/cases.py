"""The named inputs. Deterministic, the same on every machine, generated for any N.

Every case is Q, K, V of shape (n, 64), float32, C-contiguous. ``i`` is the row, ``e`` the column.
"""

from dataclasses import dataclass

import numpy as np

from .errors import ArgumentError

D = 64
BN = 32  # keys per tile of the online kernel


@dataclass(frozen=True)
class Case:
    """Inputs of one gate, and what they catch."""

    name: str
    n: int
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    catches: str


def _formula(n, a, b, modulus, shift, step):
    i = np.arange(n, dtype=np.int64)[:, None]
    e = np.arange(D, dtype=np.int64)[None, :]
    return ((a * i + b * e) % modulus - shift).astype(np.float32) * np.float32(step)


def _q(n):
    return _formula(n, 31, 7, 97, 48, 0.021)


def _k(n):
    return _formula(n, 17, 11, 89, 44, 0.019)


def _v(n):
    return _formula(n, 13, 5, 83, 41, 0.011)


# The cases below start from the periodic data and steer the scores through column 0: every query
# has q[i, 0] = 2, so a key with k[j, 0] = 4 s adds 2 * 4 s / sqrt(64) = s to all of its scores.
def _steered(n, added):
    q, k = _q(n), _k(n)
    q[:, 0] = 2.0
    k[:, 0] = 4.0 * np.asarray(added, dtype=np.float32)
    # V gets a mean of about 0.25. Around zero, N values would cancel in the answer but their
    # rounding errors would not, and the gate, which is relative to the answer, would measure that.
    return q, k, _v(n) + np.float32(0.25)


def _spike(n, key):
    added = np.zeros(n)
    added[key] = 12.0
    q, k, v = _steered(n, added)
    k[key, 1:] = 0.0  # nothing but the spike: every query scores this key 12
    return q, k, v


def _periodic(n):
    k = _k(n)
    k[n - 3] *= np.float32(3.0)
    return _q(n), k, _v(n)


def _ramp(n):
    tiles = n // BN
    return np.repeat(np.arange(tiles) * min(4.0, 64.0 / max(tiles - 1, 1)), BN)


def _sloped(n, added):
    q, k, v = _steered(n, added)
    k[:, 1:] *= np.float32(0.25)  # a key must not overtake the slope
    return q, k, v


def _ascending(n):
    return _sloped(n, _ramp(n))


def _descending(n):
    return _sloped(n, _ramp(n)[::-1])


def _flat(n):
    k = np.zeros((n, D), dtype=np.float32)
    k[:] = _k(1)
    return _q(n), k, _v(n)


def _all_negative(n):
    # The spread over keys stays, so that the weights differ; the level sits below -100.
    return _steered(n, np.full(n, -110.0))


def _large(n):
    # Levels from -120 to +120, tile by tile in an order that rises and falls.
    tiles = n // BN
    order = (np.arange(tiles) * 5 + 3) % tiles if tiles % 5 else np.arange(tiles)
    return _steered(n, np.repeat(-120.0 + 240.0 * order / max(tiles - 1, 1), BN))


def _random(n):
    rng = np.random.Generator(np.random.PCG64(2026))
    return tuple(rng.standard_normal((n, D), dtype=np.float32) for _ in range(3))


def _ties(n):
    # The same winning key stands in the first, a middle and the last tile.
    q, k, v = _steered(n, np.zeros(n))
    for key in (5, n // 2 + 1, n - 2):
        k[key] = 0.0
        k[key, 0] = 4.0 * 6.0
    return q, k, v


_CASES = {
    "periodic": (_periodic, "wrong indexing, a missing scale or division; the rescale only weakly"),
    "spike-late": (lambda n: _spike(n, n - 1),
                   "a missing rescale: in the last tile every row's maximum jumps by more than 9"),
    "spike-early": (lambda n: _spike(n, 1),
                    "a dropped first tile, and a maximum that forgets the first tile"),
    "spike-middle": (lambda n: _spike(n, n // 2 + 1),
                     "a rescale that is right only in the first or in the last tile"),
    "ascending": (_ascending, "an error that grows with the number of rescales: one at every tile"),
    "descending": (_descending, "a maximum that falls: the first tile's must stay"),
    "flat": (_flat, "a wrong count of keys: all scores are equal, the answer is the mean of V"),
    "all-negative": (_all_negative,
                     "a maximum floored at 0 or above: every score is below -100"),
    "large": (_large, "an exp without its maximum: scores beyond +-100 overflow float32"),
    "random": (_random, "swapped rows, columns or matrices: no structure hides them"),
    "ties": (_ties, "a maximum counted once where it occurs in three tiles"),
}

NAMES = tuple(_CASES)


def make(name, n):
    """The inputs called ``name`` for ``n`` keys and queries.

    n: a multiple of 64, at least 64. Raises ArgumentError for another n or an unknown name.
    """
    if name not in _CASES:
        raise ArgumentError(f"no case is called {name!r}; there are: {', '.join(NAMES)}")
    check_n(n)
    build, catches = _CASES[name]
    return Case(name, n, *(np.ascontiguousarray(x) for x in build(n)), catches)


def check_n(n):
    """Refuse an N that the lesson's tiles do not divide."""
    if int(n) != n or n < 64 or n % 64:
        raise ArgumentError(
            f"n = {n}: N must be a positive multiple of 64, the query rows of a block "
            f"(the nearest is {max(64, round(n / 64) * 64)})"
        )
