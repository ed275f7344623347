"""More than one GPU: bytes and time on paper, runs of a reader's own, and recorded ones."""

from ..errors import ArgumentError, LessonError
from ..machine import backend as backends
from ..machine import gpus
from ..machine.gpus import H200
from ..measure import evidence
from ..problem import cases
from ..progress import Progress
from ..spread import model
from ..spread import run as spread
from ..tables import Sentence, Table, Tables
from .figures import INK, MUTED, SERIES, finish, start, thousands
from .marks import NO_LONG, origin

LARGE_N = 1 << 20
RANKS = (1, 2, 4, 8, 16, 64, 256, 1024)
ON_GPUS, ON_THE_HOST = 1 << 17, 1 << 11  # N of a run that names none
NO_RANKS = ("no recorded run over several GPUs fits these kernels: they need a machine with some "
            "(python -m lesson ranks --record FILE)")


def ranks(what="recorded", n=None, ranks=None, way="merge"):
    """More than one GPU: keys dealt to ranks.

    what: 'bytes' (what N keys move, and how long that takes beside the arithmetic), 'recorded', or
    'run': here, on every GPU that this process sees, joined by NCCL, or on ``ranks`` of them; where
    there are fewer, on ranks of NumPy in this process. way: 'merge' (parts merge) or 'ring' (keys
    pass round). Gated on sampled rows.
    """
    if what not in ("bytes", "recorded", "run"):
        raise ArgumentError(f"what = {what!r}: choose one of bytes, recorded, run")
    if ranks is not None and not (isinstance(ranks, int) and 1 <= ranks <= RANKS[-1]):
        raise ArgumentError(f"ranks = {ranks!r}: choose 1 to {RANKS[-1]:,}")
    if what == "recorded":
        return _recorded()
    if n is not None:
        spread.check(n, way)
    return _bytes(n or LARGE_N) if what == "bytes" else _run(n, ranks, way)


def one_gpu():
    """(Evidence, seconds of one query and one key) of the newest long run of an H200, or None."""
    for item in evidence.shown("long"):
        if gpus.product(item.versions["gpu"]) is H200:
            longest = max(item.long, key=lambda row: row.n)
            return item, longest.seconds / longest.n**2
    return None


def _bytes(n):
    """What each way moves, and its time on the slowest link, beside the time of the arithmetic."""
    found = one_gpu()
    if found is None:
        return Sentence(NO_LONG, "computed")
    item, unit = found
    t = Table(f"N = {n:,} over H200s", ["GPUs", "arithmetic, ms", "merge: MB a GPU", "ms",
                                        "ring: MB a GPU", "ms"],
              note=f"arithmetic from {origin(item)}")
    for p in RANKS[1:]:
        cells = []
        for way in spread.WAYS:
            sent = model.moved_bytes(n, p, way) / p
            cells += [f"{sent / 1e6:,.0f}", f"{1e3 * sent / model.rate(H200, p):.2f}"]
        t.add("computed", p, f"{1e3 * unit * n * n / p:,.2f}", *cells)
    t.footer = (f"up to {model.HOST_GPUS} GPUs over NVLink, {H200.link_bytes_per_s / 1e9:g} GB/s "
                f"each way; beyond over a network, {H200.network_bytes_per_s / 1e9:g} GB/s for "
                "each GPU: datasheets")
    useful = [f"{model.useful_ranks(n, way, unit, H200.network_bytes_per_s):,.0f} by {way}"
              for way in spread.WAYS]
    return Tables([t, Sentence(
        f"Over the network a GPU computes as long as it sends with {' and with '.join(useful)}. "
        "More GPUs than that save no time.", "computed", f"from {origin(item)}")])


def _run(n, count, way):
    """Run here and show what came."""
    live = backends.choose() is not None and backends.choose().mark == "live"
    note = ""
    if live:
        try:
            return here(n or ON_GPUS, count, way)
        except ArgumentError as error:  # fewer GPUs than ranks
            note = str(error)
        except LessonError as error:  # no NCCL
            note = str(error)
    party = spread.in_this_process(count or 4)
    with Progress() as progress:
        found = spread.run(party, cases.make("random", n or ON_THE_HOST), way, progress=progress)
    return table(found, note)


def here(n, count, way):
    """A run on the GPUs of this process. Raises ArgumentError where there are fewer."""
    with spread.gpus_here(count) as party, Progress() as progress:
        return table(spread.run(party, cases.make("random", n), way, progress=progress))


def table(found, note=""):
    """A Result of spread.run."""
    p = len(found.ranks)
    t = Table(f"{p} rank{'s' * (p > 1)} by {found.way}, {found.problem}, {found.case}",
              ["what", "found"])
    t.add(found.mark, "gate", f"passed at {found.verdict.fraction:.3f} of it, "
          f"{found.sampled_rows} rows")
    for what in dict.fromkeys(found.ranks):
        numbers = [str(r) for r, w in enumerate(found.ranks) if w == what]
        t.add(found.mark, f"rank{'s' * (len(numbers) > 1)} {', '.join(numbers)}", what)
    t.add(found.mark, "bytes between ranks", f"{found.moved:,}")
    t.add(found.mark, "query rows of a chunk", f"{found.rows:,}")
    if found.resumed:
        t.add(found.mark, "rows found on disk", f"{found.resumed:,}")
    if found.mark == "live":
        t.add(found.mark, "time, s", f"{found.seconds:.3f}")
    t.footer = note
    return t


def _recorded():
    parts = [recorded_table(item) for item in evidence.shown("several")]
    return Tables(parts or [Sentence(NO_RANKS, "computed")])


def recorded_table(item):
    """The recorded runs of an Evidence over several GPUs, and how well they shared the work."""
    part = item.several
    one = {row.n: row.seconds for row in part.rows if (row.ranks, row.way) == (1, "merge")}
    t = Table("Keys dealt to GPUs", ["N", "GPUs", "way", "time, s", "efficiency",
                                     "MB between GPUs", "gate fraction"],
              note=f"{item.gpu}, {part.date[:10]}")
    for row in part.rows:
        efficiency = f"{one[row.n] / row.seconds / row.ranks:.1%}" if row.n in one else "–"
        t.add("recorded", f"{row.n:,}", row.ranks, row.way, f"{row.seconds:.3f}", efficiency,
              f"{row.moved_bytes / 1e6:,.0f}", f"{row.fraction:.3f}")
    t.footer = ("efficiency: the time of one rank over that of all, times their number; plain: "
                "one GPU without ranks")
    return t


def scale(item, unit, ns=(1 << 16, 1 << 20, 1 << 24)):
    """Time against GPUs, 1 to 1,024, by both ways, with every recorded run as a point."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    figure, axes = start(6.4, 4.6)
    said, counts = [], [2**i for i in range(11)]
    for n, colour in zip(ns, SERIES):
        for way, dash in zip(spread.WAYS, ("-", "--")):
            y = [model.seconds(n, p, way, unit, model.rate(H200, p)) for p in counts]
            axes.plot(counts, y, color=colour, ls=dash, lw=2 if way == "merge" else 1.5)
            said.append(f"N = {n:,} by {way}: {y[0]:.3g} s on one, {y[3]:.3g} s on 8, "
                        f"{y[-1]:.3g} s on 1,024")
        axes.annotate(f"N = {n:,}", (1, unit * n * n), xytext=(4, 7), textcoords="offset points",
                      color=INK, fontsize=10)
    points = [(row.ranks, row.seconds, row.way, row.n) for one in evidence.shown("several")
              for row in one.several.rows if row.way != "plain"]
    for p, y, way, n in points:
        axes.plot([p], [y], "o" if way == "merge" else "s", color=INK, ms=6, mfc="none")
        said.append(f"recorded: N = {n:,} by {way} on {p} in {y:.3g} s")
    axes.axvline(model.HOST_GPUS, color=MUTED, lw=1, ls=":")
    axes.annotate("one machine ends", (model.HOST_GPUS, axes.get_ylim()[1]), xytext=(4, -12),
                  textcoords="offset points", color=INK, fontsize=10)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator([1, 2, 4, 8, 16, 64, 256, 1024]))
    axes.xaxis.set_major_formatter(FuncFormatter(thousands))
    axes.yaxis.set_major_formatter(FuncFormatter(thousands))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.set_xlabel("GPUs (solid: parts merge, dashed: keys pass round)")
    axes.set_ylabel("time, s, at least")
    caption = "Time against GPUs, one head" + (
        "; circles and squares: recorded, merged and by ring" if points else "")
    return finish(figure, "ranks", f"Time against GPUs, log-log. {'; '.join(said)}.", caption,
                  "computed", f"from {origin(item)}")
