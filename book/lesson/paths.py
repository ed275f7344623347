"""Launch geometry: what each path checks, allocates and launches."""

from dataclasses import dataclass, field

import numpy as np

from . import traffic
from .cases import check_n
from .edits import current
from .errors import ArgumentError, InputError

D = 64
BLK = 16  # tile edge of the matmuls
BM = 64  # query rows of an online block
THREADS = 256  # block of softmaxRows and of attentionOnline

# Threads of each kernel's block: what occupancy needs beside the compiler's facts.
BLOCK = {"scoresQKt": (BLK, BLK), "softmaxRows": (THREADS,), "weightedV": (BLK, BLK),
         "attentionOnline": (THREADS,)}

HEAD_WIDTH = "d must be 64: a lane owns 2 of the 64 output columns"


@dataclass
class Plan:
    """A path ready to run: launches in order, the inputs they read and the output they fill."""

    program: object
    steps: list  # (kernel, grid, block, args)
    output: object
    inputs: dict
    scratch: list = field(default_factory=list)

    def run(self):
        """Fill outputs with NaN, launch, wait, and return the output as a NumPy array."""
        for array in (self.output, *self.scratch):
            array.fill(np.nan)
        self.counts = {step[0]: self.program.launch(*step) for step in self.steps}
        return self.program.backend.get(self.output)

    def enqueue(self):
        """Launch without waiting: for timing on a GPU."""
        for step in self.steps:
            self.program.enqueue(*step)


def check(backend, q, k, v):
    """Refuse inputs that the kernels would read as something else. Returns N."""
    for name, array in (("q", q), ("k", k), ("v", v)):
        if not backend.owns(array):
            raise ArgumentError(f"{name} is {type(array).__module__}.{type(array).__name__}, "
                                f"needs {backend.array_name}: use backend.put({name})")
        if array.dtype != np.float32:
            raise ArgumentError(f"{name} has dtype {array.dtype}, needs float32: "
                                f"use {name}.astype('float32')")
        if array.ndim != 2:
            raise ArgumentError(f"{name} has shape {array.shape}, needs (N, 64)")
        if array.shape[1] != D:
            raise ArgumentError(f"{name} has shape {array.shape}, needs (N, 64): {HEAD_WIDTH}")
        if array.shape != q.shape:
            raise ArgumentError(f"{name} has shape {array.shape}, q has {q.shape}: "
                                "they must be equal")
        if not array.flags.c_contiguous:
            raise ArgumentError(f"{name} is a view that is not C-contiguous (strides "
                                f"{array.strides}); a kernel would read its base: copy it with "
                                f"{name}.copy()")
    check_n(len(q))
    return len(q)


def check_memory(backend, path, n):
    """Refuse an N whose buffers do not fit, before anything is allocated."""
    needed, free = traffic.working_memory(n)[path], backend.free_bytes()
    if needed > free:
        hint = ("the online path needs "
                f"{traffic.working_memory(n)['online'] / traffic.MIB:,.0f} MiB"
                if path == "materialised" else "choose a smaller N")
        raise ArgumentError(f"n = {n}: the {path} path needs {needed / traffic.MIB:,.0f} MiB, "
                            f"{free / traffic.MIB:,.0f} MiB are free; {hint}")


def materialised(program, q, k, v):
    """Plan of the materialised path. q, k, v: backend arrays (N, 64), float32, C-contiguous."""
    backend = program.backend
    n = check(backend, q, k, v)
    check_memory(backend, "materialised", n)
    s, p = backend.full((n, n), np.nan), backend.full((n, n), np.nan)
    row_sum, o = backend.full((n,), np.nan), backend.full((n, D), np.nan)
    steps = [
        ("scoresQKt", (n // BLK, n // BLK), BLOCK["scoresQKt"], (q, k, s, n, D**-0.5)),
        ("softmaxRows", (n,), BLOCK["softmaxRows"], (s, p, row_sum, n)),
        ("weightedV", (D // BLK, n // BLK), BLOCK["weightedV"], (p, v, row_sum, o, n)),
    ]
    return Plan(program, steps, o, {"q": q, "k": k, "v": v}, [s, p, row_sum])


def online(program, q, k, v):
    """Plan of the online path. q, k, v: backend arrays (N, 64), float32, C-contiguous."""
    backend = program.backend
    n = check(backend, q, k, v)
    check_memory(backend, "online", n)
    o = backend.full((n, D), np.nan)
    steps = [("attentionOnline", (n // BM,), BLOCK["attentionOnline"], (q, k, v, o, n, D**-0.5))]
    return Plan(program, steps, o, {"q": q, "k": k, "v": v})


PATHS = {"materialised": materialised, "online": online}


def plan(backend, path, case, text=None):
    """A Plan for ``path`` on ``case`` (a Case).

    ``text``: a Source for the path's kernels; the lesson's own, as edited in this session,
    where it is None.
    """
    if path not in PATHS:
        raise ArgumentError(f"no path is called {path!r}; there are: {', '.join(PATHS)}")
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
            raise InputError(f"{path}, {case.name}, N = {case.n}: "
                             f"a kernel changed its input {name}")
    return output, planned
