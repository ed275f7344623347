"""How keys are split, which kernel is chosen, and the laws of the merge."""

import numpy as np

from ..errors import ArgumentError
from ..launch import ladder, rungs
from ..launch.splits import choose, split
from ..machine import backend as backends
from ..machine import gpus
from ..measure import bench
from ..problem import cases, merge
from ..problem.problem import Problem
from ..tables import Folded, Table, Tables

A100_SMS = 108  # by NVIDIA's A100 datasheet


def split_table(ns=bench.BENCH_N, which=rungs.BEST.number):
    """How the rule splits the keys of a rung on each product that holds it."""
    r = rungs.rung(which)
    t = Table(f"Splits of rung {r.number}, one head",
              ["GPU", "N", "tiles", "blocks unsplit", "places", "splits", "blocks"])
    for gpu in gpus.products():
        resident = rungs.blocks_on(r, gpu)
        for n in ns if resident else ():
            found = split(r, n, gpu.sms, resident)
            t.add("computed", gpu.name, f"{n:,}", f"{n // r.bn:,}", f"{-(-n // r.bm):,}",
                  gpu.sms * resident, found.splits, f"{found.blocks:,}")
    t.footer = "places: SMs times the blocks that one holds at once"
    return t


def choice(ns=bench.BENCH_N, heads=(1, 16), among="fastest"):
    """Which final kernel the lesson takes for each number of heads and N: on each GPU, and here.

    ns, heads: numbers, or one of them. among: 'fastest', all final kernels that are inside the
    gate, or 'best', those on float32 units. Raises ArgumentError for other words.
    """
    if among not in ladder.CHOSEN:
        raise ArgumentError(f"among = {among!r}: choose one of {', '.join(ladder.CHOSEN)}")
    ns, heads = ((x,) if isinstance(x, int) else tuple(x) for x in (ns, heads))
    for n in ns:
        for h in heads:
            ladder.HANDLES.refuse(Problem(n, n, heads=h))
    words = {"fastest": "among all final kernels", "best": "among those on float32 units"}[among]
    t = Table(f"The lesson's choice, {words}: rung, keys in parts",
              ["GPU", "heads", *(f"N = {n:,}" for n in ns)])
    reasons = Table("Why", ["GPU", "heads x N", "why"])
    for name, gpu, sms, which in _devices(ladder.CHOSEN[among]):
        for h in heads:
            cells = []
            for n in ns:
                found = choose(Problem(n, n, heads=h), gpu, sms, among=which)
                cells.append(f"{found.rung.number}, in {found.split.splits}")
                reasons.add("computed", name, f"{h} x {n:,}", found.why)
            t.add("computed", name, h, *cells)
    t.footer = ("The least estimated work wins, in keys of an SM's time; the launches before and "
                "after a rung count. The weights of the estimate were measured on an H200")
    return Tables([t, Folded("Why each", reasons)])


def _devices(among):
    """(name, Gpu, SMs, which of some rungs it is asked for) of products, and of this GPU."""
    found = [(gpu.name, gpu, gpu.sms, among) for gpu in gpus.products()]
    found.insert(1, ("A100", gpus.by_arch()["sm_80"], A100_SMS, among))
    chosen = backends.choose()
    if chosen is not None and chosen.mark == "live":
        found.append(("this GPU", *gpus.of(chosen), rungs.runnable(chosen, among)))
    return found


def merge_table(trials=200, rows=64):
    """The merge on random parts, float32: where each law fails, and by how many units of 2^-23.

    Both products rounded, and contracted as the compiler makes it of merge.cu. In half of the
    parts the maxima lie within a few units, in half they are hundreds apart, so that weights from
    1 down to 0 occur.
    """
    rng, found = np.random.default_rng(6), {}

    def part():
        m = np.where(rng.integers(0, 2, rows), 100, 1) * rng.standard_normal(rows)
        return (m.astype(np.float32), rng.uniform(1, 64, rows).astype(np.float32),
                rng.standard_normal((rows, 64)).astype(np.float32))

    none = (np.full(rows, -np.inf, np.float32), np.zeros(rows, np.float32),
            np.zeros((rows, 64), np.float32))
    for _ in range(trials):
        a, b, c = part(), part(), part()
        pairs = {
            "commutative": (merge.merge(a, b), merge.merge(b, a)),
            "commutative, contracted as in merge.cu": (merge.merge(a, b, contracted=True),
                                                       merge.merge(b, a, contracted=True)),
            "associative": (merge.merge(merge.merge(a, b), c),
                            merge.merge(a, merge.merge(b, c))),
            "no keys change nothing": (merge.merge(a, none), a),
        }
        for law, both in pairs.items():
            found.setdefault(law, []).append(_apart(*both))
    t = Table(f"The merge, {trials} random triples of {rows} rows",
              ["law", "rows that differ", "worst difference, units of 2^-23"],
              note="NumPy float32")
    for law, apart in found.items():
        apart = np.concatenate(apart)
        t.add("computed", law, f"{np.count_nonzero(apart):,} of {apart.size:,}",
              f"{apart.max():.1f}")
    t.footer = "of l relative to l, of o relative to the row's largest |o|; m is equal throughout"
    return t


def _apart(one, other):
    """Relative difference of two parts in each row, in units of 2^-23; inf where m differs."""
    (m1, l1, o1), (m2, l2, o2) = one, other
    apart_l = np.abs(l1 - l2) / np.maximum(np.abs(l2), 1e-30)
    apart_o = np.abs(o1 - o2).max(axis=1) / np.maximum(np.abs(o2).max(axis=1), 1e-30)
    return np.where(m1 == m2, np.maximum(apart_l, apart_o) * 2**23, np.inf)


def rescales(n=1024, names=("periodic", "random", "descending", "ascending", "large"), slack=8.0):
    """How often a warp of 32 rows rescales: at every rise of a maximum, and lazily. Arithmetic.

    Tiles of 64 keys, as in rung 12. ``slack``: in powers of 2, how far a score may exceed m.
    """
    t = Table(f"Rescales of a warp, N = {n:,}",
              ["case", "steps", "some maximum rises", f"rises by more than {slack:g}",
               "largest weight, 2^"])
    for name in names:
        case = cases.make(name, n)
        eager = lazy = steps = 0
        largest = -np.inf
        for row in range(0, n, 32):
            s = case.q[row : row + 32].astype(float) @ case.k.T.astype(float) / 8 * rungs.LOG2E
            top = s.reshape(len(s), -1, 64).max(axis=2)
            m_eager, m = np.full(len(s), -np.inf), np.full(len(s), -np.inf)
            for tile in top.T:
                steps += 1
                eager += bool((tile > m_eager).any())
                m_eager = np.maximum(m_eager, tile)
                if (tile > m + slack).any():
                    lazy += 1
                    m = np.maximum(m, tile)
                largest = max(largest, float((tile - m).max()))
        t.add("computed", name, f"{steps:,}", f"{eager / steps:.0%}", f"{lazy / steps:.0%}",
              f"{largest:.2f}")
    t.footer = "a step is one tile of 64 keys for one warp; each warp's first one rescales"
    return t
