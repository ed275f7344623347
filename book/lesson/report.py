"""Tables of the lesson's results, in the order of the report; the chapters draw the same ones."""

import numpy as np

from . import backend as backends
from . import cases, evidence, nvrtc, paths, results, traffic
from .edits import edited, note
from .errors import ArgumentError, CompileError
from .gate import EPS, RTOL_FLOOR, SCORE_SLACK, SUM_SLACK, tolerance
from .occupancy import ARCHS, H200
from .progress import Progress
from .table import Sentence, Table, Tables, mib, ms

NO_EVIDENCE = "no recorded run fits these kernels: times need a GPU (python -m lesson record)"


def device():
    """What was found here, in three lines: where kernels run, versions, and how to do better."""
    found, chosen = backends.probe(), backends.choose()
    from . import host

    emulator, no_emulator = host.available()
    t = Table("This machine", ["what", "found"])
    if found.gpu:
        v = found.versions
        t.add("live", "kernels run on", f"{v['gpu']}, compute capability {v['compute_capability']}")
        t.add("live", "versions", f"CuPy {v['cupy']}, CUDA {v['cuda']}, NVRTC {v['nvrtc']}, "
              f"driver for CUDA {v['driver_cuda']}")
        t.add("live", "times", "measured here")
        return t
    mark = "emulated" if chosen else "computed"
    t.add(mark, "GPU", f"none used: {found.reason}")
    t.add(mark, "kernels run on",
          "this machine's processor, emulated from the same .cu files" if emulator else
          f"nothing: {no_emulator}. NumPy models of both paths stand in")
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    t.add(mark, "versions", f"{versions}; times come from recorded runs")
    return t


def mark_of(backend):
    """The mark of a run on ``backend``; the NumPy model (no backend) is computed."""
    return backend.mark if backend is not None else "computed"


def where(backend, *names):
    """What a run's mark refers to, and the edits in the sources it ran (all, or ``names``)."""
    if backend is None:
        return "NumPy models, not the kernels: there is neither a GPU nor a C++ compiler here"
    return "; ".join(filter(None, (backend.describe(), note(*names))))


def geometry():
    """Launch geometry of the four kernels."""
    t = Table("Tile geometry", ["kernel", "grid", "block", "tile"])
    t.add("computed", "scoresQKt", "(N/16, N/16)", "16 x 16",
          "16 queries x 16 keys, 16 of d a step")
    t.add("computed", "softmaxRows", "N", "256", "one row")
    t.add("computed", "weightedV", "(4, N/16)", "16 x 16",
          "16 queries x 16 columns, 16 keys a step")
    t.add("computed", "attentionOnline", "N/64", "256", "64 queries x 32 keys; 8 queries a warp")
    return t


def score_matrix(ns=traffic.LARGE_N):
    """Memory of one N x N float32 matrix, beside all that the online path needs."""
    t = Table("Score matrix, one head, float32",
              ["N", "score matrix, MiB", "online path in all, MiB"])
    for n in ns:
        t.add("computed", f"{n:,}", mib(traffic.score_matrix_bytes(n)),
              mib(traffic.working_memory(n)["online"]))
    return t


def facts_table(arch="sm_75"):
    """Kernel facts and resident blocks for an architecture, compiled here or from a record."""
    name = ARCHS[arch].name
    rows, mark, by = _facts(arch)
    if not rows:
        return Table(f"Kernel facts, {name}", ["kernel"], footer=f"{by}.")
    t = Table(f"Kernel facts, {name} ({arch})",
              ["kernel", "registers", "shared B", "local B", "spilled B",
               "blocks per SM", "occupancy", "limit"],
              note="; ".join(filter(None, (by, f"{rows[0].threads} threads a block", note()))))
    for r in rows:
        t.add(mark, r.kernel, r.registers, f"{r.shared_bytes:,}", r.local_bytes,
              r.spill_bytes, r.blocks, f"{r.occupancy:.0%}", r.limit)
    return t


def _facts(arch):
    """(rows of Facts, mark, where they come from); without rows the last says why."""
    found, version = nvrtc.available()
    if found:
        try:
            return results.facts(arch), "computed", f"compiled for {arch} by NVRTC {version}"
        except CompileError:
            # Older than the architecture, or the session's cells do not compile: then for no arch.
            results.facts()
            return [], "computed", f"NVRTC {version} does not know {arch}"
    if not edited():  # a record belongs to the files, not to this session's cells
        for item in evidence.read_all()[0]:
            rows = [row for row in item.facts if row.arch == arch]
            if rows and not item.stale():
                return rows, "recorded", f"by NVRTC {item.versions['nvrtc']}, {item.day}"
    return [], "computed", version


def facts_by_arch():
    """Kernel facts for compute capabilities 7.5 (T4) to 10.0: what changes from one to the next."""
    t = Table("Kernel facts by architecture",
              ["kernel", "arch", "registers", "local B", "shared B", "blocks per SM", "occupancy",
               "limit"])
    found = {arch: _facts(arch) for arch in ARCHS}
    for kernel in paths.BLOCK:
        for arch, (rows, mark, _) in found.items():
            for r in rows:
                if r.kernel == kernel:
                    t.add(mark, kernel, arch, r.registers, r.local_bytes, f"{r.shared_bytes:,}",
                          r.blocks, f"{r.occupancy:.0%}", r.limit)
    available, version = nvrtc.available()
    t.note = "; ".join(filter(None, (f"NVRTC {version}" if available else "", note())))
    t.footer = ". ".join(dict.fromkeys(by for rows, _, by in found.values() if not rows))
    return t


def count_bytes(*ns):
    """Compulsory, requested and measured bytes of both paths, for each N."""
    ns = ns or results.TABLE_N
    for n in ns:
        cases.check_n(n)
    newest, near_zero = _usable(), False
    t = Table("Bytes before time, MiB", ["N", "bytes", "materialised", "online", "ratio"])
    for n in ns:
        for kind, found in (("compulsory", traffic.compulsory(n)),
                            ("requested", traffic.requested_by_path(n))):
            t.add("computed", f"{n:,}", kind, mib(found["materialised"]), mib(found["online"]),
                  f"{found['materialised'] / found['online']:.1f}x")
        for item in newest:
            for kind, value in (("L2, " + item.gpu, lambda c: c.l2_bytes),
                                ("DRAM, " + item.gpu,
                                 lambda c: c.dram_read_bytes + c.dram_write_bytes)):
                seen = _counted(item, n, value)
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


def battery(n=256, names=cases.NAMES):
    """The cases for N: how large their scores get, what rescale they ask for, what they catch.

    Float64 arithmetic on the inputs. ``periodic`` looks like a test of the rescale and is hardly
    one; this table says so with numbers.
    """
    t = Table(f"The cases, N = {n}", ["case", "largest |score|", "rtol of the gate",
              "rows rescaled in the last tile", "smallest r there", "catches"])
    for name in names:
        case = cases.make(name, n)
        largest, r = 0.0, []
        for row in range(0, n, 256):
            s = case.q[row : row + 256].astype(float) @ case.k.T.astype(float) / cases.D**0.5
            largest = max(largest, float(np.abs(s).max()))
            before, last = s[:, : -cases.BN].max(axis=1), s[:, -cases.BN :].max(axis=1)
            r.append(np.exp(before - np.maximum(before, last)))
        r = np.concatenate(r)
        t.add("computed", name, f"{largest:.3g}", f"{tolerance(n, largest):.2g}",
              f"{(r < 1).mean():.0%}", f"{r.min():.2g}", case.catches)
    return t


def counted(n=256):
    """Requested bytes of each kernel: by the formula, and counted access by access, emulated."""
    cases.check_n(n)
    t = Table(f"Requested bytes, N = {n}", ["kernel", "how", "loads", "stores"])
    try:
        backend, reason = backends.choose("emulated"), ""
    except ArgumentError as error:
        backend, reason = None, f"nothing counted, {error}"
    seen = {}
    if backend is not None:
        for path in paths.PATHS:
            seen.update(paths.run(backend, path, cases.make("periodic", n))[1].counts)
    for kernel, (loads, stores) in traffic.requested(n).items():
        t.add("computed", kernel, "formula", f"{loads:,}", f"{stores:,}")
        if kernel in seen:
            t.add("emulated", kernel, "counted", f"{seen[kernel].loads_bytes:,}",
                  f"{seen[kernel].stores_bytes:,}")
    if seen:
        differ = [k for k, (loads, stores) in traffic.requested(n).items()
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
    found = [path for path, kernels in traffic.PATH_KERNELS.items() if kernel in kernels]
    if not found:
        raise ArgumentError(f"no kernel is called {kernel!r}; there are: "
                            + ", ".join(k for ks in traffic.PATH_KERNELS.values() for k in ks))
    t = Table(f"Shared memory, one block of {kernel}, N = 64",
              ["line", "passes", "without conflicts"], note=note(found[0]))
    try:
        backend = backends.choose("emulated")
    except ArgumentError as error:
        t.footer = f"nothing counted, {error}"
        return t
    planned = paths.plan(backend, found[0], cases.make("periodic", 64))
    step = next(step for step in planned.steps if step[0] == kernel)
    lines = {}
    for access in planned.program.shared_accesses(*step):
        text = access.line.partition("  ")[2].partition("//")[0].strip() or access.line
        passes, least = lines.get(text, (0, 0))
        lines[text] = passes + access.wavefronts, least + access.ideal
    for text, (passes, least) in lines.items():
        t.add("emulated", text, f"{passes:,}", f"{least:,}")
    return t


# The H200's datasheet: 132 SMs, about 67 TFLOP/s in FP32, 4.8 TB/s.
H200_FLOPS, H200_BYTES = 67e12, 4.8e12


def limits(n=4096):
    """What an H200 would need at least for each path, beside what was recorded there."""
    cases.check_n(n)
    t = Table(f"Lower bounds on an H200, N = {n}", ["what", *paths.PATHS])
    operations = 4 * n * n * traffic.D  # two matmuls, a multiply and an add each
    blocks = {"materialised": min(n * n // 256, n // 4), "online": n // traffic.BM}
    needed = {path: 1e3 * b / H200_BYTES for path, b in traffic.compulsory(n).items()}
    work = {path: 1e3 * operations / H200_FLOPS for path in paths.PATHS}
    busy = {path: min(blocks[path], H200.sms) for path in paths.PATHS}

    def row(what, found, form, mark="computed"):
        t.add(mark, what, *(form(found[path]) for path in paths.PATHS))

    row("compulsory bytes at 4.8 TB/s, ms", needed, "{:.4f}".format)
    row("multiplications and additions at 67 TFLOP/s, ms", work, "{:.4f}".format)
    row("blocks of the smallest matmul grid", blocks, "{:,}".format)
    row(f"SMs of {H200.sms} that get a block", busy, "{:,}".format)
    row("the arithmetic on those SMs alone, ms",
        {path: work[path] * H200.sms / busy[path] for path in paths.PATHS}, "{:.4f}".format)
    # m, l and two columns of o: 16 bytes a thread and row, read and written once a tile.
    state = {"materialised": 0, "online": 32 * n * n}
    row("requested bytes, MiB", traffic.requested_by_path(n), mib)
    row("state of the rows, read and written each tile, MiB", state, mib)
    for item in _usable():
        if not item.gpu.startswith("H200"):
            continue
        if seen := _counted(item, n, lambda c: c.l2_bytes):
            row("measured: bytes through L2, MiB", seen, mib, "recorded")
        times = {time.what: time.median_ms for time in item.times if time.n == n}
        if all(path in times for path in paths.PATHS):
            row("time, median, ms", times, "{:.4f}".format, "recorded")
            row("share of it that the compulsory bytes explain at most",
                {path: needed[path] / times[path] for path in paths.PATHS}, "{:.1%}".format,
                "recorded")
            t.note = f"times: {item.gpu}, {item.day}"
    if not t.note:
        t.footer = NO_EVIDENCE
    return t


def summary(n=4096):
    """Fewer bytes and the time they came with: a sentence for each recorded run."""
    compulsory, requested = traffic.compulsory(n), traffic.requested_by_path(n)
    said = []
    for item in _usable():
        times = {time.what: time.median_ms for time in item.times if time.n == n}
        if all(path in times for path in paths.PATHS):
            said.append(Sentence(
                f"At N = {n:,} the online path must move "
                f"{compulsory['materialised'] / compulsory['online']:.0f} times fewer bytes and "
                f"asks for {requested['materialised'] / requested['online']:.1f} times fewer. It "
                f"took {times['online'] / times['materialised']:.2f} times the time of the "
                "materialised path.", "recorded", f"{item.gpu}, {item.day}"))
    return Tables(said or [Sentence(NO_EVIDENCE, "computed")])


def _measured_ratio(seen, n):
    """Materialised over online, or a dash where a path's count is next to nothing."""
    if any(20 * seen[path] < needed for path, needed in traffic.compulsory(n).items()):
        return "–"
    return f"{seen['materialised'] / seen['online']:.1f}x"


def _counted(item, n, value):
    counters = {c.kernel: value(c) for c in item.counters or [] if c.n == n}
    if not counters:
        return None
    return {path: sum(counters[k] for k in kernels)
            for path, kernels in traffic.PATH_KERNELS.items()}


def _usable():
    """The newest recorded run of each GPU that measured the kernels as they are now."""
    return [item for item in evidence.latest().values() if not item.stale()]


def gate_formula(n, max_abs_score=0.0):
    """The gate for N, with its numbers."""
    rtol = tolerance(n, max_abs_score)
    return (f"gate for N = {n}: |got - ref| <= atol + rtol |ref|, rtol = max(1e-5, 4 eps sqrt(N), "
            f"8 eps max|score|) = {rtol:.3g}, atol = rtol max|ref|, eps = 2^-23")


def gate_terms(ns, max_abs_score=0.0):
    """The three terms of rtol and the largest of them, for each N."""
    t = Table("The gate in numbers",
              ["N", "largest |score|", "floor", "4 eps √N", "8 eps max|score|", "rtol"],
              note="rtol is the largest of the three")
    for n in ns:
        terms = (RTOL_FLOOR, SUM_SLACK * EPS * n**0.5, SCORE_SLACK * EPS * max_abs_score)
        t.add("computed", f"{n:,}", f"{max_abs_score:g}", *(f"{x:.3g}" for x in terms),
              f"{tolerance(n, max_abs_score):.3g}")
    return t


def gate_table(rows, mark, note, title="Gates"):
    """Gates as they came out; a failure's message stands below."""
    t = Table(title, ["path", "case", "N", "verdict", "gate fraction", "max abs error", "rtol"],
              note=note)
    for r in rows:
        t.add(mark, r.path, r.case, r.n, "pass" if r.passed else "fail", f"{r.fraction:.3f}",
              f"{r.max_abs_error:.1e}", f"{r.rtol:.2g}")
    t.footer = "\n".join(r.message for r in rows if not r.passed)
    return t


def case_table(rows, mark, note):
    """One line a case: the fractions of the three gates and what the case is there to catch."""
    n = rows[0].n
    t = Table(f"Gate fractions, all cases, N = {n}",
              ["case", "verdict", "materialised", "online", "pair", "catches"], note=note)
    for name in dict.fromkeys(r.case for r in rows):
        found = {r.path: r for r in rows if r.case == name}
        ok = all(r.passed for r in found.values())
        t.add(mark, name, "pass" if ok else "fail",
              *(f"{found[p].fraction:.3f}" for p in (*paths.PATHS, results.PAIR)),
              cases.make(name, 64).catches)
    t.footer = "\n".join(r.message for r in rows if not r.passed)
    return t


TABLE_COLUMNS = ["path", "max abs error", "gate fraction", "time, ms (min–max)", "where"]


def timing_tables(ns=results.TABLE_N, kind=None):
    """The gated table. Live where there is a GPU; else gates emulated here and recorded times.

    Returns (list of parts per N, list of failure messages). Raises nothing for a failed gate.
    """
    chosen = backends.choose(kind)
    parts, failures = [], []
    with Progress() as progress:
        for n in ns:
            found, failed = _tables_for(chosen, n, progress)
            parts.append(found)
            failures += failed
    return parts, failures


def _tables_for(backend, n, progress):
    cases.check_n(n)
    live = backend is not None and backend.mark == "live"
    table = Table(f"Gated timing, periodic, N = {n}", TABLE_COLUMNS, note=note())
    breakdown = Table(f"Time by kernel, N = {n}", ["kernel", "time, ms (min–max)", "where"])
    ratios = Table(f"Materialised over online, N = {n}",
                   ["ratio", "bytes, compulsory", "bytes, requested", "time", "where"])
    failures = []
    if backend is not None and not live and n > results.EMULATED_N[0]:
        # One order of threads: at the smallest N these kernels have passed under all of them.
        backend = type(backend)(orders=backend.orders[:1])
    if live or n in results.EMULATED_N:
        progress(f"gates, N = {n}", 0, 1)
        rows = results.gate_case(backend, "periodic", n)
        failures = [r.message for r in rows if not r.passed]
        where_ = "this GPU" if live else ("emulated here" if backend else "NumPy model")
        times = {}
        if live and not failures:
            for path in paths.PATHS:
                _, found = results.time_path(backend, path, n, progress=progress)
                times.update({t.what: t for t in found})
        _rows(table, rows, times, mark_of(backend), where_, "FAILED: no time" if failures else
              "not timed: no GPU")
        _breakdown(breakdown, times, "live", where_)
        _ratios(ratios, times, n, "live", where_)
    for item in _usable():
        rows = [g for g in item.gates if g.case == "periodic" and g.n == n]
        times = {t.what: t for t in item.times if t.n == n}
        where_ = f"{item.gpu}, {item.day}" + (", unedited kernels" if edited() else "")
        _rows(table, rows, times, "recorded", where_, "not timed")
        _breakdown(breakdown, times, "recorded", where_)
        _ratios(ratios, times, n, "recorded", where_)
    table.footer = "\n".join(failures)
    if not table.rows:
        table.footer = NO_EVIDENCE
    return [p for p in (table, breakdown, ratios) if p is table or p.rows], failures


def _rows(table, gates, times, mark, where_, untimed):
    for g in gates:
        if g.path in paths.PATHS:
            time = ms(times[g.path]) if g.passed and g.path in times else untimed
            table.add(mark, g.path, f"{g.max_abs_error:.1e}", f"{g.fraction:.3f}", time, where_)
        if g.path == results.PAIR:  # two outputs compared: nothing ran, so there is no time
            table.add(mark, g.path, f"{g.max_abs_error:.1e}", f"{g.fraction:.3f}", "–", where_)


def _breakdown(table, times, mark, where_):
    for kernel in traffic.PATH_KERNELS["materialised"]:
        if kernel in times:
            table.add(mark, kernel, ms(times[kernel]), where_)


def _ratios(table, times, n, mark, where_):
    if all(p in times for p in paths.PATHS):
        compulsory, requested = traffic.compulsory(n), traffic.requested_by_path(n)
        table.add(mark, "materialised / online",
                  f"{compulsory['materialised'] / compulsory['online']:.1f}x",
                  f"{requested['materialised'] / requested['online']:.1f}x",
                  f"{times['materialised'].median_ms / times['online'].median_ms:.2f}x", where_)


def stale_notice():
    """A sentence for each recorded file that cannot be used, or an empty list."""
    notices = list(evidence.read_all()[1])
    for item in evidence.latest().values():
        changed = item.stale()
        if changed:
            files = ", ".join(f"{name}.cu" for name in changed)
            notices.append(f"stale: the run on {item.gpu}, {item.day}, measured another {files}; "
                           "its times are not shown")
    return notices


def report(kind=None, out=print):
    """Print the whole report. Returns the messages of failed gates, an empty list if none."""
    chosen = backends.choose(kind)
    out(device().text())
    out("")
    for part in (geometry(), score_matrix(), facts_table("sm_75"), facts_table("sm_90")):
        out(part.text() + "\n")
    if chosen is not None and chosen.mark == "live":
        compiled = results.compile_times(chosen)
        out("compile time, apart [live]: "
            + ", ".join(f"{name}.cu {t:.0f} ms" for name, t in compiled.items()) + "\n")
    for notice in stale_notice():
        out(notice + "\n")
    failures = []
    for n in results.TABLE_N:
        out(gate_formula(n))
        out(count_bytes(n).text() + "\n")
        (tables,), failed = timing_tables((n,), kind)
        for t in tables:
            out(t.text() + "\n")
        failures += failed
    with Progress() as progress:
        rows = results.gate_cases(chosen, n=results.TABLE_N[0], progress=progress)
    out(case_table(rows, mark_of(chosen), where(chosen)).text() + "\n")
    failures += [r.message for r in rows if not r.passed]
    if not failures:
        out("all cases passed their gates")
    return failures


