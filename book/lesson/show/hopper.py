"""A Hopper GPU: its pipeline in time, what limits it, and what else was checked of its rungs."""

from dataclasses import dataclass

from ..launch import rungs
from ..machine import gpus
from ..measure import evidence
from ..measure.tensor import BY_NVCC
from ..tables import Folded, Sentence, Table, Tables
from ..text import source
from . import tensor, way
from .drawing import BIG, Panel, Picture
from .marks import NO_TENSOR, origin
from .rungs import title

FIRST, JOBS, OVERLAP = (next(r for r in rungs.HOPPER if r.name.endswith(name))
                        for name in ("_wgmma", "_jobs", "_overlap"))
# Products that a warpgroup waits for in a tile, with nothing of its own to do meanwhile: before a
# barrier of the block also one of the other warpgroup; then its scores and its P V; then its
# scores alone.
AWAITED = {FIRST: 3, JOBS: 2, OVERLAP: 1}
GROUPS = 2  # warpgroups that compute
PRODUCTS = 2 * GROUPS  # of a block and tile: scores and P V of each


@dataclass(frozen=True)
class Tile:
    """Clocks of an SM for one tile of a block, from RungCounters; the ends of a block are in it.

    Instructions over schedulers and the share of the clocks in which these issue are the clocks;
    those in which tensor cores are busy go to its products.
    """

    clocks: float
    busy: float  # share of them in which tensor cores compute

    @classmethod
    def of(cls, r, c):
        """The Tile of rung ``r`` with the RungCounters ``c``."""
        p = c.problem
        tiles = -(-p.queries // r.bm) * (p.keys // r.bn) * p.heads
        return cls(c.instructions / (tiles * gpus.H200.partitions * c.issued), c.tensor)

    @property
    def product(self):
        """Clocks of one product of a warpgroup, 64 x 64 over 64, three times."""
        return self.clocks * self.busy / PRODUCTS

    def own(self, awaited):
        """Clocks of a warpgroup's own work, where it waits for ``awaited`` products."""
        return self.clocks - awaited * self.product


def counted(item):
    """``{Rung: RungCounters}`` of the rungs for a Hopper GPU in one recorded run."""
    found = {c.rung: c for c in item.tensor.counters or []}
    return {r: found[r.number] for r in rungs.HOPPER
            if r.number in found and found[r.number].tensor is not None}


# --- the picture ----------------------------------------------------------------------------------

LEFT, LANE, TALL = 76, 24, 18  # px: of the lanes' names, from lane to lane, of a box
LANES = ("copies", "group 1", "group 2", "tensor cores")


def pipeline():
    """Who waits for whom in three rungs: copies, warpgroups and tensor cores, in time."""
    for item in evidence.shown("tensor"):
        found = counted(item)
        if AWAITED.keys() <= found.keys():
            tiles = {r: Tile.of(r, found[r]) for r in AWAITED}
            longest = 2 * max(tile.clocks for tile in tiles.values())
            n = next(iter(found.values())).n
            return Picture([*(_panel(r, tile, longest) for r, tile in tiles.items()), _legend()],
                           f"Who waits for whom, N = {n:,}: lengths from counters, the order from "
                           "the kernels", "recorded", origin(item))
    return Sentence(f"no picture: {NO_TENSOR}, with Nsight Compute", "computed")


def schedule(r, tile, until):
    """``[(lane, what, begin, end)]`` of a rung from 0 to ``until``, in clocks of an SM.

    Lanes by number; what: 'S' or 'PV', a product; 'own'; 'waits', for the other warpgroup. Tensor
    cores work at one product after another. ``copy``: a moment, at which a stage is free.
    """
    p, own, t = tile.product, tile.own(AWAITED[r]), tile.clocks
    if r is FIRST:  # both begin together, at the barrier
        group = [[("S", 0, p), ("own", p, p + own), ("PV", p + own, 2 * p + own),
                  ("waits", 2 * p + own, t)],
                 [("waits", 0, p), ("S", p, 2 * p), ("own", 2 * p, 2 * p + own),
                  ("PV", 2 * p + own, t)]]
        begins, free = (0, 0), 0
    elif r is JOBS:
        group = [[("S", 0, p), ("own", p, p + own), ("PV", p + own, t)]] * 2
        begins, free = (0, t / 2), t / 2
    else:
        group = [[("S", 0, p), ("PV", p, 2 * p), ("own", p, t)]] * 2
        begins, free = (0, t / 2), 2 * p + t / 2
    found = []
    for repeat in range(-1, int(until / t) + 1):
        at = repeat * t
        found.append((0, "copy", at + free, at + free))
        for g in range(GROUPS):
            for what, begin, end in group[g]:
                begin, end = begin + at + begins[g], end + at + begins[g]
                if r is not OVERLAP or what != "PV":  # which runs under its own work
                    found.append((g + 1, what, begin, end))
                if what in ("S", "PV"):
                    found.append((len(LANES) - 1, f"{what}{g + 1}", begin, end))
    return [(lane, what, max(begin, 0), min(end, until)) for lane, what, begin, end in found
            if begin < until and end >= 0 and (end > max(begin, 0) or what == "copy")]


def _panel(r, tile, until):
    scale = (328 - LEFT - 2) / until
    waits = {FIRST: "waits for three products: its own two, and one of the other warpgroup before "
                    "the barrier", JOBS: "waits for its own two products, and no longer for the "
             "other warpgroup", OVERLAP: "waits for its scores alone, since P V runs under its own "
             "work"}[r]
    p = Panel(f"Rung {r.number}, {r.idea}: a tile takes a block {tile.clocks:,.0f} clocks, a "
              f"product {tile.product:,.0f}. In each tile a warpgroup {waits}; its own work takes "
              f"{tile.own(AWAITED[r]):,.0f} clocks. Tensor cores are busy in {tile.busy:.0%}.",
              66 + LANE * len(LANES))
    p.text(0, 14, f"Rung {r.number}: {r.idea}", BIG, bold=True)
    for i, name in enumerate(LANES):
        p.text(0, 39 + LANE * i, name if i else "all copy" if r is FIRST else "one copies")
    for k, (lane, what, begin, end) in enumerate(schedule(r, tile, until)):
        x, y, width = LEFT + scale * begin, 26 + LANE * lane, scale * (end - begin)
        if what == "copy":
            p.line(x, y, x, y + LANE * (GROUPS + 1) - 6, "muted", dash=True)
            p.box(x, y + 3, 7, 10, "ink", solid=True, of=f"{r.number} copy {k}")
            continue
        colour = {"own": "1", "waits": "muted"}.get(what, "2" if lane == 3 else "line")
        p.box(x, y, width, TALL, colour, dash=what == "waits", of=f"{r.number} {lane} {what} {k}")
        letters = {"own": "weights", "waits": "…"}.get(what, what.rstrip("12"))
        if width >= 7 * len(letters) + 1:
            p.text(x + width / 2, y + 13, letters, size=11, anchor="middle")
    y = 26 + LANE * len(LANES)
    p.line(LEFT, y, 326, y, "muted")
    for clock in range(0, int(until) + 1, 2000):
        p.line(LEFT + scale * clock, y, LEFT + scale * clock, y + 4, "muted")
        p.text(LEFT + scale * clock, y + 16, f"{clock:,}", size=11, muted=True,
               anchor="middle" if clock else "start")
    p.text(0, y + 16, "clocks", size=11, muted=True)
    p.text(0, y + 34, f"{tile.clocks:,.0f} a tile: tensor cores busy {tile.busy:.0%}", bold=True)
    return p


def _legend():
    words = ("S, PV in a group's lane: it waits for them",
             "weights: its own work, with what that waits for",
             "…: waits for the other group (in rung 26)",
             "black: a stage is free, and a copy starts;",
             "how long that lasts was not counted",
             "tensor cores: the products, one after another",
             "", "Counted: the clocks of a tile, and the share in",
             "which tensor cores are busy; a block's ends too.",
             "Not counted: how far apart the groups are in",
             "rungs 28 and 29; half a tile is drawn.")
    p = Panel("How to read it. " + " ".join(filter(None, words)), 26 + 16 * len(words))
    p.text(0, 14, "How to read it", BIG, bold=True)
    for i, line in enumerate(words):
        if line:
            p.text(0, 36 + 16 * i, line)
    return p


# --- tables ---------------------------------------------------------------------------------------

BESIDE = (rungs.before(rungs.HOPPER[0]), *rungs.HOPPER)


def times():
    """The rungs beside the fastest before them, float32 rungs and PyTorch; what fails apart."""
    pictures = [way.beside(item, (rungs.BEST, *BESIDE), tensor.SHOWN[:2])
                for item in evidence.shown("tensor")]
    return Tables([*pictures, *(
        Folded(f"{part.title}: the numbers", part) if isinstance(part, Table) else part
        for part in tensor.beside(BESIDE).parts)])


def counters():
    """What the counters saw of each rung, and what limits the last one."""
    parts = []
    for item in evidence.shown("tensor"):
        found, facts = counted(item), {f.kernel: f for f in item.tensor.facts}
        if not found:
            continue
        n = next(iter(found.values())).n
        t = Table(f"Counters of a Hopper GPU, one head, N = {n:,}",
                  ["rung", "tensor cores busy", "clocks a tile", "of these a product",
                   "issue slots used", "instructions, million", "shared passes, million",
                   "SMs with work", "registers", "stack, bytes"], note=origin(item))
        for r, c in found.items():
            tile, f = Tile.of(r, c), facts[r.name]
            t.add("recorded", title(r), f"{c.tensor:.0%}", f"{tile.clocks:,.0f}",
                  f"{tile.product:,.0f}", f"{c.issued:.0%}", f"{c.instructions / 1e6:.1f}",
                  f"{c.shared_wavefronts / 1e6:.1f}", f"{c.busy:.0%}", f.registers,
                  f.local_bytes)
        t.footer = ("clocks a tile: instructions over the four schedulers and the share of clocks "
                    "in which one issues. A product: those in which tensor cores are busy, over "
                    "the four of a tile")
        parts += [Folded(f"{t.title}: the numbers", t), _limit(item, found)]
    return Tables(parts or [Sentence(f"no counters: {NO_TENSOR}, with Nsight Compute", "computed")])


def _limit(item, found):
    """What keeps the last rung from more, in a Sentence."""
    *_, (r, c) = found.items()
    tile = Tile.of(r, c)
    own = tile.own(AWAITED[OVERLAP])
    registers = source_registers(r)
    needed = (GROUPS + 1) * 128 * registers
    words = (f"What limits rung {r.number}: tensor cores are busy in {tile.busy:.0%} of the clocks "
             f"in which an SM has work. A tile takes {tile.clocks:,.0f} clocks, and for {own:,.0f} "
             "of them a warpgroup is at work of its own: weights, and how they become FP16. The "
             f"{PRODUCTS} products of a tile last {PRODUCTS * tile.product:,.0f}, so two "
             "warpgroups cannot keep tensor cores busy. A third has no room: at "
             f"{registers} registers a thread three take {needed:,}, and an SM has "
             f"{gpus.H200.registers:,}. And SMs have work in {c.busy:.0%} of the time at N = "
             f"{c.n:,}")
    return Sentence(f"{words}.", "recorded", origin(item))


def source_registers(r):
    """Registers that a thread which computes takes in rung ``r``, as its file says."""
    return int(source.read(r.name).partition("setmaxnreg.inc.sync.aligned.u32 ")[2].split(";")[0])


def checks():
    """Gates of both compilers, and runs that gave the same bits, of each rung; a sentence first."""
    parts = []
    for item in evidence.shown("tensor"):
        t = Table("Checked", ["rung", "gates, by NVRTC", "worst", "gates, by nvcc", "worst there",
                              "runs", "with other bits"], note=origin(item))
        gates, again = item.tensor.gates, item.tensor.repeats or []
        for r in rungs.HOPPER:
            cells = []
            for compiler in ("", BY_NVCC):
                mine = _gates(gates, compiler, [r])
                cells += [f"{sum(g.passed for g in mine)} of {len(mine)}",
                          f"{max(g.fraction for g in mine):.3f}"] if mine else ["–", "–"]
            runs = [x for x in again if x.rung == r.number]
            t.add("recorded", title(r), *cells, sum(x.runs for x in runs) or "–",
                  sum(x.different for x in runs) if runs else "–")
        tools = [s for s in item.sanitizer or [] if s.target.startswith("tensor cores")]
        said = [f"{s.tool} {'clean' if s.passed else 'NOT CLEAN'}" for s in tools]
        t.footer = ("gates: every case at small N, some at 4,096 and 16,384 (by NVRTC alone), and "
                    "inputs scaled far up and down; worst: the largest gate fraction. Runs: at "
                    + " and ".join(dict.fromkeys(f"{x.heads} x {x.n:,}" for x in again))
                    if again else "no repeated runs were recorded")
        words = "; ".join(said) if said else "did not run"
        numbers = {r.number for r in rungs.HOPPER}
        mine = [x for x in again if x.rung in numbers]
        ended = ", ".join(f"{sum(g.passed for g in found)} of {len(found)} as {by} built them"
                          for by, found in (("NVRTC", _gates(gates, "")),
                                            ("nvcc", _gates(gates, BY_NVCC))))
        parts += [Sentence(
            f"Gates that these rungs passed: {ended}. Runs with another bit than the first: "
            f"{sum(x.different for x in mine)} of {sum(x.runs for x in mine)}. compute-sanitizer "
            f"over all rungs on tensor cores: {words}.", "recorded", origin(item)),
            Folded("Checked, rung by rung", t)]
    return Tables(parts or [Sentence(NO_TENSOR, "computed")])


def _gates(gates, compiler, which=rungs.HOPPER):
    """Gates of some rungs as one compiler built them: NVRTC with '', nvcc with BY_NVCC."""
    paths = {r.name + compiler for r in which}
    return [g for g in gates if g.path in paths]
