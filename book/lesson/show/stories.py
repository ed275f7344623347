"""What came of each rung's prediction, and the count that says why, in sentences.

The time of a launch is its instructions over what the SMs issue: SMs x clocks x the share of the
time in which an SM has work x the share of those clocks in which a scheduler issues. So one of
three things makes a rung slower or faster, and the counters tell which.
"""

import math
from dataclasses import dataclass

from ..launch import rungs
from ..machine import gpus
from ..measure import evidence
from ..measure.records import RungCounters
from ..tables import Sentence, mib
from .marks import NO_BENCH, NO_TENSOR, origin

SHOWN_N = (4096, 16384)
COUNTED_N = 4096

NEAR = 0.015  # a ratio so close to the prediction is as predicted; or within a quarter of the gain

WAITS = {
    "short_scoreboard": "what it had asked of shared memory",
    "long_scoreboard": "what it had asked of global memory",
    "lg_throttle": "a place in the queue to global memory",
    "mio_throttle": "a place in the queue to shared memory",
    "barrier": "other warps at a barrier",
    "wait": "the fixed time of its own last instruction",
    "no_instruction": "its next instruction to be fetched",
    "dispatch_stall": "the dispatcher (two operands in one bank of registers are such a case)",
    "math_pipe_throttle": "a free arithmetic unit",
    "branch_resolving": "a branch to be decided",
}


def row_called(found, what, n, heads=1):
    """A Row of a Bench by what was timed, or None."""
    return next((row for row in found.rows
                 if (row.what, row.n, row.heads) == (what, n, heads)), None)


def row_of(found, r, n, heads=1):
    """A rung's Row of a Bench, or None; not the row of the lesson's choice."""
    return row_called(found, r.label, n, heads)


def compared(this, that):
    """'1.30 times as fast as', or how much slower, from two Rows."""
    ratio = that.median_ms / this.median_ms
    if ratio >= 1:
        return f"{ratio:.2f} times as fast as"
    return f"{1 / ratio:.2f} times the time of"


def story(r):
    """Sentences on what came of rung ``r``: times, how they meet the prediction, and why."""
    if r not in rungs.RUNGS:
        return [told for item in evidence.shown("tensor") for told in _on_tensor_cores(r, item)] \
            or [Sentence(f"What came: {NO_TENSOR}.", "computed")]
    return [told for item in evidence.shown("bench") for told in _told(r, item)] or [
        Sentence(f"What came: {NO_BENCH}.", "computed")]


def _on_tensor_cores(r, item):
    """The Sentences of one recorded run, whose rungs and predictions are not the ladder's."""
    found, expected = item.tensor, dict(r.expected)
    came, worst = [], max((g for g in found.gates if g.path == r.name),
                          key=lambda g: g.fraction, default=None)
    base = rungs.before(r)
    for n in sorted({*SHOWN_N, *expected}):
        this = next((row for row in (*found.rows, *found.failing)
                     if (row.what, row.n, row.heads) == (r.label, n, 1)), None)
        that = row_of(found, base, n)
        if this:
            guess = f", where {expected[n]:g} was predicted" if n in expected else ""
            rate = this.problem.operations / (this.median_ms * 1e9) / found.ceiling.tflops
            came.append(f"{this.median_ms:.4f} ms at N = {n:,}{guess}: {rate:.2f} times the rate "
                        "of SGEMM" + (f", {compared(this, that)} rung {base.number}"
                                      if that and not r.fails else ""))
    if not came or worst is None:
        return []
    gate = (f"at {worst.fraction:.3g} of the gate at worst ({worst.case}, N = {worst.n:,})"
            if worst.passed else
            f"outside the gate, by {worst.fraction:.0f} times on {worst.case}, so it has no time "
            "among the others")
    words = [f"What came: {gate}; {'; '.join(came)}."]
    counted = {c.rung: c.tensor for c in found.counters or []}
    if counted.get(r.number) is not None:
        before = counted.get(base.number) if base in rungs.ALL[len(rungs.RUNGS):] else None
        words.append(f"The count: tensor cores were busy in {counted[r.number]:.0%} of the cycles "
                     f"at N = {COUNTED_N:,}"
                     + (f", where it was {before:.0%} in rung {base.number}." if before else "."))
    return [Sentence(word, "recorded", origin(item)) for word in words]


def _told(r, item):
    """The Sentences of one recorded run."""
    base, came, verdicts, ratios = rungs.before(r), [], {}, {}
    predicted = {n: bounds for n, *bounds in r.predicted}
    for n in SHOWN_N:
        this, that = (row_of(item.bench, x, n) for x in (r, base))
        if this and that:
            ratios[n] = that.median_ms / this.median_ms
            came.append(f"{this.median_ms:.4f} ms at N = {n:,}, {compared(this, that)} rung "
                        f"{base.number}")
            if n in predicted:
                verdicts[n] = verdict(ratios[n], *predicted[n])
    if not came:
        return []
    words = [f"What came: {'; '.join(came)}. {_judged(verdicts)} " + _slower_elsewhere(
        r, base, item, any(ratio < 1 for ratio in ratios.values()))]
    counted = {c.rung: c for c in item.bench.counters or [] if c.n == COUNTED_N}
    if COUNTED_N in ratios and {r.number, base.number} <= counted.keys():
        about = Pair(counted[r.number], counted[base.number], r, base, item)
        aim = r.aim
        if verdicts.get(COUNTED_N, AS_PREDICTED) == AS_PREDICTED and ratios[COUNTED_N] > 0.995:
            said = f"The count: {about.count(aim)}." if aim else ""
        else:
            said = about.why(ratios[COUNTED_N], verdicts.get(COUNTED_N), aim)
        words.append(f"{said} {about.l2()}".strip())
    return [Sentence(word.strip(), "recorded", origin(item)) for word in words if word]


def _slower_elsewhere(r, base, item, already):
    """The other N at which the rung is slower by 2 % or more."""
    found = {}
    for n in sorted({row.n for row in item.bench.rows} - set(SHOWN_N)):
        this, that = (row_of(item.bench, x, n) for x in (r, base))
        if this and that and this.median_ms > 1.02 * that.median_ms:
            found[f"{n:,}"] = f"{this.median_ms / that.median_ms:.2f}"
    if not found:
        return ""
    return (f"{'Slower also' if already else 'But slower'} at N = {' and '.join(found)}: "
            f"{' and '.join(found.values())} times the time.")


AS_PREDICTED = "as predicted"
SHORT = ("less than predicted", "slower, against the prediction")


def verdict(ratio, low, high):
    """How a ratio of times meets the predicted ones, in words."""
    near = max(NEAR, 0.25 * abs((low + high) / 2 - 1))
    if low - near <= ratio <= high + near:
        return AS_PREDICTED
    if ratio > high:
        return "better than predicted"
    return SHORT[ratio < 1 - NEAR <= low]


def _judged(verdicts):
    """'At N = 4,096 that is as predicted, at N = 16,384 less than predicted.'"""
    if not verdicts:
        return ""
    if len(set(verdicts.values())) == 1:
        return f"That is {next(iter(verdicts.values()))}."
    return "That is " + ", ".join(f"{said} at N = {n:,}" for n, said in verdicts.items()) + "."


def blocks(r, row):
    """Blocks of the grid of a Row of rung ``r``."""
    return -(-row.n // r.bm) * row.splits * row.heads


def share(c, what):
    """The part of a warp's time that one reason to wait takes, of all that were counted."""
    return c.stalls.get(what, 0) / (1 + sum(c.stalls.values()))


def factors(a, b):
    """{count: times the time that it alone would make of it}, of rung counters a against b."""
    return {"instructions": a.instructions / b.instructions, "busy": b.busy / a.busy,
            "issued": b.issued / a.issued}


@dataclass(frozen=True)
class Pair:
    """What was counted of a rung (a) and of the rung that it changes (b), in one recorded run."""

    a: RungCounters
    b: RungCounters
    rung: rungs.Rung
    base: rungs.Rung
    item: evidence.Evidence

    def count(self, what):
        """A count of the rung beside the one before, in words a learner can use."""
        a, b, base = self.a, self.b, self.base.number
        if what == "instructions":
            return (f"{a.instructions / 1e6:.1f} million instructions, where rung {base} issued "
                    f"{b.instructions / 1e6:.1f}")
        if what == "shared_wavefronts":
            return (f"{a.shared_wavefronts / 1e6:.1f} million passes through shared memory, where "
                    f"rung {base} made {b.shared_wavefronts / 1e6:.1f}")
        if what == "local_bytes":
            return (f"{mib(a.local_bytes)} MiB moved to and from local memory, where it was "
                    f"{mib(b.local_bytes)}")
        if what == "busy":
            now, then = (blocks(r, row_of(self.item.bench, r, COUNTED_N))
                         for r in (self.rung, self.base))
            sms = self.item.versions.get("sms") or gpus.H200.sms
            idle = "the SMs had nothing to do: " if now < min(then, sms) else ""
            return (f"{idle}{now:,} blocks for {sms} SMs, where it was {then:,}, so that an SM had "
                    f"work in {a.busy:.0%} of the time, where it was {b.busy:.0%}")
        if what == "issued":
            return (f"a scheduler with work issued an instruction in {a.issued:.0%} of the clocks, "
                    f"where it was {b.issued:.0%}")
        return (f"a warp waited for {WAITS[what]} in {share(a, what):.0%} of its time, where it "
                f"was {share(b, what):.0%}")

    def why(self, ratio, verdict, aim):
        """The counts that say why the rung is ``ratio`` times as fast, and not what was expected.

        What held a disappointing rung back, or what made another one so fast.
        """
        found = {k: math.log(x) for k, x in factors(self.a, self.b).items()}
        short = verdict in SHORT or ratio < 1
        most = sorted(found, key=found.get, reverse=short)
        for_it = [k for k in most if (found[k] > 0) == short and abs(found[k]) >= 0.01]
        if not for_it:
            if aim in WAITS:
                return f"Why: there was little to save: {self.count(aim)}."
            return ("Why: nothing that was counted stands against it"
                    + (f", and this is all it saved: {self.count(aim)}." if aim else "."))
        first, *others = for_it
        said = [first] + [k for k in others if abs(found[k]) >= 0.6 * abs(found[first])]
        words = "; ".join(self.count(k) + self._reason(k, short) for k in said)
        against = [k for k in most if (found[k] > 0) != short and abs(found[k]) >= 0.01]
        if against and ratio < 1:
            words += f". Against that stands: {self.count(against[-1])}"
        elif aim and aim not in said:
            words += f". What it was for: {self.count(aim)}"
        return f"Why: {words}."

    def _reason(self, what, longer):
        """What warps waited longer (or less) for, where that is the point."""
        if what != "issued":
            return ""
        moved = {k: share(self.a, k) - share(self.b, k)
                 for k in {*self.a.stalls, *self.b.stalls} & WAITS.keys()}
        most = (max if longer else min)(moved, key=moved.get, default=None)
        if most is None or (moved[most] > 0) != longer or abs(moved[most]) < 0.01:
            return ""
        return f", since {self.count(most)}"

    def l2(self):
        """What passed through L2, where that changed by a quarter or more."""
        a, b = self.a.l2_bytes, self.b.l2_bytes
        if not b or 0.8 < a / b < 1.25:
            return ""
        return f"Through L2 went {mib(a)} MiB, where it was {mib(b)}."
