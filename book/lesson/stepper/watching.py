"""The verb: which kernel, which block, which warp, and what the emulator saw of them."""

import math

import numpy as np

from ..errors import ArgumentError
from ..launch import ladder, paths, rungs
from ..machine.emulator import HostBackend, available
from ..machine.emulator import trace as traces
from ..measure.gates_and_times import reference
from ..problem.cases import make
from ..problem.gate import judge
from ..tables import Sentence
from ..text.edits import current, note
from .recording import record


def watch(kernel="scoresQKt", block=0, warp=0, case="periodic", n=128):
    """Watch one warp of one block: what each of its 32 lanes really did, step by step.

    kernel: of the two paths ('scoresQKt', 'softmaxRows', 'weightedV', 'attentionOnline'), or a rung
    of the ladder, its number or its name. block: a number, or (x, y) as CUDA counts. warp: of the
    block. case, n: the inputs, as ``gate`` takes them. The kernel runs emulated, with this
    session's edits. A kernel that fails is watched up to there.

    Returns a widget. Where there is no C++ compiler nothing runs, and a sentence says so. Raises
    ArgumentError for a kernel, block, warp or case that does not exist, CompileError for an edit
    that does not compile, LaunchError where a kernel fails that makes what this one reads.
    """
    r, path = _which(kernel)
    inputs = make(case, n)
    ready, reason = available()
    if not ready:
        return Sentence(f"Nothing to watch: no kernel ran here, {reason}.", "computed")
    from .widget import Stepper

    emulator = HostBackend(orders=("ascending",), whole=True)
    if path:
        planned = paths.plan(emulator, path, inputs)
        name, source = kernel, current(path)
    else:
        planned = ladder.plan(emulator, r, *(emulator.put(x) for x in (inputs.q, inputs.k,
                                                                       inputs.v)), 1)
        name, source = "attentionOnline", current(r.name)
    planned.spoil()
    for step in planned.steps:
        if step[0] == name:
            break
        planned.program.launch(*step)
    grid, threads = step[1], math.prod(step[2])
    trace = planned.program.trace(*step, at=_number(name, grid, block), warp=warp)
    data = record(trace, source)
    data |= {"kernel": name, "title": name if path else f"rung {r.number}, {r.idea}",
             "warp": int(warp), "block": _place(grid, block), "threads": threads,
             "case": inputs.name, "n": n, "end": _end(trace, planned, inputs, emulator),
             "note": "; ".join(filter(None, (emulator.describe(), note(path or r.name))))}
    return Stepper(data)


def _which(kernel):
    """(Rung, None) or (None, path) of what a reader asks for."""
    if isinstance(kernel, str) and kernel in paths.KERNELS:
        return None, paths.KERNELS[kernel].path
    try:
        return rungs.rung(kernel), None
    except ArgumentError:
        raise ArgumentError(f"no kernel is called {kernel!r}; there are: "
                            f"{', '.join(paths.KERNELS)}, and the rungs 1 to "
                            f"{rungs.TENSOR[-1].number}") from None


def _whole(x):
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def _number(name, grid, block):
    """The number of a block that is given as a number or as (x, y, z)."""
    if _whole(block):
        return int(block)  # the emulator refuses one that is not there
    sizes = (*grid, 1, 1)[:3]
    if (isinstance(block, (tuple, list)) and 1 <= len(block) <= 3 and all(map(_whole, block))
            and all(0 <= b < size for b, size in zip(block, sizes, strict=False))):
        x, y, z = (*block, 0, 0)[:3]
        return int(x + sizes[0] * (y + sizes[1] * z))
    raise ArgumentError(f"block = {block!r}: {name} has a grid of {tuple(grid)} blocks: give a "
                        "number, or as many coordinates, from 0 on")


def _place(grid, block):
    """Coordinates of a block, as many as its grid has."""
    at, found = _number("", grid, block), []
    for size in grid:
        at, rest = divmod(at, size)
        found.append(rest)
    return found


def _end(trace, planned, inputs, emulator):
    """{passed, text}: how it ended. ``passed`` is None where there is nothing to compare with."""
    if trace.error is not None:
        return {"passed": False, "text": str(trace.error)}
    outputs = list(trace.buffers)
    wanted = reference(inputs)
    if "o" not in outputs:
        return {"passed": None, "text": ""}
    written = sorted({(offset + i) // 4 for step in trace.steps if step.kind == traces.WRITE
                      and step.place == outputs.index("o") for offset in step.offsets.values()
                      for i in range(0, step.bytes, 4)})
    got = wanted.o.astype(np.float32)
    got.reshape(-1)[written] = emulator.get(planned.output).reshape(-1)[written]
    verdict = judge(got, wanted.o, inputs.problem, wanted.max_abs_score)
    if verdict.passed:
        return {"passed": True, "text": f"What this warp wrote passes its gate, at "
                                        f"{verdict.fraction:.2g} of it."}
    where = "" if verdict.row is None else (
        f" o[{verdict.row}, {verdict.col}] is {verdict.got:.6g}, wanted {verdict.want:.6g}.")
    return {"passed": False, "text": f"What this warp wrote fails its gate.{where}"}
