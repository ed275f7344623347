"""The ladder beside what a reader would call, as tables."""

from ..launch import ladder, rungs
from ..measure import bench, evidence
from ..measure.bench import share
from ..problem.problem import D
from ..tables import Folded, Sentence, Table, Tables, ms
from .marks import NO_BENCH, origin
from .stories import compared, row_called, row_of

CHOICE = "the lesson's choice"
CUBLAS = "cuBLAS, CuPy softmax, cuBLAS"


def callers():
    """Every rung, the lesson's choice and the callers, in one recorded run: tables, a sentence."""
    parts = []
    for item in evidence.shown("bench"):
        first, *more = [times_table(item.bench, heads, "recorded", origin(item))
                        for heads in sorted({row.heads for row in item.bench.rows})]
        more.append(spread_table(item.bench, 4096, 1, "recorded", origin(item)))
        parts += [first, *(Folded(t.title, t) for t in more if t.rows), *_verdict(item)]
    return Tables(parts or [Sentence(NO_BENCH, "computed")])


def _verdict(item):
    """The choice against each caller and the first kernel, at N = 4096, one head."""
    n, found = 4096, item.bench
    ours = row_called(found, CHOICE, n)
    if ours is None:
        return []
    first = row_of(found, rungs.RUNGS[0], n)
    rest = [row for row in found.rows if (row.n, row.heads, row.rung) == (n, 1, 0)]
    words = [f"{compared(ours, row)} {row.what}" for row in rest]
    if first:
        words.append(f"{compared(ours, first)} the lesson's first kernel")
    return [Sentence(f"At N = {n:,}, one head, the lesson's choice is rung {ours.rung} in "
                     f"{ours.splits} parts: {'; '.join(words)}. It reaches "
                     f"{bench.share(ours, found.ceiling):.0%} of the SGEMM rate.", "recorded",
                     origin(item))]


def requested(r, n, splits=1):
    """Bytes of global memory that a rung and its merge ask for; n a multiple of its rows."""
    blocks, row = n // r.bm, 4 * D
    total = 2 * n * row * blocks + n * row * splits + n * row  # K and V; Q for each part; O
    if splits > 1:
        total += 2 * n * splits * ladder.PART_BYTES  # the parts, written and read
        # the 16 threads of a row in mergeSplits each read its (m, l) of every part
        total += n * splits * 8 * (D // 4 - 1)
    return total


def times_table(bench, heads=1, mark="live", note=""):
    """One number of heads: the time of each row per N, and its share of the SGEMM rate."""
    ns = sorted({row.n for row in bench.rows if row.heads == heads})
    title = "one head" if heads == 1 else f"{heads} heads in one launch"
    t = Table(f"Time in ms, {title}",
              ["what", *(f"N = {n:,}" for n in ns), *(f"of SGEMM, {n:,}" for n in ns[-2:])],
              note=note)
    for what in dict.fromkeys(row.what for row in bench.rows if row.heads == heads):
        rows = {r.n: r for r in bench.rows if r.heads == heads and r.what == what}
        t.add(mark, what, *(f"{rows[n].median_ms:.4f}" if n in rows else "–" for n in ns),
              *(f"{share(rows[n], bench.ceiling):.1%}" if n in rows else "–" for n in ns[-2:]))
    t.footer = (f"SGEMM, N = {bench.ceiling.n:,}: {bench.ceiling.tflops:.1f} TFLOP/s. CUDA graphs; "
                "median of 5 rounds; each row passed its gate before and after"
                + "".join(f"\n{message}" for message in bench.refused))
    return t


def spread_table(bench, n=4096, heads=1, mark="live", note=""):
    """One N in full: splits, gate fraction, spread."""
    t = Table(f"N = {n:,}, {heads} head{'s' * (heads > 1)}",
              ["what", "splits", "gate fraction", "time, ms (min–max)", "of SGEMM"], note=note)
    for row in bench.rows:
        if (row.n, row.heads) == (n, heads):
            t.add(mark, row.what, row.splits, f"{row.fraction:.3f}", ms(row),
                  f"{share(row, bench.ceiling):.1%}")
    return t


def bench_tables(bench, mark="live", note=""):
    """Every table of a Bench."""
    heads = sorted({row.heads for row in bench.rows})
    return Tables([*(times_table(bench, h, mark, note) for h in heads),
                   spread_table(bench, 4096, 1, mark, note)])
