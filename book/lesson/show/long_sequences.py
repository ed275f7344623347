"""Long sequences: estimates, recorded runs, and a run of the reader's own."""

from ..errors import ArgumentError
from ..launch import paths, rungs
from ..machine import backend as backends
from ..machine import gpus
from ..measure import evidence, long_sequences
from ..measure.long_sequences import CALIBRATE_N, LONG_N, OFFER_S, calibrate, estimate, offer, run
from ..problem import traffic
from ..problem.problem import D, of
from ..progress import Progress
from ..tables import Sentence, Table, Tables, mib
from .marks import NO_LONG, origin


def long_runs(what="recorded", n=None):
    """Long sequences, up to one whose score matrix no GPU holds.

    what: 'estimate' (what they would take, before anything runs), 'recorded', or 'run': N keys on
    this GPU, or as many as it finishes in about ten seconds, gated on sampled rows.
    """
    if what not in (known := {"estimate": _estimates, "recorded": _recorded, "run": _run}):
        raise ArgumentError(f"what = {what!r}: choose one of {', '.join(known)}")
    if n is not None and what != "run":
        raise ArgumentError(f"n = {n}: only lesson.long_runs('run', n) takes it")
    return _run(n) if what == "run" else known[what]()


def _estimates(ns=long_sequences.LONG_N):
    """Before anything runs: what N would take, by datasheets; on a GPU also by a short run."""
    products = gpus.products()
    t = Table("Before the start", ["N", "score matrix, MiB", "online path in all, MiB",
                                   *(f"{gpu.name}, at least, s" for gpu in products)])
    for n in ns:
        work = 4 * n * n * D
        t.add("computed", f"{n:,}", mib(traffic.score_matrix_bytes(n)),
              mib(traffic.working_memory(n)["online"]),
              *(f"{work / gpu.flops:.3g}" for gpu in products))
    rates = " and ".join(f"{gpu.flops / 1e12:g}" for gpu in products)
    t.footer = (f"the multiplications and additions alone, at {rates} TFLOP/s: the datasheets' "
                "rates, at boost clocks")
    chosen = backends.choose()
    if chosen is None or chosen.mark != "live":
        return t
    return Tables([t, estimates_table(chosen, long_sequences.calibrate(chosen), ns)])


def _recorded():
    """The long sequences as they were recorded."""
    parts = []
    for item in evidence.shown("long"):
        parts.append(table(item.long, "recorded", origin(item)))
        first, last = item.long[-2:] if len(item.long) > 1 else item.long * 2
        if last.n > first.n:
            per_key = (last.seconds / last.n) / (first.seconds / first.n)
            parts.append(Sentence(
                f"N = {last.n:,} has {last.n // first.n} times the keys of N = {first.n:,}. It "
                f"took {last.seconds / first.seconds:,.0f} times the time, {per_key:.1f} times "
                f"the time for each key, and {mib(last.device_bytes)} MiB where its score matrix "
                f"would have {mib(last.score_matrix_bytes)}.", "recorded", origin(item)))
    return Tables(parts or [Sentence(NO_LONG, "computed")])


def _run(n=None):
    """Run N keys on this GPU, or the size that it finishes in about ten seconds, and gate it.

    Interrupt it like any cell. Without a GPU it says so and runs nothing.
    """
    if n is not None and (not isinstance(n, int) or n < 1 or n % rungs.BEST.bm):
        raise ArgumentError(f"n = {n}: choose a multiple of {rungs.BEST.bm}, such as 32768")
    chosen = backends.choose()
    if chosen is None or chosen.mark != "live":
        return Sentence("Nothing ran: this needs a GPU. The recorded run stands in.", "computed")
    return show(n)


def table(rows, mark="live", note=""):
    """Long sequences: the matrix that they do without, what ran, and the time of a key."""
    t = Table("Long sequences, run",
              ["N", "score matrix, MiB", "memory used, MiB", "time, s", "estimated, s",
               "time per key, us", "gate fraction", "rows checked"], note=note)
    for r in rows:
        t.add(mark, f"{r.n:,}", mib(r.score_matrix_bytes), mib(r.device_bytes),
              f"{r.seconds:.3f}", f"{r.estimated_s:.3f}", f"{1e6 * r.seconds / r.n:.3f}",
              f"{r.fraction:.3f}", r.sampled_rows)
    t.footer = "time per key grows with N: time grows with N^2, memory with N"
    return t


def estimates_table(backend, unit, ns=LONG_N):
    """Before anything starts: time and memory for each N, and the size that suits this GPU."""
    t = Table("Estimates for this GPU", ["N", "time, s", "memory, MiB", "fits"],
              note=f"from a run at N = {CALIBRATE_N:,}")
    offered = offer(backend, unit)
    for n in sorted({*ns, offered}):
        e = estimate(backend, n, unit)
        t.add("computed", f"{n:,}", f"{e.seconds:.3g}", mib(e.device_bytes),
              "yes" if e.fits else "no")
    t.footer = f"within {OFFER_S:.0f} seconds here: N = {offered:,}"
    return t


def show(n=None):
    """Run N keys, or the size this GPU finishes in about ten seconds. Needs a GPU."""
    backend = backends.choose("live")
    with Progress() as progress:
        unit = calibrate(backend)
        chosen = n or offer(backend, unit)
        paths.HANDLES.refuse(of(chosen))
        return table([run(backend, chosen, progress, unit)])
