"""Attention for any Problem, ready to run: keys split into FP16 halves, the kernel, its merge.

Kernels of ``kernels/use/``; on plain problems of the ladder its rungs are as fast or faster, and
``attention`` takes those.
"""

from dataclasses import dataclass

import numpy as np

from ..errors import ArgumentError
from ..machine import gpus
from ..problem.problem import Problem
from ..text.edits import current
from .ladder import Programs
from .paths import Plan
from .rungs import Rung
from .splits import split

ATTEND, KEYS, MERGE = "use/attend", "use/keys", "use/merge"
BN = 64  # keys of a tile
WARPS = 4
KEYS_THREADS, MERGE_THREADS = 256, 128
WIDEST = 128
MOST_HEADS = 65535  # of all batch entries: the last dimension of a grid


@dataclass
class UsePlan(Plan):
    """A Problem ready to run. ``lse``: the array of log-sum-exps, or None."""

    lse: object = None
    splits: int = 1


def refuse(problem):
    """Raise ArgumentError for a Problem that these kernels do not do: the field and the remedy."""
    p = problem
    if p.d % 8 or p.d > WIDEST:
        raise ArgumentError(f"d = {p.d}: needs a multiple of 8 up to {WIDEST}; fill Q, K and V up "
                            "with columns of zeros, and give scale = 1/sqrt(d) of before")
    if p.batch * p.heads > MOST_HEADS:
        raise ArgumentError(f"batch = {p.batch}, heads = {p.heads}: one launch takes "
                            f"{MOST_HEADS:,} heads of all batch entries; give some of the batch at "
                            "a time")


def rows_of(d):
    """Query rows of a block: fewer where a row is wide, since its sums must find registers."""
    return WARPS * (16 if d > 64 else 32)


def parts(problem, sms, resident=2):
    """Into how many parts the keys go: by the rule of ``split``."""
    p, bm = problem, rows_of(problem.d)
    kernel = Rung(0, ATTEND, "", bm, BN, 32 * WARPS, together=(0.45, 0.71)[:resident])
    keys = max(int(p.seen().max()), 1)
    tiles = Problem(p.queries, -(-keys // BN) * BN, heads=p.batch * p.heads)
    return split(kernel, tiles, sms, resident).splits


def plan(backend, problem, q, k, v, lse=False, splits=None):
    """A UsePlan. q, k, v: backend arrays, float32, C-contiguous, of the Problem's shapes.

    ``lse``: also the natural log-sum-exp of each row, (batch, heads, queries) float32. ``splits``:
    parts of the keys, by the rule of ``split`` where it is None.
    Raises ArgumentError for a Problem, or a number of parts, that the kernels cannot work with.
    """
    p = problem
    refuse(p)
    wide = 64 if p.d <= 64 else WIDEST
    gpu, sms = gpus.of(backend)
    shared = 2 * 2 * BN * wide * 4
    if shared > min(gpu.shared_bytes - gpu.shared_reserved, 227 * 1024):
        raise ArgumentError(f"d = {p.d}: above 64 a block needs {shared:,} bytes of shared memory, "
                            f"and {gpu.arch} has {gpu.shared_bytes:,}; this GPU takes d up to 64")
    total, own = p.batch * p.heads, p.batch * p.kv_heads
    tiles = -(-p.keys // BN)
    splits = splits or parts(p, sms, 2 if wide == 64 and gpu.shared_bytes > 2 * shared else 1)
    if not 1 <= splits <= tiles:
        raise ArgumentError(f"splits = {splits}: {p.keys} keys are {tiles} tiles of {BN}, and each "
                            "part needs at least one")
    compiled = {name: backend.compile(current(name), {"WIDTH": wide} if name != MERGE else None)
                for name in (ATTEND, KEYS, *((MERGE,) if splits > 1 else ()))}
    lengths = None if p.key_lengths is None else backend.put(np.array(p.key_lengths, np.int32))
    halves = backend.full((own * tiles, 2, BN * wide), 2**32 - 1, np.uint32)
    scales = backend.full((own * tiles, 2), np.nan)
    bad = backend.full((own * tiles, 2), 2**32 - 1, np.uint32)
    o = backend.full(p.q_shape, np.nan)
    logs = backend.full((p.batch, p.heads, p.queries), np.nan) if lse else None
    to, scratch = o, [halves, scales, bad, *([logs] if lse else [])]
    if splits > 1:
        to = backend.full((total * splits * p.queries * (p.d + 2),), np.nan)
        scratch.append(to)
    steps = [
        ("splitKeys", (tiles, 2, own), (KEYS_THREADS,),
         (k, v, lengths, halves, scales, bad, p.keys, p.d, p.kv_heads)),
        ("attend", (-(-p.queries // rows_of(p.d)), splits, total), (32 * WARPS,),
         (q, v, halves, scales, bad, lengths, to, logs if splits == 1 else None, p.queries, p.keys,
          p.d, p.heads, p.heads // p.kv_heads, int(p.causal), p.scale), shared),
    ]
    if splits > 1:
        steps.append(("mergeParts", (-(-p.queries * p.d // 4 // MERGE_THREADS), total),
                      (MERGE_THREADS,), (to, o, logs, p.queries, p.d, splits)))
    return UsePlan(Programs(*compiled.values()), steps, o, {"q": q, "k": k, "v": v}, scratch, logs,
                   splits)
