"""The ladder: what each rung launches, how its keys are split, and which kernel is best here.

Rung 1 is the lesson's own kernel, ``online.cu``; the others are files of ``kernels/ladder/``. All
take (q, k, v, o, n, scale). From rung 5 on the keys may be split over blocks: then ``o`` is a
workspace, and ``mergeSplits`` of ``merge.cu`` makes the output from it.
"""

import re
from dataclasses import dataclass, field

import numpy as np

from . import cases, paths, source, traffic
from .edits import current
from .errors import ArgumentError
from .occupancy import ARCHS, H200, KernelFacts, occupancy

D = 64
MERGE = "ladder/merge"
MERGE_THREADS = 128
MERGE_ROWS = MERGE_THREADS // (D // 4)  # a thread has 4 of a row's 64 columns
LOG2E = 1.4426950408889634
PART_BYTES = 4 * (D + 2)  # what a split leaves of a row: o, m and l


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
    heads: bool = True  # takes several heads in one launch
    splits: bool = True  # keys may be split over blocks
    unit: float = 1.0  # m counts powers of 2^unit
    # Time that 1, 2, .. blocks on one SM need for the same keys, measured on an H200; 1 is half of
    # what two blocks of rung 11 need.
    together: tuple = (1.2, 2.0)
    asynchronous: bool = False  # uses cp.async: sm_80 and newer
    registers: int = 255  # of a thread, at most: what launch bounds leave it
    fills: bool = False  # splits keys so that every SM has as many blocks as it holds

    @property
    def label(self):
        return f"{self.number}. {self.idea}"


def _padded(bn=64):
    """Shared bytes of rungs 3 to 10: Q, K and P in padded lines, V in whole ones."""
    return 4 * (128 * 68 + bn * 68 + bn * D + 128 * 68)


def _swizzled(bn):
    """Shared bytes of rungs 11 and 12: K in padded lines, the rest in whole ones."""
    return 4 * (D * 128 + D * (bn + 4) + bn * D + bn * 128)


def _wide(number, name, idea, bn=64, shared=None, **more):
    return Rung(number, f"ladder/{number:02}_{name}", idea, 128, bn, 128,
                _padded() if shared is None else shared, **more)


RUNGS = (
    Rung(1, "online", "the lesson's kernel", 64, 32, 256, heads=False, splits=False),
    Rung(2, "ladder/02_registers", "state in registers", 64, 32, 256, heads=False, splits=False),
    _wide(3, "tile", "8 x 8 a thread", splits=False),
    _wide(4, "async", "asynchronous copies", splits=False, asynchronous=True),
    _wide(5, "split", "keys split over blocks", unit=LOG2E, asynchronous=True),
    _wide(6, "exp2", "exponentials to base 2", asynchronous=True),
    _wide(7, "lazy", "rescale when it matters", asynchronous=True),
    _wide(8, "float4", "weights as float4", asynchronous=True),
    _wide(9, "transposed", "transposed tiles, unrolled", asynchronous=True),
    _wide(10, "order", "order of the products", asynchronous=True),
    _wide(11, "swizzle", "swizzle", shared=_swizzled(64), asynchronous=True),
    _wide(12, "warps", "more warps", 32, _swizzled(32), asynchronous=True, registers=168,
          fills=True, together=(1.2, 2.05, 2.95)),
    _wide(13, "small", "48 KiB, for a T4", 32, 0, together=(1.3, 2.2)),
)
BEST, SMALL = RUNGS[10], RUNGS[12]  # the final kernels, for sm_80 and newer and for a T4
FINAL = (BEST, RUNGS[11], SMALL)  # what choose() compares: more warps pay where tiles are many

ENDS = 32  # a block spends the time of about so many keys before its first tile and after its last
SPARE = 0.04  # fewer splits win over an estimate that is better by less than this


def rung(which):
    """The Rung of a number, a source's name, or a Rung itself."""
    for r in RUNGS:
        if which in (r, r.number, r.name, r.name.removeprefix("ladder/")):
            return r
    raise ArgumentError(f"no rung is called {which!r}; there are 1 to {len(RUNGS)}: "
                        + ", ".join(r.name.removeprefix("ladder/") for r in RUNGS))


@dataclass(frozen=True)
class Split:
    """Into how many parts the keys go, and what was estimated for it."""

    splits: int
    blocks: int
    work: float  # keys that the busiest SM walks along, weighed by what shares it


def split(r, n, heads=1, sms=H200.sms, resident=2):
    """Choose the number of splits of rung ``r`` from N, its tile and the SMs. Returns a Split.

    A grid has ceil(N / bm) x splits x heads blocks; the busiest SM gets ceil(blocks / sms) of them,
    ``resident`` at a time, and each walks along ceil(tiles / splits) tiles. The fewest splits
    within 4 % of the least work win: every split more is another partial output to write and merge.
    """
    tiles, rows = n // r.bn, -(-n // r.bm) * heads
    resident = min(resident, len(r.together))
    found, full = [], []
    for splits in range(1, (min(tiles, 64) if r.splits else 1) + 1):
        rounds, rest = divmod(-(-rows * splits // sms), resident)
        # What is left after full rounds does not spread evenly: some SMs get one block more.
        most = min(resident, rest + (rounds > 0))
        time = rounds * r.together[resident - 1] + (r.together[most - 1] if rest else 0)
        found.append(Split(splits, rows * splits, time * (-(-tiles // splits) * r.bn + ENDS)))
        if not rest:
            full.append(found[-1])
    if r.fills and full:
        found = full
    least = min(s.work for s in found)
    return next(s for s in found if s.work <= least * (1 + SPARE))


def blocks_on(r, gpu, facts=None):
    """Blocks of rung ``r`` that an SM of ``gpu`` (occupancy.Gpu) holds at once; 0 if none fits.

    ``facts``: the compiler's, where they are known; else a thread is taken to have the most
    registers that it may.
    """
    if r.asynchronous and int(gpu.arch[3:]) < 80:
        return 0
    if facts is None:
        facts = KernelFacts("attentionOnline", r.registers, 48 * 1024 if r is SMALL else 0, 0, 0)
    reserved = gpu.shared_reserved
    if r.shared + facts.shared_bytes > min(gpu.shared_bytes - reserved, 227 * 1024):
        return 0
    return occupancy(facts, r.threads, gpu, r.shared).blocks


@dataclass(frozen=True)
class Choice:
    """The kernel for a device and an N, its split, and why."""

    rung: Rung
    split: Split
    why: str


def choose(n, heads=1, gpu=H200, sms=None, facts=None):
    """The best of the final kernels for N keys and ``heads`` heads on ``gpu``: a Choice.

    What does not fit on the device is out; of the others the one with the least estimated work
    wins. ``facts``: ``{rung number: KernelFacts}`` where known.
    """
    sms = sms or gpu.sms or H200.sms
    found, out = [], []
    for r in FINAL:
        resident = blocks_on(r, gpu, (facts or {}).get(r.number))
        if resident:
            found.append((split(r, n, heads, sms, resident), r, resident))
        else:
            out.append(r.number)
    found.sort(key=lambda f: f[0].work)
    (chosen, r, resident), *others = found
    why = (f"rung {r.number}, {r.shared or 48 * 1024:,} bytes of shared memory, {resident} "
           f"block{'s' * (resident > 1)} at once on each of {sms} SMs, keys in {chosen.splits} "
           f"part{'s' * (chosen.splits > 1)}")
    if others:
        why += f"; estimated at {chosen.work:,.0f} keys of an SM's time, " + ", ".join(
            f"rung {other.number} at {s.work:,.0f}" for s, other, _ in others)
    if out:
        why += f"; {_rungs(out)} not run on {gpu.arch}"
    return Choice(r, chosen, why)


def _rungs(numbers):
    """'rung 11 does', 'rungs 11 and 12 do'."""
    if len(numbers) == 1:
        return f"rung {numbers[0]} does"
    return f"rungs {', '.join(map(str, numbers[:-1]))} and {numbers[-1]} do"


def device_gpu(backend):
    """(occupancy.Gpu, SM count) that a backend stands for; emulated: an H200."""
    if backend.mark != "live":
        return H200, H200.sms
    known = ARCHS.get(backend.arch) or max(
        (g for g in ARCHS.values() if int(g.arch[3:]) <= int(backend.arch[3:])),
        key=lambda g: int(g.arch[3:]), default=ARCHS["sm_75"])
    return known, backend.versions()["sms"]


class Programs:
    """Compiled rung and merge, launched by the name of the kernel."""

    def __init__(self, *programs):
        self.backend = programs[0].backend
        self._of = {name: p for p in programs for name in p.source.kernels}

    def launch(self, kernel, *rest):
        return self._of[kernel].launch(kernel, *rest)

    def enqueue(self, kernel, *rest):
        self._of[kernel].enqueue(kernel, *rest)


@dataclass
class LadderPlan(paths.Plan):
    """A rung ready to run. ``splits`` parts of the keys; ``bytes`` of device memory in all."""

    rung: Rung = None
    splits: int = 1
    bytes: int = 0
    why: str = field(default="")


def plan(backend, which, q, k, v, splits=None):
    """A LadderPlan of a rung, or of the best kernel for this device where ``which`` is 'best'.

    q, k, v: backend arrays (N, 64) or (heads, N, 64), float32, C-contiguous; N a multiple of 64.
    ``splits``: parts of the keys; by the rule of ``split`` where it is None.
    Raises ArgumentError for inputs, a split or a device that the kernel cannot work with.
    """
    n, heads = check(backend, q, k, v)
    gpu, sms = device_gpu(backend)
    if which == "best":
        choice = choose(n, heads, gpu, sms)
        r, why = choice.rung, choice.why
    else:
        r, why = rung(which), ""
    if heads > 1 and not r.heads:
        raise ArgumentError(f"rung {r.number} takes one head, q has {heads}: "
                            "use rung 3 or later, or one launch a head")
    if splits is None:
        splits = split(r, n, heads, sms, max(blocks_on(r, gpu), 1)).splits
    if splits != 1 and not r.splits:
        raise ArgumentError(f"splits = {splits}: rung {r.number} does not split keys; "
                            "rungs 5 and later do")
    if not 1 <= splits <= n // r.bn:
        raise ArgumentError(f"splits = {splits}: N = {n} has {n // r.bn} tiles of {r.bn} keys, "
                            "and each part needs at least one")
    needed = traffic.working_memory(n)["online"] * heads
    needed += heads * n * splits * PART_BYTES if splits > 1 else 0
    output = 4 * heads * n * D + (heads * n * splits * PART_BYTES if splits > 1 else 0)
    if output > backend.free_bytes():
        raise ArgumentError(f"n = {n}: rung {r.number} needs {output / traffic.MIB:,.0f} MiB more, "
                            f"{backend.free_bytes() / traffic.MIB:,.0f} MiB are free; choose a "
                            "smaller N, or fewer splits")
    program = backend.compile(current(r.name))
    o = backend.full((heads, n, D) if q.ndim == 3 else (n, D), np.nan)
    grid = (-(-n // r.bm), splits, heads) if r.bm == 128 else (n // r.bm,)
    inputs = {"q": q, "k": k, "v": v}
    if splits == 1:
        steps = [("attentionOnline", grid, (r.threads,), (q, k, v, o, n, D**-0.5), r.shared)]
        return LadderPlan(Programs(program), steps, o, inputs, [], r, 1, needed, why)
    parts = backend.full((heads * n * splits * (D + 2),), np.nan)
    steps = [
        ("attentionOnline", grid, (r.threads,), (q, k, v, parts, n, D**-0.5), r.shared),
        ("mergeSplits", (n // MERGE_ROWS, heads), (MERGE_THREADS,), (parts, o, n, splits, r.unit)),
    ]
    merge = backend.compile(current(MERGE))
    return LadderPlan(Programs(program, merge), steps, o, inputs, [parts], r, splits, needed, why)


def check(backend, q, k, v):
    """Refuse inputs that the kernels would read as something else. Returns (N, heads)."""
    if getattr(q, "ndim", 2) != 3:
        return paths.check(backend, q, k, v), 1
    for name, array in (("q", q), ("k", k), ("v", v)):
        if not backend.owns(array):
            raise ArgumentError(f"{name} is {type(array).__module__}.{type(array).__name__}, "
                                f"needs {backend.array_name}: use backend.put({name})")
        if array.shape != q.shape:
            raise ArgumentError(f"{name} has shape {array.shape}, q has {q.shape}: "
                                "they must be equal")
        if not array.flags.c_contiguous:
            raise ArgumentError(f"{name} is a view that is not C-contiguous: copy it with "
                                f"{name}.copy()")
    for head in range(len(q)):
        paths.check(backend, q[head], k[head], v[head])
    return q.shape[1], len(q)


def run(backend, which, case, splits=None):
    """Run a rung on a Case once. Returns (output (N, 64) float32, LadderPlan)."""
    planned = plan(backend, which, *(backend.put(x) for x in (case.q, case.k, case.v)), splits)
    return planned.run(), planned


def runnable(backend):
    """The rungs that a backend's device can run: on a T4 those without cp.async, in 64 KiB."""
    gpu, _ = device_gpu(backend)
    return tuple(r for r in RUNGS if blocks_on(r, gpu))


def launch_all(backend, n=128, which=None):
    """Launch every rung that runs here, or one, on ``periodic``: what the profilers watch."""
    case = cases.make("periodic", n)
    for r in runnable(backend) if which is None else (rung(which),):
        run(backend, r, case, min(2, n // r.bn) if r.splits and n <= 256 else None)


def merge(one, other):
    """Merge two parts (m, l, o) of the same rows, NumPy arrays (rows,), (rows,), (rows, d).

    m natural (a weight is exp(score - m)). (-inf, 0, 0) is the part of no keys.
    """
    (m1, l1, o1), (m2, l2, o2) = one, other
    m = np.maximum(m1, m2)
    with np.errstate(invalid="ignore"):  # -inf - -inf: no keys on either side
        w1 = np.where(m1 == m, 1.0, np.exp(m1 - m)).astype(m.dtype)
        w2 = np.where(m2 == m, 1.0, np.exp(m2 - m)).astype(m.dtype)
    return m, l1 * w1 + l2 * w2, o1 * w1[:, None] + o2 * w2[:, None]


_PREDICTION = re.compile(r"^// Prediction: (.*(?:\n// (?![A-Z][a-z]+ it |Why )[^\n]*)*)", re.M)


def prediction(which):
    """What a rung's header predicted before it was measured, in one line."""
    found = _PREDICTION.search(source.read(rung(which).name))
    return " ".join(found[1].replace("\n//", " ").split()) if found else ""


def difference(which):
    """A rung's file against the one before, as a list of unified-diff lines, headers left out."""
    import difflib

    r = rung(which)
    if r.number == 1:
        raise ArgumentError("rung 1 is the lesson's kernel: there is none before it")
    before, after = (_body(source.read(x.name)) for x in (rung(r.number - 1), r))
    return list(difflib.unified_diff(before, after, rung(r.number - 1).name + ".cu",
                                     r.name + ".cu", n=2, lineterm=""))


def _body(text):
    """Lines of a source without its header and its snippet marks."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line and not line.startswith("//"))
    return [line for line in lines[start:]
            if not line.startswith(("// snippet: ", "// end snippet"))]
