"""Launch geometry: what each path checks, allocates and launches."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..errors import ArgumentError, InputError
from ..problem import traffic
from ..problem.problem import D, Handles, of
from ..text.edits import current
from .check import check, check_order

BLK = 16  # tile edge of the matmuls
BM = 64  # query rows of an online block
THREADS = 256  # block of softmaxRows and of attentionOnline


@dataclass(frozen=True)
class Geometry:
    """How a kernel is launched, and the bytes that its loads and stores ask for."""

    path: str
    passed: str  # its arguments in their order; * before one that it writes
    block: tuple
    grid: str  # as a reader reads it; the plans below compute it
    tile: str
    requested: Callable  # N -> (loaded, stored), re-reads included, whoever answers them

    @property
    def threads(self):
        return math.prod(self.block)


KERNELS = {
    "scoresQKt": Geometry("materialised", "q k *s n scale", (BLK, BLK), "(N/16, N/16)",
                          "16 queries x 16 keys, 16 of d a step",
                          lambda n: (32 * n * n, 4 * n * n)),
    "softmaxRows": Geometry("materialised", "s *p *rowSum n", (THREADS,), "N", "one row",
                            lambda n: (8 * n * n, 4 * n * n + 4 * n)),
    # Each of the N d threads reads its row's sum: 4 N d bytes.
    "weightedV": Geometry("materialised", "p v rowSum *o n", (BLK, BLK), "(4, N/16)",
                          "16 queries x 16 columns, 16 keys a step",
                          lambda n: (32 * n * n + 4 * n * D, 4 * n * D)),
    # K and V once for each of the N/64 blocks.
    "attentionOnline": Geometry("online", "q k v *o n scale", (THREADS,), "N/64",
                                "64 queries x 32 keys; 8 queries a warp",
                                lambda n: (4 * n * D + 8 * n * D * (n // BM), 4 * n * D)),
}


def kernels_of(path):
    """Names of a path's kernels, in the order of their launches."""
    return tuple(name for name, kernel in KERNELS.items() if kernel.path == path)


def requested(problem):
    """Bytes that the loads and stores of each kernel ask for: ``{kernel: (loaded, stored)}``."""
    return {name: kernel.requested(of(problem).n) for name, kernel in KERNELS.items()}


def requested_by_path(problem):
    """Requested bytes, loads and stores together: ``{'materialised': .., 'online': ..}``."""
    found = requested(problem)
    return {path: sum(sum(found[kernel]) for kernel in kernels_of(path)) for path in PATHS}


HANDLES = Handles("the lesson's kernel", more_heads="give one head at a time, or use a rung from 3 "
                  "on")


@dataclass
class Plan:
    """A path ready to run: launches in order, the inputs they read and the output they fill."""

    program: object
    steps: list  # (kernel, grid, block, args)
    output: object
    inputs: dict
    scratch: list = field(default_factory=list)

    def __post_init__(self):
        known = getattr(self.program, "kernels", {})  # a stand-in for a program may have none
        for name, *_ in self.steps:
            if name in KERNELS and name in known:
                check_order(known[name], KERNELS[name].passed)

    def spoil(self):
        """Fill every buffer that the launches write with NaN: what is not written then shows."""
        for array in (self.output, *self.scratch):
            # All bits set are NaN, too, where a word holds two FP16 numbers.
            array.fill(np.nan if array.dtype == np.float32 else 2**32 - 1)

    def run(self):
        """Fill outputs with NaN, launch, wait, and return the output as a NumPy array."""
        self.spoil()
        self.counts = {step[0]: self.program.launch(*step) for step in self.steps}
        return self.program.backend.get(self.output)

    def enqueue(self):
        """Launch without waiting: for timing on a GPU."""
        for step in self.steps:
            self.program.enqueue(*step)


def check_memory(backend, path, problem):
    """Refuse a problem whose buffers do not fit, before anything is allocated."""
    needed, free = traffic.working_memory(problem)[path], backend.free_bytes()
    if needed > free:
        hint = ("the online path needs "
                f"{traffic.working_memory(problem)['online'] / traffic.MIB:,.0f} MiB"
                if path == "materialised" else "choose a smaller N")
        raise ArgumentError(f"n = {problem.n}: the {path} path needs "
                            f"{needed / traffic.MIB:,.0f} MiB, "
                            f"{free / traffic.MIB:,.0f} MiB are free; {hint}")


def materialised(program, q, k, v):
    """Plan of the materialised path. q, k, v: backend arrays (N, 64), float32, C-contiguous."""
    backend = program.backend
    problem = check(backend, q, k, v, HANDLES)
    check_memory(backend, "materialised", problem)
    n, scale = problem.n, problem.scale
    s, p = backend.full((n, n), np.nan), backend.full((n, n), np.nan)
    row_sum, o = backend.full((n,), np.nan), backend.full((n, D), np.nan)
    steps = [
        ("scoresQKt", (n // BLK, n // BLK), KERNELS["scoresQKt"].block, (q, k, s, n, scale)),
        ("softmaxRows", (n,), KERNELS["softmaxRows"].block, (s, p, row_sum, n)),
        ("weightedV", (D // BLK, n // BLK), KERNELS["weightedV"].block, (p, v, row_sum, o, n)),
    ]
    return Plan(program, steps, o, {"q": q, "k": k, "v": v}, [s, p, row_sum])


def online(program, q, k, v):
    """Plan of the online path. q, k, v: backend arrays (N, 64), float32, C-contiguous."""
    backend = program.backend
    problem = check(backend, q, k, v, HANDLES)
    check_memory(backend, "online", problem)
    n = problem.n
    o = backend.full((n, D), np.nan)
    steps = [("attentionOnline", (n // BM,), KERNELS["attentionOnline"].block,
              (q, k, v, o, n, problem.scale))]
    return Plan(program, steps, o, {"q": q, "k": k, "v": v})


PATHS = {"materialised": materialised, "online": online}


def plan(backend, path, case, text=None):
    """A Plan for ``path`` on ``case`` (a Case).

    ``text``: a Source for the path's kernels; the lesson's own, as edited in this session,
    where it is None.
    """
    if path not in PATHS:
        raise ArgumentError(f"no path is called {path!r}; there are: {', '.join(PATHS)}")
    HANDLES.refuse(case.problem)
    program = backend.compile(text or current(path))
    return PATHS[path](program, *(backend.put(x) for x in (case.q, case.k, case.v)))


def run(backend, path, case, text=None):
    """Run ``path`` on ``case`` once. Returns (output (N, 64) float32, Plan).

    Raises InputError if a kernel changed Q, K or V.
    """
    planned = plan(backend, path, case, text)
    output = planned.run()
    for name, array in planned.inputs.items():
        if not np.array_equal(backend.get(array), getattr(case, name), equal_nan=True):
            raise InputError(f"{path}, {case.name}, {case.problem}: "
                             f"a kernel changed its input {name}")
    return output, planned
