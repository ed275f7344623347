"""Attention for any Problem, ready to run: keys split into FP16 halves, the kernel, its merge.

Kernels of ``kernels/use/``; on plain problems of the ladder its rungs are as fast or faster, and
``attention`` takes those.
"""

from dataclasses import dataclass

import numpy as np

from ..errors import ArgumentError
from ..machine import gpus
from ..problem import cases
from ..problem.problem import Problem
from ..text.edits import current
from .ladder import Programs
from .paths import Plan
from .rungs import Rung
from .splits import split

DECODE, MERGE = "use/decode", "use/merge"
BN = 64  # keys of a tile
KEYS_THREADS, DECODE_THREADS, MERGE_THREADS = 256, 256, 128
FEW = 8  # query rows of all heads that share K and V: then reading counts, and no tile is made
WIDEST = 128
MOST_HEADS = 65535  # of all batch entries: they are the last dimension of a grid


@dataclass(frozen=True)
class Form:
    """One way to compute it: its sources, and a block's rows, threads and shared memory for d."""

    attend: str
    keys: str
    split: str  # the kernel of ``keys``
    bm: int
    threads: int
    shared: int
    together: tuple  # as a Rung's
    chained: bool = False


def form(backend, d):
    """The Form for a device and a width; with d above 64 WIDTH is 128."""
    wide = 64 if d <= 64 else WIDEST
    tile = 4 * BN * wide * 2  # bytes: hi and lo of K and V
    if backend.mark == "live" and gpus.of(backend)[0].arch == "sm_90":
        stages, q = (6, 0) if wide == 64 else (2, 2 * 2 * 64 * wide * 2)
        return Form("use/hopper", "use/images", "splitImages", 128, 384,
                    q + stages * (tile + 16), (0.2,), chained=True)
    return Form("use/attend", "use/keys", "splitKeys", 128 if wide == 64 else 64, 128, 2 * tile,
                (0.45, 0.71) if wide == 64 else (0.45,))


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


def parts(problem, sms, kind):
    """Into how many parts the keys go: by the rule of ``split``, for a Form."""
    p = problem
    kernel = Rung(0, kind.attend, "", kind.bm, BN, kind.threads, together=kind.together,
                  merging=2.8)
    keys = max(int(p.seen().max()), 1)
    tiles = Problem(p.queries, -(-keys // BN) * BN, heads=p.batch * p.heads)
    return split(kernel, tiles, sms, len(kind.together)).splits


def plan(backend, problem, q, k, v, lse=False, splits=None):
    """A UsePlan. q, k, v: backend arrays, float32, C-contiguous, of the Problem's shapes.

    ``lse``: also the natural log-sum-exp of each row, (batch, heads, queries) float32. ``splits``:
    parts of the keys, by the rule of ``split`` where it is None.
    Raises ArgumentError for a Problem, or a number of parts, that the kernels cannot work with.
    """
    p = problem
    refuse(p)
    wide, kind = 64 if p.d <= 64 else WIDEST, form(backend, p.d)
    gpu, sms = gpus.of(backend)
    if p.queries * p.heads // p.kv_heads <= FEW:
        return _few(backend, p, q, k, v, lse, splits, sms)
    if kind.shared > min(gpu.shared_bytes - gpu.shared_reserved, 227 * 1024):
        raise ArgumentError(f"d = {p.d}: above 64 a block needs {kind.shared:,} bytes of shared "
                            f"memory, and {gpu.arch} has {gpu.shared_bytes:,}; this GPU takes d up "
                            "to 64")
    total, own = p.batch * p.heads, p.batch * p.kv_heads
    tiles = -(-p.keys // BN)
    splits = splits or parts(p, sms, kind)
    if not 1 <= splits <= tiles:
        raise ArgumentError(f"splits = {splits}: {p.keys} keys are {tiles} tiles of {BN}, and each "
                            "part needs at least one")
    compiled = {name: backend.compile(current(name), {"WIDTH": wide} if name != MERGE else None)
                for name in (kind.attend, kind.keys, *((MERGE,) if splits > 1 else ()))}
    lengths = None if p.key_lengths is None else backend.put(np.array(p.key_lengths, np.int32))
    halves = backend.full((own * tiles, 2, BN * wide), 2**32 - 1, np.uint32)
    scales = backend.full((own * tiles, 2), np.nan)
    bad = backend.full((own * tiles, 2), 2**32 - 1, np.uint32)
    o, logs, to = outputs(backend, p, splits, lse)
    chain = (True,) if kind.chained else ()
    steps = [
        (kind.split, (tiles, 2, own), (KEYS_THREADS,),
         (k, v, lengths, halves, scales, bad, p.keys, p.d, p.kv_heads)),
        ("attend", (total, splits, -(-p.queries // kind.bm)), (kind.threads,),
         (q, v, halves, scales, bad, lengths, to, logs if splits == 1 else None, p.queries, p.keys,
          p.d, p.heads, p.heads // p.kv_heads, int(p.causal), p.scale), kind.shared, *chain),
    ]
    if splits > 1:
        steps.append(merge_step(p, to, o, logs, splits, chain))
    scratch = [x for x in (halves, scales, bad, logs, to) if x is not None and x is not o]
    return UsePlan(Programs(*compiled.values()), steps, o, {"q": q, "k": k, "v": v}, scratch, logs,
                   splits)


# Small ones that meet every kernel: parts, ends, a mask, padding, shared heads, d above 64.
SMALL = (Problem(70, 130, causal=True, heads=2, kv_heads=1), Problem(1, 130, heads=2),
         Problem(33, 65, batch=2, key_lengths=(0, 50), d=120))


def launch_all(backend):
    """Launch every kernel for any Problem once on small ones: what the profilers watch."""
    for p in SMALL:
        case = cases.make("random", p)
        plan(backend, p, *(backend.put(x) for x in (case.q, case.k, case.v)), lse=True,
             splits=min(2, p.queries)).run()


def outputs(backend, p, splits, lse):
    """(the output, log-sum-exps or None, where parts go: the output itself with one part)."""
    o = backend.full(p.q_shape, np.nan)
    logs = backend.full((p.batch, p.heads, p.queries), np.nan) if lse else None
    rows = p.batch * p.heads * splits * p.queries
    return o, logs, o if splits == 1 else backend.full((rows * (p.d + 2),), np.nan)


def merge_step(p, parts, o, logs, splits, chain=()):
    """The launch that merges parts."""
    grid = -(-p.queries * p.d // 4 // MERGE_THREADS), p.batch * p.heads
    return ("mergeParts", grid, (MERGE_THREADS,), (parts, o, logs, p.queries, p.d, splits), 0,
            *chain)


def _few(backend, p, q, k, v, lse, splits, sms):
    """The plan for a few query rows: keys in as many parts as keep every SM reading."""
    total = p.batch * p.kv_heads
    most = -(-p.keys // BN)
    splits = splits or max(1, min(most, -(-4 * sms // total)))
    if not 1 <= splits <= most:
        raise ArgumentError(f"splits = {splits}: {p.keys} keys are {most} times {BN}, and each "
                            "part needs as many")
    rows = next(r for r in (1, 2, 4, FEW) if r * p.kv_heads >= p.queries * p.heads)
    defines = {"WIDTH": 64 if p.d <= 64 else WIDEST, "ROWS": rows}
    programs = [backend.compile(current(DECODE), defines)]
    if splits > 1:
        programs.append(backend.compile(current(MERGE)))
    lengths = None if p.key_lengths is None else backend.put(np.array(p.key_lengths, np.int32))
    o, logs, to = outputs(backend, p, splits, lse)
    steps = [("decode", (total, splits), (DECODE_THREADS,),
              (q, k, v, lengths, to, logs if splits == 1 else None, p.queries, p.keys, p.d,
               p.kv_heads, p.heads // p.kv_heads, int(p.causal), p.scale))]
    if splits > 1:
        steps.append(merge_step(p, to, o, logs, splits))
    scratch = [x for x in (logs, to) if x is not None and x is not o]
    return UsePlan(Programs(*programs), steps, o, {"q": q, "k": k, "v": v}, scratch, logs, splits)
