"""What a chapter says. Each verb returns something that shows itself, with its mark."""

import numpy as np

from . import backend as backends
from . import cases, model, report, results
from .climb import (
    choice,
    comparison,
    long_estimates,
    long_runs,
    merge_properties,
    plot_roofline,
    plot_rungs,
    plot_times,
    rescales,
    run_long,
    rung,
    rung_counters,
    rung_gate,
    rung_times,
    splits,
    t4_times,
)
from .compare import compare
from .edits import edits, reset, save
from .errors import ArgumentError
from .exercises import check
from .mutants import show as show_mutants
from .occupancy import ARCHS
from .progress import Progress
from .record import keep
from .report import (
    bank_conflicts,
    battery,
    count_bytes,
    counted,
    device,
    facts_by_arch,
    geometry,
    limits,
    score_matrix,
    summary,
)
from .table import Table, Tables

__all__ = ["bank_conflicts", "battery", "case", "check", "choice", "compare", "comparison",
           "count_bytes", "counted", "device", "edits", "facts", "facts_by_arch", "gate",
           "gate_formula", "gates", "geometry", "limits", "long_estimates", "long_runs",
           "merge_properties", "mutants", "plot_roofline", "plot_rungs", "plot_score_matrix",
           "plot_times", "record", "rescales", "reset", "run_long", "rung", "rung_counters",
           "rung_gate", "rung_times", "save", "score_matrix", "splits", "summary", "t4_times",
           "table", "trace"]


def case(name, n=256):
    """The inputs called ``name``: a Case with q, k, v of shape (n, 64), float32."""
    return cases.make(name, n)


def gate(path="online", case="spike-late", n=256):
    """Run a path on a case and compare with the float64 reference.

    path: 'materialised', 'online', or 'pair' (one against the other). Runs on the GPU, emulated,
    or as a NumPy model, whichever there is; the mark says which.
    """
    known = ("materialised", "online", "pair")
    if path not in known:
        raise ArgumentError(f"no path is called {path!r}; there are: {', '.join(known)}")
    chosen = backends.choose()
    if path == "pair":
        rows = [r for r in results.gate_case(chosen, case, n) if r.path == results.PAIR]
    else:
        rows = results.gate_case(chosen, case, n, only=path)
    return report.gate_table(rows, report.mark_of(chosen),
                             report.where(chosen, *(() if path == "pair" else (path,))),
                             f"Gate: {path}, {case}, N = {n}")


def gate_formula(*ns, max_abs_score=1.0):
    """The gate's rtol, term by term, for each N and scores of at most ``max_abs_score``."""
    return report.gate_terms(ns or results.TABLE_N, max_abs_score)


def gates(n=256, names=cases.NAMES):
    """All three gates on every case."""
    chosen = backends.choose()
    with Progress() as progress:
        rows = results.gate_cases(chosen, names, n, progress)
    return report.case_table(rows, report.mark_of(chosen), report.where(chosen))


def table(*ns):
    """The gated timing table for N = 256, 1024, 4096, or the N given."""
    parts, _ = report.timing_tables(ns or results.TABLE_N)
    return Tables([*report.stale_notice(), *(p for group in parts for p in group)])


def facts(arch="sm_75"):
    """Registers, shared and local bytes, resident blocks per SM: 'sm_75' (T4), 'sm_90' (H200)..."""
    if arch not in ARCHS:
        raise ArgumentError(f"arch {arch!r}: choose one of {', '.join(ARCHS)}; 'sm_75' is a T4")
    return report.facts_table(arch)


def mutants(n=256):
    """Which case catches which broken kernel, and what ``periodic`` alone would let through."""
    return show_mutants(n)


def record(whole=False):
    """Record this GPU: gates, times, kernel facts and mutants, as a file for ``book/evidence/``.

    In Colab the file is offered for download. ``whole``: also the ladder and the long sequences.
    """
    return keep(whole)


def trace(case="spike-late", n=256, row=0, columns=3):
    """The online recurrence on one query row, tile by tile, in NumPy float32."""
    inputs = cases.make(case, n)
    if not 0 <= row < n:
        raise ArgumentError(f"row = {row}: the query rows are 0 to {n - 1}")
    steps = []
    model.online(inputs.q, inputs.k, inputs.v, rows=slice(row, row + 1), trace=steps)
    t = Table(f"Online recurrence, {case}, query row {row}",
              ["tile", "m before", "m after", "rescale", "l after",
               *(f"o[{i}] after" for i in range(columns))], note="NumPy float32")
    before = -np.inf
    for step in steps:
        t.add("computed", step["tile"] + 1, f"{before:.4g}", f"{step['m'][0]:.4g}",
              f"{step['rescale'][0]:.3g}", f"{step['l'][0]:.5g}",
              *(f"{x:.5g}" for x in step["o"][0, :columns]))
        before = step["m"][0]
    return t


def plot_score_matrix():
    """Score-matrix MiB against N, with the lines it crosses."""
    from . import figures

    return figures.score_matrix()
