"""Both ways for any Problem, ready to run: the kernels of ``kernels/masked.cu``, edited or not."""

import numpy as np

from ..errors import ArgumentError
from ..text.edits import current
from .paths import BLK, THREADS, Plan

NAME = "masked"
PATHS = ("materialised", "online")
BN = 32  # keys of an online tile
WIDTHS = (32, 64, 128)  # what the online kernel is compiled for


def width_of(d):
    """The tile width for a head of d columns; raises ArgumentError for a wider one."""
    if d > WIDTHS[-1]:
        raise ArgumentError(f"d = {d}: a lane owns at most 4 output columns, so d is at most "
                            f"{WIDTHS[-1]}; split the columns of V")
    return next(width for width in WIDTHS if d <= width)


def plan(backend, path, case, text=None):
    """A Plan of 'materialised' or 'online' for a Case of any Problem with d up to 128.

    text: a Source in place of masked.cu as edited in this session. The online Plan has the
    log-sum-exp, (batch heads, queries) float32, as the last of its scratch.
    """
    if path not in PATHS:
        raise ArgumentError(f"no path is called {path!r}; there are: {', '.join(PATHS)}")
    p, width = case.problem, width_of(case.problem.d)
    program = backend.compile(text or current(NAME), {"WIDTH": width})
    q, k, v = (backend.put(x) for x in (case.q, case.k, case.v))
    lengths = backend.put(np.array(p.key_lengths or [p.keys] * p.batch, np.int32))
    o, total = backend.full(p.q_shape, np.nan), p.batch * p.heads
    heads = p.heads, p.kv_heads, int(p.causal)
    if path == "online":
        lse = backend.full((total, p.queries), np.nan)
        steps = [("attentionMasked", (-(-p.queries // (2048 // width)), total), (THREADS,),
                  (q, k, v, lengths, o, lse, p.queries, p.keys, p.d, *heads, p.scale))]
        return Plan(program, steps, o, {"q": q, "k": k, "v": v}, [lse])
    s, weights = (backend.full((total, p.queries, p.keys), np.nan) for _ in range(2))
    sums = backend.full((total, p.queries), np.nan)
    rows, square = -(-p.queries // BLK), (BLK, BLK)
    steps = [
        ("scoresMasked", (-(-p.keys // BLK), rows, total), square,
         (q, k, lengths, s, p.queries, p.keys, p.d, *heads, p.scale)),
        ("softmaxMasked", (p.queries, total), (THREADS,), (s, weights, sums, p.queries, p.keys)),
        ("valuesMasked", (-(-p.d // BLK), rows, total), square,
         (weights, v, sums, lengths, o, p.queries, p.keys, p.d, *heads)),
    ]
    return Plan(program, steps, o, {"q": q, "k": k, "v": v}, [s, weights, sums])


def index(backend, head, rows, row, width, column, text=None):
    """What index() of masked.cu gives for one number of a tensor (heads, rows, width).

    It runs alone, in one thread: the tensor need not exist.
    """
    program = backend.compile(text or current(NAME), {"WIDTH": 64})
    words = backend.full((2,), 2**32 - 1, np.uint32)
    program.launch("indexOf", (1,), (1,), (words, head, rows, row, width, column))
    low, high = (int(x) for x in backend.get(words))
    at = high << 32 | low
    return at - (1 << 64) if at >> 63 else at  # as an int that wrapped was widened


def tiles(problem, width=None):
    """(tiles of keys that the online kernel walks, tiles of all keys), a head, all its blocks."""
    p, bm = problem, 2048 // (width or width_of(problem.d))
    last = np.minimum(np.arange(0, p.queries, bm) + bm, p.queries) - 1
    walked = sum(int(-(-seen // BN)) for entry in p.seen() for seen in entry[last])
    return walked, p.batch * len(last) * -(-p.keys // BN)
