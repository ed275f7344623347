"""Plots of a recorded comparison: share of the SGEMM rate, time against N, and a roofline."""

from ..launch import paths
from ..launch.rungs import BEST, RUNGS, SMALL
from ..machine import gpus
from ..measure import bench
from ..measure.records import TABLE_N
from ..problem.problem import of
from ..tables import Sentence, mib
from .comparison import CHOICE, CUBLAS, requested
from .figures import GRID, INK, MUTED, SERIES, finish, start, thousands
from .stories import SHOWN_N, row_of

ROOFLINE_N = 4096


def _slug(item, what):
    """A name for a figure that no other figure on a page has."""
    gpu = "".join(c if c.isalnum() else "-" for c in item.gpu.lower())
    return f"ladder-{what}-{gpu}"


def rungs(item, note):
    """Share of the SGEMM rate against rung, one head."""
    figure, axes = start(6.4, 4.0)
    said = []
    looks = zip(SERIES, "os", ("-", "--"), (-14, 4))  # colour, marker, dash, where the label is
    for n, (colour, marker, dash, below) in zip(SHOWN_N, looks):
        points = [(r.number, 100 * bench.share(row, item.bench.ceiling)) for r in RUNGS
                  if (row := row_of(item.bench, r, n))]
        if not points:
            continue
        axes.plot(*zip(*points), color=colour, marker=marker, ls=dash, lw=2, ms=5)
        axes.annotate(f"N = {n:,}", points[-1], xytext=(6, below), textcoords="offset points",
                      color=INK, fontsize=10, annotation_clip=False)
        said.append(f"at N = {n:,} " + ", ".join(f"rung {k} {y:.0f} %" for k, y in points))
    axes.axhline(100, color=MUTED, lw=1, ls=":")
    axes.annotate("SGEMM through cuBLAS", (1, 100), xytext=(0, 4), textcoords="offset points",
                  color=INK, fontsize=10)
    axes.set_xticks([r.number for r in RUNGS])
    axes.set_xlim(0.5, len(RUNGS) + 2.2)
    axes.set_ylim(0, 112)
    axes.set_xlabel("rung")
    axes.set_ylabel("share of the SGEMM rate, %")
    return finish(figure, _slug(item, "rungs"), f"Share of the SGEMM rate: {'; '.join(said)}.",
                  "Share of the SGEMM rate against rung, one head", "recorded", note)


def times(item, note):
    """Time against N, log-log, one head: every row of the comparison, the known ones labelled."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    figure, axes = start(6.4, 4.8)
    rows = [row for row in item.bench.rows if row.heads == 1]
    labels = {RUNGS[0].label: ("lesson's kernel", SERIES[0], "o", "-"),
              CHOICE: (CHOICE, SERIES[1], "s", "-"),
              CUBLAS: ("three calls, cuBLAS", SERIES[2], "^", "--"),
              "PyTorch: matmul, softmax, matmul": ("three calls, PyTorch", INK, "v", ":"),
              "PyTorch SDPA, math": ("SDPA, math", SERIES[3], "D", ":"),
              "PyTorch SDPA, memory-efficient": ("SDPA, memory-efficient", SERIES[3], "P", "-.")}
    ends, said = [], []
    for what in dict.fromkeys(row.what for row in rows):
        points = sorted((row.n, row.median_ms) for row in rows if row.what == what)
        if what in labels:
            label, colour, marker, dash = labels[what]
            axes.plot(*zip(*points), color=colour, marker=marker, ls=dash, lw=2, ms=5)
            ends.append((label, *points[-1]))
        else:
            axes.plot(*zip(*points), color=MUTED, lw=0.7, alpha=0.5)
        said.append(f"{what}: " + ", ".join(f"{y:.4f} ms at {n:,}" for n, y in points))
    axes.set_xscale("log")
    axes.set_yscale("log")
    ns = sorted({row.n for row in rows})
    axes.set_xlim(ns[0] / 1.3, ns[-1] * 22)
    at = None  # labels stand beside the ends of their lines, none on another
    low, high = axes.get_ylim()
    apart = (high / low) ** 0.055
    for label, n, y in sorted(ends, key=lambda end: end[2]):
        at = y if at is None else max(y, at * apart)
        axes.annotate(label, (n, y), xytext=(n * 1.5, at), color=INK, fontsize=10, va="center",
                      arrowprops={"arrowstyle": "-", "color": GRID, "lw": 1})
    axes.xaxis.set_major_locator(FixedLocator(ns))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(thousands))
    axes.yaxis.set_major_formatter(FuncFormatter(thousands))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("N, keys and queries (thin lines: the other rungs)")
    axes.set_ylabel("time, ms")
    return finish(figure, _slug(item, "times"), f"Time against N. {'; '.join(said)}.",
                  "Time against N, one head", "recorded", note)


def roofline(item, note):
    """Rate against operations per byte at N = 4096: requested bytes, and those of L2 and DRAM."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    n = ROOFLINE_N
    figure, axes = start(6.4, 4.4)
    top = item.bench.ceiling.tflops
    gpu = gpus.product(item.versions["gpu"])
    said = [f"SGEMM at {top:.1f} TFLOP/s"]
    points = _points(item, n)
    xs = [x for _, _, found in points for x in found.values()]
    right = max([1e4, *xs]) * 3
    if gpu:
        said.insert(0, f"roofs: {gpu.bytes_per_s / 1e12:g} TB/s and {gpu.flops / 1e12:g} TFLOP/s "
                       f"by the {gpu.name}'s datasheet")
        ridge, left = gpu.flops / gpu.bytes_per_s, min([1.0, *xs]) / 2
        axes.plot([left, ridge, right], [left * gpu.bytes_per_s / 1e12, gpu.flops / 1e12,
                                         gpu.flops / 1e12], color=INK, lw=1.5)
        axes.annotate(f"{gpu.bytes_per_s / 1e12:g} TB/s",
                      (left * 1.2, left * 1.2 * gpu.bytes_per_s / 1e12), xytext=(8, -6),
                      textcoords="offset points", color=INK, fontsize=10)
        axes.annotate(f"{gpu.flops / 1e12:g} TFLOP/s", (right, gpu.flops / 1e12), xytext=(0, 3),
                      ha="right", textcoords="offset points", color=INK, fontsize=10)
    axes.axhline(top, color=MUTED, lw=1, ls=":")
    axes.annotate("SGEMM", (right, top), xytext=(0, -11), ha="right",
                  textcoords="offset points", color=INK, fontsize=10)
    markers = {"requested": "o", "L2": "s", "DRAM": "^"}
    for (label, rate, found), colour in zip(points, SERIES):
        for kind, x in found.items():
            axes.plot([x], [rate], markers[kind], color=colour, ms=7)
        axes.plot(list(found.values()), [rate] * len(found), color=colour, lw=0.8)
        under = any(rate < other < 1.3 * rate for _, other, _ in points)  # a near one has the room
        axes.annotate(label, (min(found.values()), rate), xytext=(-3, -15 if under else 7),
                      textcoords="offset points", color=INK, fontsize=10)
        said.append(f"{label}: {rate:.1f} TFLOP/s at " + ", ".join(
            f"{x:,.0f} operations a byte {kind}" for kind, x in found.items()))
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(thousands))
        axis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100]))
    axes.set_ylim(min(2.0, *(rate for _, rate, _ in points)) / 1.5, 110)
    axes.set_xlabel("operations per byte (circle: requested, square: L2, triangle: DRAM)")
    axes.set_ylabel("TFLOP/s")
    return finish(figure, _slug(item, "roofline"), f"Roofline. {'; '.join(filter(None, said))}.",
                  f"Roofline, N = {n:,}, one head", "recorded", note)


def from_memory(item, note):
    """A Sentence on what the triangles of the rungs stand for, where they were counted."""
    counted = {c.rung: c.dram_bytes for c in item.bench.counters or [] if c.n == ROOFLINE_N}
    if not counted.keys() >= {RUNGS[0].number, BEST.number}:
        return []
    moved = " and ".join(f"{mib(counted[r.number])} MiB for rung {r.number}"
                         for r in (RUNGS[0], BEST))
    return [Sentence(f"Q, K, V and O hold {mib(of(ROOFLINE_N).tensor_bytes)} MiB. Device memory "
                     f"moved {moved}; the rest was in L2, where the launches before had left it.",
                     "recorded", note)]


def _points(item, n):
    """[(label, TFLOP/s, {kind of bytes: operations per byte})] of what the plot shows."""
    work, found = of(n).operations, []
    times_of = {t.what: t.median_ms for t in item.times if t.n == n}
    if n in TABLE_N and "materialised" in times_of:
        bytes_of = {"requested": paths.requested_by_path(n)["materialised"]}
        counted = [c for c in item.counters or [] if c.n == n
                   and c.kernel in paths.kernels_of("materialised")]
        if counted:
            bytes_of["L2"] = sum(c.l2_bytes for c in counted)
            bytes_of["DRAM"] = sum(c.dram_read_bytes + c.dram_write_bytes for c in counted)
        found.append(("materialised", times_of["materialised"], bytes_of))
    counted = {c.rung: c for c in item.bench.counters or [] if c.n == n}
    for r in (RUNGS[0], SMALL, BEST):
        row = row_of(item.bench, r, n)
        if row is None:
            continue
        bytes_of = {"requested": requested(r, n, row.splits)}
        if r.number in counted:
            bytes_of |= {"L2": counted[r.number].l2_bytes, "DRAM": counted[r.number].dram_bytes}
        found.append((f"rung {r.number}", row.median_ms, bytes_of))
    return [(label, work / (ms * 1e9), {kind: work / b for kind, b in bytes_of.items() if b})
            for label, ms, bytes_of in found]
