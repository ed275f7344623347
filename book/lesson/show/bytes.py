"""Bytes before time: the score matrix, what paths move and ask for, and what that bounds."""

from ..errors import ArgumentError
from ..launch import paths
from ..machine import backend as backends
from ..machine import gpus
from ..machine.gpus import H200
from ..measure import evidence, records
from ..problem import cases, traffic
from ..problem.problem import D, of
from ..tables import Sentence, Table, Tables, mib
from ..text.edits import edited, note
from .marks import NO_EVIDENCE


def score_matrix(ns=traffic.LARGE_N):
    """Memory of one N x N float32 matrix, beside all that the online path needs."""
    t = Table("Score matrix, one head, float32",
              ["N", "score matrix, MiB", "online path in all, MiB"])
    for n in ns:
        t.add("computed", f"{n:,}", mib(traffic.score_matrix_bytes(n)),
              mib(traffic.working_memory(n)["online"]))
    return t


def count_bytes(*ns, emulated=False):
    """Compulsory (one transfer a pass), requested and measured bytes of both paths, for each N.

    ``emulated``: instead, of one N, the requested bytes of each kernel, counted access by access.
    """
    if emulated:
        return _counted_emulated(*ns)
    ns = ns or records.TABLE_N
    for n in ns:
        paths.HANDLES.refuse(of(n))
    newest, near_zero = evidence.shown("times"), False
    t = Table("Bytes before time, MiB", ["N", "bytes", "materialised", "online", "ratio"])
    for n in ns:
        for kind, found in (("compulsory", traffic.compulsory(n)),
                            ("requested", paths.requested_by_path(n))):
            t.add("computed", f"{n:,}", kind, mib(found["materialised"]), mib(found["online"]),
                  f"{found['materialised'] / found['online']:.1f}x")
        for item in newest:
            for kind, value in (("L2, " + item.gpu, lambda c: c.l2_bytes),
                                ("DRAM, " + item.gpu, dram)):
                seen = counted(item, n, value)
                if seen:
                    t.add("recorded", f"{n:,}", f"measured: {kind}", mib(seen["materialised"]),
                          mib(seen["online"]), _measured_ratio(seen, n))
                    near_zero = near_zero or _measured_ratio(seen, n) == "–"
    if all(mark == "computed" for _, mark in t.rows):
        t.footer = "nothing measured: no recorded run read the counters for these N"
    if near_zero:
        t.footer = ("–: the caches held nearly all that a path moves; a ratio to almost nothing "
                    "says nothing")
    t.note = "; ".join([*(f"counters: {i.gpu}, {i.day}" for i in newest if i.counters),
                        *(["all of the unedited kernels"] if edited() else [])])
    return t


def _counted_emulated(n=256):
    """Requested bytes of each kernel: by the formula, and counted access by access, emulated."""
    paths.HANDLES.refuse(of(n))
    t = Table(f"Requested bytes, N = {n}", ["kernel", "how", "loads", "stores"])
    try:
        backend, reason = backends.choose("emulated"), ""
    except ArgumentError as error:
        backend, reason = None, f"nothing counted, {error}"
    seen = {}
    if backend is not None:
        for path in paths.PATHS:
            seen.update(paths.run(backend, path, cases.make("periodic", n))[1].counts)
    for kernel, (loads, stores) in paths.requested(n).items():
        t.add("computed", kernel, "formula", f"{loads:,}", f"{stores:,}")
        if kernel in seen:
            t.add("emulated", kernel, "counted", f"{seen[kernel].loads_bytes:,}",
                  f"{seen[kernel].stores_bytes:,}")
    if seen:
        differ = [k for k, (loads, stores) in paths.requested(n).items()
                  if (seen[k].loads_bytes, seen[k].stores_bytes) != (loads, stores)]
        reason = (f"the count differs from the formula: {', '.join(differ)}" if differ else
                  "the count equals the formula for every kernel")
    t.footer = reason
    return t


def bank_conflicts(kernel="attentionOnline"):
    """Shared-memory accesses of one block at N = 64, line by line, counted by the emulator.

    A pass serves one word of each bank to a warp; what takes more passes than it must has bank
    conflicts. The count is of the source as written: a GPU's compiler may merge accesses.
    """
    if kernel not in paths.KERNELS:
        raise ArgumentError(f"no kernel is called {kernel!r}; there are: "
                            + ", ".join(paths.KERNELS))
    path = paths.KERNELS[kernel].path
    t = Table(f"Shared memory, one block of {kernel}, N = 64",
              ["line", "passes", "without conflicts"], note=note(path))
    try:
        backend = backends.choose("emulated")
    except ArgumentError as error:
        t.footer = f"nothing counted, {error}"
        return t
    planned = paths.plan(backend, path, cases.make("periodic", 64))
    step = next(step for step in planned.steps if step[0] == kernel)
    lines = {}
    for access in planned.program.shared_accesses(*step):
        text = access.line.partition("  ")[2].partition("//")[0].strip() or access.line
        passes, least = lines.get(text, (0, 0))
        lines[text] = passes + access.wavefronts, least + access.ideal
    for text, (passes, least) in lines.items():
        t.add("emulated", text, f"{passes:,}", f"{least:,}")
    return t


def limits(n=4096):
    """What an H200 would take for each path's bytes and arithmetic alone, beside what was recorded.

    For the arithmetic that is a lower bound. For the bytes it is none: caches may save some.
    """
    paths.HANDLES.refuse(of(n))
    t = Table(f"By an H200's datasheet, N = {n}", ["what", *paths.PATHS])
    operations = 4 * n * n * D  # two matmuls, a multiply and an add each
    blocks = {"materialised": min(n * n // 256, n // 4), "online": n // paths.BM}
    needed = {path: 1e3 * b / H200.bytes_per_s for path, b in traffic.compulsory(n).items()}
    work = {path: 1e3 * operations / H200.flops for path in paths.PATHS}
    busy = {path: min(blocks[path], H200.sms) for path in paths.PATHS}

    def row(what, found, form, mark="computed"):
        t.add(mark, what, *(form(found[path]) for path in paths.PATHS))

    row(f"compulsory bytes at {H200.bytes_per_s / 1e12:g} TB/s, ms", needed, "{:.4f}".format)
    row(f"multiplications and additions at {H200.flops / 1e12:g} TFLOP/s, ms", work,
        "{:.4f}".format)
    row("blocks of the smallest matmul grid", blocks, "{:,}".format)
    row(f"SMs of {H200.sms} that get a block", busy, "{:,}".format)
    row("the arithmetic on those SMs alone, ms",
        {path: work[path] * H200.sms / busy[path] for path in paths.PATHS}, "{:.4f}".format)
    # m, l and two columns of o: 16 bytes a thread and row, read and written once a tile.
    state = {"materialised": 0, "online": 32 * n * n}
    row("requested bytes, MiB", paths.requested_by_path(n), mib)
    row("state of the rows, read and written each tile, MiB", state, mib)
    for item in evidence.shown("times"):
        if gpus.product(item.versions["gpu"]) is not H200:
            continue
        if seen := counted(item, n, lambda c: c.l2_bytes):
            row("measured: bytes through L2, MiB", seen, mib, "recorded")
            row("measured: bytes of device memory, MiB", counted(item, n, dram), mib, "recorded")
        times = {time.what: time.median_ms for time in item.times if time.n == n}
        if all(path in times for path in paths.PATHS):
            row("time, median, ms", times, "{:.4f}".format, "recorded")
            row("the compulsory bytes alone, share of that time",
                {path: needed[path] / times[path] for path in paths.PATHS}, "{:.1%}".format,
                "recorded")
            t.note = f"times: {item.gpu}, {item.day}"
    if not t.note:
        t.footer = NO_EVIDENCE
    return t


def summary(n=4096):
    """Fewer bytes and the time they came with: a sentence for each recorded run."""
    compulsory, requested = traffic.compulsory(n), paths.requested_by_path(n)
    said = []
    for item in evidence.shown("times"):
        times = {time.what: time.median_ms for time in item.times if time.n == n}
        if all(path in times for path in paths.PATHS):
            said.append(Sentence(
                f"Counted as one transfer for each pass, the online path moves "
                f"{compulsory['materialised'] / compulsory['online']:.0f} times fewer bytes at "
                f"N = {n:,}; its kernels ask for "
                f"{requested['materialised'] / requested['online']:.1f} times fewer. It took "
                f"{times['online'] / times['materialised']:.2f} times the time of the "
                "materialised path.", "recorded", f"{item.gpu}, {item.day}"))
    return Tables(said or [Sentence(NO_EVIDENCE, "computed")])


def _measured_ratio(seen, n):
    """Materialised over online, or a dash where a path's count is next to nothing."""
    if any(20 * seen[path] < needed for path, needed in traffic.compulsory(n).items()):
        return "–"
    return f"{seen['materialised'] / seen['online']:.1f}x"


def dram(counters):
    """Bytes of device memory that Counters hold, read and written."""
    return counters.dram_read_bytes + counters.dram_write_bytes


def counted(item, n, value):
    """``{path: sum of value(Counters) over its kernels}`` of a record; None if it has none."""
    counters = {c.kernel: value(c) for c in item.counters or [] if c.n == n}
    if not counters:
        return None
    return {path: sum(counters[k] for k in paths.kernels_of(path)) for path in paths.PATHS}
