"""A rung, ready to run: what it checks, allocates and launches.

If the keys are split, ``o`` is a workspace, and ``mergeSplits`` of ``merge.cu`` makes the output
from it. Rungs on FP16 halves take K and V as ``splitTiles`` of ``halves.cu`` writes them, or
``splitImages`` of ``images.cu``.
"""

from dataclasses import dataclass, field

import numpy as np

from ..errors import ArgumentError
from ..machine import gpus
from ..problem import cases, traffic
from ..problem.problem import D, Handles
from ..text.edits import current
from . import paths
from .check import check
from .rungs import (
    FASTEST,
    FINAL,
    FIRST_SPLIT,
    HALVES,
    IMAGES,
    MERGE,
    RUNGS,
    Rung,
    blocks_on,
    missing,
    rung,
    runnable,
)
from .splits import choose, split

HANDLES = Handles("the ladder", heads=True)  # each rung says what of it is not its own
MERGE_THREADS = 128
MERGE_ROWS = MERGE_THREADS // (D // 4)  # a thread has 4 of a row's 64 columns
PART_BYTES = 4 * (D + 2)  # what a split leaves of a row: o, m and l
HALVES_BN = 64  # keys of a tile of halves.cu and images.cu
HALVES_THREADS = 256


CHOSEN = {"best": FINAL, "fastest": FASTEST}


class Programs:
    """Compiled rung and merge, launched by the name of the kernel."""

    def __init__(self, *programs):
        self.backend, self._first = programs[0].backend, programs[0]
        self._of = {name: p for p in programs for name in p.kernels}
        self.kernels = {name: p.kernels[name] for name, p in self._of.items()}

    def launch(self, kernel, *rest):  # the first program says that it has no such kernel
        return self._of.get(kernel, self._first).launch(kernel, *rest)

    def trace(self, kernel, *rest, **which):
        return self._of.get(kernel, self._first).trace(kernel, *rest, **which)

    def enqueue(self, kernel, *rest):
        self._of.get(kernel, self._first).enqueue(kernel, *rest)


@dataclass
class LadderPlan(paths.Plan):
    """A rung ready to run. ``splits`` parts of the keys; ``bytes`` of device memory in all."""

    rung: Rung = None
    splits: int = 1
    bytes: int = 0
    why: str = field(default="")


def plan(backend, which, q, k, v, splits=None, sources=None):
    """A LadderPlan of a rung, or of a final kernel that is chosen for this device.

    which: a rung; 'best' of those on float32 units; 'fastest' of all that are inside the gate.

    q, k, v: backend arrays (N, 64) or (heads, N, 64), float32, C-contiguous; N a multiple of 64.
    ``splits``: parts of the keys; by the rule of ``split`` where it is None.
    ``sources``: ``{name: Source}`` to compile in place of the lesson's own.
    Raises ArgumentError for inputs, a split or a device that the kernel cannot work with.
    """
    p = check(backend, q, k, v, HANDLES)
    n, heads = p.n, p.heads
    gpu, sms = gpus.of(backend)
    if which in CHOSEN:
        choice = choose(p, gpu, sms, among=runnable(backend, CHOSEN[which]))
        r, why = choice.rung, choice.why
    else:
        r, why = rung(which), ""
    r.handles.refuse(p)
    if r.images and (lacks := missing(r, backend)):
        raise ArgumentError(lacks)
    if splits is None:
        splits = split(r, p, sms, max(blocks_on(r, gpu), 1)).splits
    if splits != 1 and not r.splits:
        raise ArgumentError(f"splits = {splits}: rung {r.number} does not split keys; "
                            f"rungs {FIRST_SPLIT} and later do")
    if not 1 <= splits <= n // r.bn:
        raise ArgumentError(f"splits = {splits}: N = {n} has {n // r.bn} tiles of {r.bn} keys, "
                            "and each part needs at least one")
    needed = traffic.working_memory(p)["online"]
    needed += heads * n * splits * PART_BYTES if splits > 1 else 0
    output = 4 * heads * n * D + (heads * n * splits * PART_BYTES if splits > 1 else 0)
    tiles = heads * n // HALVES_BN if r.halves or r.images else 0
    prepared = tiles * (2 * 4 * HALVES_BN * D + 8)  # hi and lo of K and V, and two scales
    output, needed = output + prepared, needed + prepared
    if output > backend.free_bytes():
        raise ArgumentError(f"n = {n}: rung {r.number} needs {output / traffic.MIB:,.0f} MiB more, "
                            f"{backend.free_bytes() / traffic.MIB:,.0f} MiB are free; choose a "
                            "smaller N, or fewer splits")

    def compiled(name):
        return backend.compile((sources or {}).get(name) or current(name))

    o = backend.full((heads, n, D) if q.ndim == 3 else (n, D), np.nan)
    grid = (-(-n // r.bm), splits, heads) if r.heads else (n // r.bm,)
    inputs = {"q": q, "k": k, "v": v}
    programs, steps, outputs, kv = [compiled(r.name)], [], [], (k, v)
    if tiles:
        programs.append(compiled(IMAGES if r.images else HALVES))
        kv = (backend.full((tiles, 2, HALVES_BN * D), 2**32 - 1, np.uint32),  # NaN in every half
              backend.full((tiles, 2), np.nan))
        outputs += kv
        steps.append(("splitImages" if r.images else "splitTiles", (n // HALVES_BN, 2, heads),
                      (HALVES_THREADS,), (k, v, *kv, n)))
    to = o
    if splits > 1:
        to = backend.full((heads * n * splits * (D + 2),), np.nan)
        outputs.append(to)
    chain = (True,) if r.chained else ()
    steps.append(("attentionOnline", grid, (r.threads,), (q, *kv, to, n, p.scale), r.shared,
                  *chain))
    if splits > 1:
        programs.append(compiled(MERGE))
        steps.append(("mergeSplits", (n // MERGE_ROWS, heads), (MERGE_THREADS,),
                      (to, o, n, splits, r.unit), 0, *chain))
    return LadderPlan(Programs(*programs), steps, o, inputs, outputs, r, splits, needed, why)


def run(backend, which, case, splits=None):
    """Run a rung on a Case once. Returns (output of Q's shape, float32, LadderPlan)."""
    HANDLES.refuse(case.problem)
    planned = plan(backend, which, *(backend.put(x) for x in (case.q, case.k, case.v)), splits)
    return planned.run(), planned


def launch_all(backend, n=128, which=RUNGS):
    """Launch those of some rungs that run here on ``periodic``: what the profilers watch."""
    case = cases.make("periodic", n)
    for r in runnable(backend, which):
        run(backend, r, case, min(2, n // r.bn) if r.splits and n <= 256 else None)
