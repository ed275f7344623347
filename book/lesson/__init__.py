"""Attention, two ways: the lesson's verbs.

    import lesson
    lesson.device()                      what was found here
    lesson.count_bytes(4096)             bytes, before any time
    lesson.gate("online", "spike-late")  is it attention?
    lesson.table()                       gates and times
    lesson.compare()                     an edited kernel beside the file
    lesson.rung(7)                       a rung of the ladder: its header, difference and story
    lesson.watch("scoresQKt")            a warp of a kernel, step by step
    lesson.attention(q, k, v)            the best kernel of this device, in one call

Importing needs NumPy alone; CuPy, matplotlib and the widget are imported when first used.
"""

import inspect as _inspect

from .errors import (  # every error that a verb raises
    ArgumentError,
    CompileError,
    EvidenceError,
    GateError,
    InputError,
    LaunchError,
    LessonError,
    RaceError,
    UndefinedError,
)
from .exercises import exercise
from .launch.attention import attention
from .progress import print_anywhere as _print_anywhere
from .show.bytes import bank_conflicts, count_bytes, limits, score_matrix, summary
from .show.compare import compare
from .show.device import device
from .show.gates import case, cases, gate, gate_formula, output, trace
from .show.kernel_facts import facts
from .show.ladder import ladder
from .show.long_sequences import long_runs
from .show.masks import masks
from .show.mutants import mutants
from .show.mutation_score import mutation_score
from .show.plots import plot
from .show.record import record
from .show.run import run
from .show.rungs import rung
from .show.several_gpus import ranks
from .show.splits import choice
from .show.timing import table
from .stepper.watching import watch
from .text.edits import edits, reset, save
from .text.edits import register as _register

VERBS = tuple(name for name, value in vars().copy().items()
              if _inspect.isfunction(value) and not name.startswith("_"))
__all__ = [*VERBS, *(name for name in vars().copy() if name.endswith("Error")), "OnlineMax"]

_register()  # %%kernel, where this is a notebook
_print_anywhere()


def __getattr__(name):
    if name == "OnlineMax":  # needs ipywidgets and anywidget
        from .online_max import OnlineMax

        return OnlineMax
    raise AttributeError(f"module 'lesson' has no attribute {name!r}")
