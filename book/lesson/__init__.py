"""Attention, two ways: the lesson's verbs.

    import lesson
    lesson.device()                      what was found here
    lesson.count_bytes(4096)             bytes, before any time
    lesson.gate("online", "spike-late")  is it attention?
    lesson.table()                       gates and times
    lesson.compare()                     an edited kernel beside the file
    lesson.rung(3)                       a rung of the ladder: prediction, difference, measurement

Importing needs NumPy alone; CuPy, matplotlib and the widget are imported when first used.
Some verbs share the name of a module (gate, table, mutants): inside the package write
``from .gate import judge``, never ``from . import gate``.
"""

from .edits import register
from .errors import (
    ArgumentError,
    CompileError,
    EvidenceError,
    GateError,
    InputError,
    LaunchError,
    LessonError,
    RaceError,
)
from .verbs import (
    bank_conflicts,
    battery,
    case,
    check,
    choice,
    compare,
    comparison,
    count_bytes,
    counted,
    device,
    edits,
    facts,
    facts_by_arch,
    gate,
    gate_formula,
    gates,
    geometry,
    limits,
    long_estimates,
    long_runs,
    merge_properties,
    mutants,
    plot_roofline,
    plot_rungs,
    plot_score_matrix,
    plot_times,
    record,
    rescales,
    reset,
    run_long,
    rung,
    rung_counters,
    rung_gate,
    rung_times,
    save,
    score_matrix,
    splits,
    summary,
    t4_times,
    table,
    trace,
)

__all__ = [
    "ArgumentError", "CompileError", "EvidenceError", "GateError", "InputError",
    "LaunchError", "LessonError", "RaceError", "bank_conflicts", "battery", "case", "check",
    "choice", "compare", "comparison", "count_bytes", "counted", "device", "edits", "facts",
    "facts_by_arch", "gate", "gate_formula", "gates", "geometry", "limits", "long_estimates",
    "long_runs", "merge_properties", "mutants", "plot_roofline", "plot_rungs", "plot_score_matrix",
    "plot_times", "record", "rescales", "reset", "run_long", "rung", "rung_counters", "rung_gate",
    "rung_times", "save", "score_matrix", "splits", "summary", "t4_times", "table", "trace",
    "OnlineMax",
]

register()  # %%kernel, where this is a notebook


def __getattr__(name):
    if name == "OnlineMax":  # needs ipywidgets and anywidget
        from .online_max import OnlineMax

        return OnlineMax
    raise AttributeError(f"module 'lesson' has no attribute {name!r}")
