"""The rungs of the ladder: one kernel each, and its launch geometry.

Rung 1 is the lesson's own kernel, ``online.cu``; the others are files of ``kernels/ladder/``. All
take (q, k, v, o, n, scale). From rung 4 on one launch does several heads, from rung 10 on the keys
may be split over blocks.
"""

from dataclasses import dataclass

from ..errors import ArgumentError
from ..machine import gpus
from ..machine.occupancy import KernelFacts, occupancy
from ..problem.problem import D, Handles

MERGE = "ladder/merge"  # the source of mergeSplits
HALVES = "ladder/halves"  # the source of splitTiles, which writes K and V as FP16 hi and lo
IMAGES = "ladder/images"  # the source of splitImages, which does so in the order of wgmma
LOG2E = 1.4426950408889634


@dataclass(frozen=True)
class Rung:
    """One kernel of the ladder and its launch geometry."""

    number: int
    name: str  # of the source: 'online', 'ladder/02_registers'
    idea: str
    bm: int  # query rows of a block
    bn: int  # keys of a tile
    threads: int
    shared: int = 0  # dynamic bytes of shared memory
    static: int = 0  # static ones
    heads: bool = True  # takes several heads in one launch
    splits: bool = True  # keys may be split over blocks
    unit: float = 1.0  # m counts powers of 2^unit
    # Time that 1, 2, .. blocks on one SM need for the same keys, measured on an H200; 1 is half of
    # what two blocks of the swizzle need.
    together: tuple = (1.2, 2.0)
    asynchronous: bool = False  # uses cp.async: sm_80 and newer
    registers: int = 255  # of a thread, at most: what launch bounds leave it
    fills: bool = False  # splits keys so that every SM has as many blocks as it holds
    leaves: int = 0  # the rung that a branch leaves; 0: it follows the one before
    # The header's prediction in numbers: (N, from, to), times as fast as the rung before.
    predicted: tuple = ()
    aim: str = ""  # what it is there to change: a field of RungCounters, or a reason to wait
    expected: tuple = ()  # the same in milliseconds, (N, ms), for a rung on tensor cores
    fails: bool = False  # the gate, as it must: shown, never timed as a result
    halves: bool = False  # takes K and V as splitTiles wrote them
    images: bool = False  # takes K and V as splitImages wrote them: wgmma, so a Hopper GPU alone
    chained: bool = False  # starts before splitImages has ended, and mergeSplits before it has
    # In the same unit, as many keys' time: the launch before the rung, and each split more of 1024
    # rows, whose part is written and merged. 0 where all that are compared have the same.
    launches: int = 0
    merging: float = 0.0

    @property
    def handles(self):
        """The part of a Problem that this rung does."""
        return Handles(f"rung {self.number}", heads=self.heads,
                       more_heads=f"use rung {FIRST_HEADS} or later, or one launch a head")

    @property
    def label(self):
        return f"{self.number}. {self.idea}"


def _rung(number, name, idea, bm=128, bn=64, threads=128, **more):
    return Rung(number, f"ladder/{number:02}_{name}", idea, bm, bn, threads, **more)


# Bytes of dynamic shared memory: lines of Q, K, V and P, some of them padded.
_KEYS = 4 * (64 * D + 64 * (D + 1) + 64 * D + 64 * 64)
_TILE = 4 * (128 * (D + 4) + 64 * (D + 4) + 64 * D + 128 * (64 + 4))
_TRANSPOSED = 4 * (D * 128 + D * (64 + 4) + 64 * D + 128 * (64 + 4))
_P_TRANSPOSED = 4 * (D * 128 + D * (64 + 4) + 64 * D + 4 * 64 * (32 + 4))
_PADDED = 2 * 4 * (64 * (D + 16) + 64 * (D + 4))  # two tiles of K and V


def _swizzled(bn):
    """Only K is padded."""
    return 4 * (D * 128 + D * (bn + 4) + bn * D + bn * 128)


RUNGS = (
    Rung(1, "online", "the lesson's kernel", 64, 32, 256, heads=False, splits=False),
    _rung(2, "registers", "state in registers", 64, 32, 256, heads=False, splits=False,
          predicted=((4096, 1.3, 1.3),), aim="local_bytes"),
    _rung(3, "steps", "steps in functions", 64, 32, 256, heads=False, splits=False,
          predicted=((4096, 0.99, 1.01),)),
    _rung(4, "heads", "heads and a ragged end", 64, 32, 256, splits=False,
          predicted=((4096, 1.0, 1.01),), aim="instructions"),
    _rung(5, "weights", "weights in shared memory", 64, 32, 256, splits=False, registers=128,
          predicted=((4096, 1.1, 1.1), (16384, 1.4, 1.4)), aim="shared_wavefronts"),
    _rung(6, "keys", "two keys a lane", 64, 64, 256, splits=False, registers=128, shared=_KEYS,
          predicted=((4096, 1.2, 1.2),), aim="instructions"),
    _rung(7, "tile", "8 x 8 a thread", splits=False, shared=_TILE,
          predicted=((4096, 1 / 1.8, 1 / 1.8), (16384, 1 / 1.2, 1 / 1.2)), aim="shared_wavefronts"),
    _rung(8, "vec4", "16 bytes at a time", splits=False, shared=_TILE,
          predicted=((4096, 1.1, 1.1),), aim="shared_wavefronts"),
    _rung(9, "async", "asynchronous copies", splits=False, shared=_TILE, asynchronous=True,
          predicted=((4096, 1.1, 1.2),), aim="long_scoreboard"),
    _rung(10, "split", "keys split over blocks", unit=LOG2E, shared=_TILE, asynchronous=True,
          predicted=((4096, 4.0, 4.0), (16384, 1.2, 1.2)), aim="busy"),
    _rung(11, "exp2", "exponentials to base 2", shared=_TILE, asynchronous=True,
          predicted=((4096, 1.04, 1.04),), aim="instructions"),
    _rung(12, "lazy", "rescale when it matters", shared=_TILE, asynchronous=True,
          predicted=((4096, 1.01, 1.02),), aim="instructions"),
    _rung(13, "float4", "weights as float4", shared=_TILE, asynchronous=True,
          predicted=((4096, 1.06, 1.07),), aim="instructions"),
    _rung(14, "outer", "outer products", shared=_TILE, asynchronous=True,
          predicted=((4096, 0.99, 1.01),)),
    _rung(15, "transposed", "Q and K transposed", shared=_TRANSPOSED, asynchronous=True,
          predicted=((4096, 0.99, 1.01),), aim="shared_wavefronts"),
    _rung(16, "ptile", "P transposed", shared=_P_TRANSPOSED, asynchronous=True,
          predicted=((4096, 0.99, 1.01),)),
    _rung(17, "unroll", "loops unrolled by 16", shared=_P_TRANSPOSED, asynchronous=True,
          predicted=((4096, 1.04, 1.04),), aim="instructions"),
    _rung(18, "order", "order of the products", shared=_P_TRANSPOSED, asynchronous=True,
          predicted=((4096, 1.04, 1.04),), aim="dispatch_stall"),
    _rung(19, "swizzle", "swizzle", shared=_swizzled(64), asynchronous=True,
          predicted=((4096, 1.01, 1.02), (16384, 1.0, 1.0)), aim="shared_wavefronts"),
    _rung(20, "warps", "more warps", bn=32, shared=_swizzled(32), asynchronous=True, registers=168,
          fills=True, together=(1.2, 2.05, 2.95),
          predicted=((4096, 1.03, 1.03),), aim="issued"),
    _rung(21, "small", "48 KiB, for a T4", bn=32, static=48 * 1024, together=(1.3, 2.2), leaves=19,
          predicted=((4096, 1 / 1.1, 1 / 1.1),)),
)
_called = {r.name.partition("_")[2]: r for r in RUNGS}
# The final kernels: two for sm_80 and newer, one for a T4.
BEST, WARPS, SMALL = (_called[name] for name in ("swizzle", "warps", "small"))
FINAL = (BEST, WARPS, SMALL)  # what choose() compares: more warps pay where tiles are many
# Tensor cores, past what float32 units can do. One TF32 product fails the gate: it is here to show
# that it does.
TENSOR = (
    _rung(22, "tf32", "tensor cores, one TF32 product", threads=256, shared=_PADDED,
          asynchronous=True, fails=True, leaves=BEST.number, expected=((16384, 0.3),)),
    _rung(23, "three", "three TF32 products", threads=256, shared=_PADDED,
          asynchronous=True, expected=((4096, 0.07), (16384, 0.9))),
    _rung(24, "fp16", "three FP16 products, with scales", shared=2 * 8 * 64 * D, asynchronous=True,
          halves=True, expected=((4096, 0.041), (16384, 0.48)), together=(0.45, 0.71),
          launches=64),
    _rung(25, "turing", "three FP16 products, for a T4", bm=64, static=32 * 1024, halves=True,
          leaves=24, expected=((16384, 1.0),), together=(0.3, 0.55, 0.8), launches=46),
)


def _hopper(number, name, idea, threads=384, **more):
    return _rung(number, name, idea, threads=threads, images=True, asynchronous=True,
                 **{"shared": _STAGES, "registers": 168, "together": (0.2,), "launches": 38,
                    "merging": 2.8, **more})


_STAGES = 6 * (4 * 2 * 64 * D + 2 * 8)  # tiles of four images, each with two barriers
# Tensor cores of a Hopper GPU (compute capability 9.0), which take products from shared memory.
HOPPER = (
    _hopper(26, "wgmma", "products from shared memory", 256, shared=2 * 4 * 2 * 64 * D,
            registers=255, leaves=24, expected=((16384, 0.42),)),
    _hopper(27, "bulk", "bulk copies and barriers in memory", 256, registers=255,
            expected=((16384, 0.37),)),
    _hopper(28, "jobs", "warps of different jobs", expected=((16384, 0.31),)),
    _hopper(29, "overlap", "two products in flight", expected=((16384, 0.28),)),
    _hopper(30, "fold", "the scale inside Q", expected=((16384, 0.3),)),
    _hopper(31, "chained", "launches that overlap", chained=True, launches=22,
            expected=((1024, 0.0094), (4096, 0.0262))),
)
FINAL_AND_TENSOR = (*FINAL, *TENSOR, *HOPPER)  # compared in one run
# What the choice is made among where float32 units need not do it: all final kernels.
FASTEST = (*FINAL, *TENSOR[-2:], HOPPER[-1])
ALL = (*RUNGS, *TENSOR, *HOPPER)
FIRST_HEADS = next(r.number for r in RUNGS if r.heads)
FIRST_SPLIT = next(r.number for r in RUNGS if r.splits)


def names():
    """The names that ``rung`` knows: of the sources, with and without their folder."""
    return {name for r in ALL
            for name in (r.name, r.name.removeprefix("ladder/"))} - {"online"}


def rung(which):
    """The Rung of a number, a source's name, or a Rung itself."""
    for r in ALL:
        if which in (r, r.number, r.name, r.name.removeprefix("ladder/")):
            return r
    raise ArgumentError(f"no rung is called {which!r}; there are 1 to {ALL[-1].number}: "
                        + ", ".join(r.name.removeprefix("ladder/") for r in ALL))


def before(r):
    """The rung that ``r`` changes: the one before it, or the one that a branch leaves."""
    return rung(r.leaves or r.number - 1)


def blocks_on(r, gpu, facts=None):
    """Blocks of rung ``r`` that an SM of ``gpu`` (a Gpu) holds at once; 0 if none fits.

    ``facts``: the compiler's, where they are known; else a thread is taken to have the most
    registers that it may.
    """
    if r.asynchronous and int(gpu.arch[3:]) < 80 or r.images and gpu.arch != "sm_90":
        return 0
    if facts is None:
        facts = KernelFacts("attentionOnline", r.registers, r.static, 0, 0)
    reserved = gpu.shared_reserved
    if r.shared + facts.shared_bytes > min(gpu.shared_bytes - reserved, 227 * 1024):
        return 0
    return occupancy(facts, r.threads, gpu, r.shared).blocks


def runnable(backend, which=RUNGS):
    """Those rungs of ``which`` that a backend can run: without wgmma, say, where it is emulated."""
    return tuple(r for r in which if not missing(r, backend))


def missing(r, backend):
    """What a backend (or None) lacks for rung ``r``, in a sentence; empty if nothing."""
    live = backend is not None and backend.mark == "live"
    if r.images and not (live and gpus.of(backend)[0].arch == "sm_90"):
        return (f"rung {r.number} needs a Hopper GPU (compute capability 9.0: H100, H200, GH200), "
                "for its products are wgmma instructions, which no other GPU has and the emulator "
                "does not know")
    if backend is not None and not blocks_on(r, gpu := gpus.of(backend)[0]):
        return f"this GPU ({gpu.arch}) does not hold a block of rung {r.number}"
    return ""
