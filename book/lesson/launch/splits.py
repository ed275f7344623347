"""Into how many parts a rung's keys go, and which final kernel is best for a device and an N."""

from dataclasses import dataclass, replace

from ..machine.gpus import H200
from ..problem.problem import of
from .rungs import FINAL, Rung, blocks_on

ENDS = 32  # a block spends the time of about so many keys before its first tile and after its last
SPARE = 0.04  # fewer splits win over an estimate that is better by less than this


@dataclass(frozen=True)
class Split:
    """Into how many parts the keys go, and what was estimated for it."""

    splits: int
    blocks: int
    work: float  # keys that the busiest SM walks along, weighed by what shares it; and launches


def split(r, problem, sms=H200.sms, resident=2):
    """Choose a Split of rung ``r``: from the problem, the rung's tile and the SMs.

    A grid has ceil(N / bm) x splits x heads blocks; the busiest SM gets ceil(blocks / sms) of them,
    ``resident`` at a time, and each walks along ceil(tiles / splits) tiles. The fewest splits
    within 4 % of the least work win: every split more is another partial output to write and merge.
    """
    p = of(problem)
    tiles, rows = p.keys // r.bn, -(-p.queries // r.bm) * p.heads
    resident = min(resident, len(r.together))
    found, full = [], []
    for splits in range(1, (min(tiles, 64) if r.splits else 1) + 1):
        rounds, rest = divmod(-(-rows * splits // sms), resident)
        # What is left after full rounds does not spread evenly: some SMs get one block more.
        most = min(resident, rest + (rounds > 0))
        time = rounds * r.together[resident - 1] + (r.together[most - 1] if rest else 0)
        merging = r.merging * splits * p.queries * p.heads / 1024
        found.append(Split(splits, rows * splits,
                           time * (-(-tiles // splits) * r.bn + ENDS) + merging))
        if not rest:
            full.append(found[-1])
    if r.fills and full:
        found = full
    least = min(s.work for s in found)
    chosen = next(s for s in found if s.work <= least * (1 + SPARE))
    return replace(chosen, work=chosen.work + r.launches)


@dataclass(frozen=True)
class Choice:
    """The kernel for a device and an N, its split, and why."""

    rung: Rung
    split: Split
    why: str


def choose(problem, gpu=H200, sms=None, facts=None, among=FINAL):
    """The best of some final kernels for a Problem (or one head of N keys) on ``gpu``: a Choice.

    What does not fit on the device is out; of the others the one with the least estimated work
    wins. ``facts``: ``{rung number: KernelFacts}`` where known.
    """
    sms = sms or gpu.sms or H200.sms
    found, out = [], []
    for r in among:
        resident = blocks_on(r, gpu, (facts or {}).get(r.number))
        if resident:
            found.append((split(r, problem, sms, resident), r, resident))
        else:
            out.append(r.number)
    found.sort(key=lambda f: f[0].work)
    (chosen, r, resident), *others = found
    why = (f"rung {r.number}, {r.shared or r.static:,} bytes of shared memory, {resident} "
           f"block{'s' * (resident > 1)} at once on each of {sms} SMs, keys in {chosen.splits} "
           f"part{'s' * (chosen.splits > 1)}")
    if others:
        why += f"; estimated at {chosen.work:,.0f} keys of an SM's time, " + ", ".join(
            f"rung {other.number} at {s.work:,.0f}" for s, other, _ in others)
    if out:
        why += f"; {_rungs(out)} not run on {gpu.arch}"
    return Choice(r, chosen, why)


def _rungs(numbers):
    """'rung 19 does', 'rungs 19 and 20 do'."""
    if len(numbers) == 1:
        return f"rung {numbers[0]} does"
    return f"rungs {', '.join(map(str, numbers[:-1]))} and {numbers[-1]} do"
