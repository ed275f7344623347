"""The part (m, l, o) that some keys are of some query rows: by array operations, or by a kernel.

Arrays are NumPy's or CuPy's: NumPy's functions hand a CuPy array on to CuPy. m is natural (a weight
is exp(score - m)), as in problem/merge.py.
"""

import functools
import math

import numpy as np

from ..launch import rungs
from ..launch.splits import choose
from ..machine import gpus
from ..problem.merge import merge
from ..problem.problem import D, Problem
from ..text.edits import current
from .deal import TILE, deal

KEYS_AT_ONCE = 512  # of array operations: scores that stay in a cache
KEYS_A_BLOCK = 1 << 15  # a block ends after at most so many: NCCL's own blocks wait for a place
KEYS_A_LAUNCH = 1 << 18  # the workspace has as many rows as a launch has keys, for each split


def none(rows, d=D):
    """The part of no keys: it changes nothing."""
    return (np.full(rows, -np.inf, np.float32), np.zeros(rows, np.float32),
            np.zeros((rows, d), np.float32))


def at_once(q, k, v):
    """The part of keys few enough for their scores to be held, by array operations. float32."""
    s = np.float32(q.shape[1] ** -0.5) * (q @ k.T)
    m = s.max(axis=1)
    w = np.exp(s - m[:, None])
    return m, w.sum(axis=1), w @ v


def by_arrays(q, k, v):
    """The part of any number of keys from 1: block after block, merged."""
    return functools.reduce(merge, (at_once(q, k[a : a + KEYS_AT_ONCE], v[a : a + KEYS_AT_ONCE])
                                    for a in range(0, len(k), KEYS_AT_ONCE)))


class ByKernel:
    """The same by the lesson's choice of a kernel that splits keys, on a backend.

    keys, rows: about how many a call will have; the choice depends on them. ``label`` names the
    rung. Keys beyond whole tiles of 64, and what is too small for a block, go by array operations.
    """

    def __init__(self, backend, keys, rows):
        gpu, sms = gpus.of(backend)
        self.backend = backend
        self.rung = choose(Problem(max(rows, TILE), max(keys, TILE)), gpu, sms).rung
        self.places = sms * rungs.blocks_on(self.rung, gpu)
        program = backend.compile(current(self.rung.name))
        self._launch = getattr(program, "enqueue", program.launch)  # a GPU does not wait
        self.label = f"rung {self.rung.number}"

    def __call__(self, q, k, v):
        """q: (rows, 64), rows a multiple of 128, or fewer. k, v: (keys, 64)."""
        whole = len(k) // TILE * TILE
        pieces = deal(whole, math.ceil(whole / KEYS_A_LAUNCH)) if whole else []
        least = max(len(q), 2 * TILE)  # a launch takes rows and keys from one n; a split has a tile
        if len(q) % self.rung.bm or any(p.stop - p.start < least for p in pieces):
            return by_arrays(q, k, v)
        found = [self._whole_tiles(q, k[piece], v[piece]) for piece in pieces]
        if whole < len(k):
            found.append(at_once(q, k[whole:], v[whole:]))
        return functools.reduce(merge, found)

    def _whole_tiles(self, q, k, v):
        r, n = self.rung, len(k)
        blocks = len(q) // r.bm
        splits = max(2, -(-n // KEYS_A_BLOCK), -(-self.places // blocks))
        splits = min(splits, n // r.bn, 64)
        space = self.backend.full((splits * n * (D + 2),), np.nan)
        self._launch("attentionOnline", (blocks, splits, 1), (r.threads,),
                     (q, k, v, space, n, D**-0.5), r.shared)
        return fold(space, splits, n, len(q), r.unit)


def fold(space, splits, n, rows, unit):
    """One part of the first ``rows`` rows from the workspace that ``splits`` blocks have left.

    There m counts powers of 2^unit. The natural m that replaces it is rounded; a part may have any
    reference, so weights are taken against the rounded one, in float64, and nothing is lost.
    """
    o = space[: splits * n * D].reshape(splits, n, D)[:, :rows]
    ml = space[splits * n * D :].reshape(splits, n, 2)[:, :rows]
    powers = ml[..., 0].astype(np.float64) * unit
    m = (powers.max(axis=0) / rungs.LOG2E).astype(np.float32)
    w = np.exp2(powers - m.astype(np.float64) * rungs.LOG2E).astype(np.float32)
    return m, (w * ml[..., 1]).sum(axis=0), (w[..., None] * o).sum(axis=0)
