"""What a page draws is what the emulator saw: a recording, and the module that reads it."""

import json
import random
import subprocess

import numpy as np
import pytest
from lesson.machine.emulator import trace as traces
from lesson.stepper import recording, watching
from support import TESTS
from support.emulated import needs_compiler
from support.kernels import edit
from support.online_max import node

pytestmark = needs_compiler

NO_PAD = ("materialised/scores", "[BLK][BLK + 1]", "[BLK][BLK]")
# What is watched: (arguments of watch, an edit).
WATCHED = {
    "scores": (("scoresQKt", (1, 2), 3), None),
    "no pad": (("scoresQKt", 0, 1), NO_PAD),
    "softmax": (("softmaxRows", 7, 0), None),
    "values": (("weightedV", 1, 2), None),
    "online": (("attentionOnline", 0, 5), None),
    "keys": ((6, 0, 1), None),
    "swizzle": ((19, 0, 2), None),
    "race": (("softmaxRows", 0, 0),
             ("materialised/softmax", "    __syncthreads();       // partial", "    // partial")),
}


@pytest.fixture(scope="module")
def watched():
    """{what: (its Trace, its recording)}."""
    import lesson

    found, kept = {}, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watching, "record", lambda trace, source: kept.append(trace)
                      or recording.record(trace, source))
        for what, (arguments, change) in WATCHED.items():
            if change:
                edit(*change)
            data = lesson.watch(*arguments, n=64).data
            lesson.reset()
            found[what] = kept[-1], data
    return found


@pytest.fixture(scope="module")
def drawn(watched):
    """{what: what the module makes of the recording}."""
    asked = json.dumps([data for _, data in watched.values()])
    done = subprocess.run([node(), str(TESTS / "stepper/steps.mjs")], input=asked,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(watched, json.loads(done.stdout), strict=True))


def test_module_by_itself():
    done = subprocess.run([node(), "--test", str(TESTS / "stepper/core.test.mjs")],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("what", WATCHED)
def test_every_step_is_the_emulators(watched, drawn, what):
    """Lane by lane its address, and what it costs: as counted, and as drawn."""
    trace, data = watched[what]
    shown = drawn[what]
    assert shown["numbers"][-1] == data["count"] == len(trace.steps)
    for number, s in zip(shown["numbers"], shown["steps"][:-1], strict=False):
        step = trace.steps[number - 1]
        assert s["kind"] == recording.KINDS[step.kind]
        file, line = trace.sites[step.pc][-1]
        assert data["lines"][s["line"]][0] == line
        assert max(f for f in data["files"] if f[0] <= s["line"])[1] == file
        if step.kind == traces.BARRIER:
            continue
        assert s["offsets"] == [step.offsets.get(lane) for lane in range(32)]
        if step.kind > traces.ATOMIC:
            continue
        assert s["bytes"] == step.bytes
        assert s["counted"] == s["cost"] == step.cost and s["least"] == step.least
        for rows in (s["wide"], s["narrow"]):
            lanes = [lane for row in rows for cell in row["cells"] for lane in cell["lanes"]]
            assert sorted(set(lanes)) == sorted(step.offsets)
        if step.place == traces.SHARED:
            assert len(s["wide"]) == step.cost  # a row is a pass
        else:
            assert sum(len(row["boxes"]) for row in s["wide"]) == step.cost
            assert s["fewest"] == step.least
            assert data["arrays"][s["place"]]["name"] == list(trace.buffers)[step.place]


@pytest.mark.parametrize("what", WATCHED)
def test_what_is_left_out_is_like_what_is_kept(watched, drawn, what):
    trace, data = watched[what]
    numbers = drawn[what]["numbers"]

    def like(step):
        return (trace.sites[step.pc], step.kind, step.place, tuple(step.offsets), step.cost,
                step.least)

    kept = {like(trace.steps[number - 1]) for number in numbers}
    assert {like(step) for step in trace.steps} == kept
    folds = {int(i): sum(steps for _, steps in each) for i, each in data["folds"].items()}
    gaps = {i: b - a - 1 for i, (a, b) in enumerate(zip(numbers, numbers[1:], strict=False))
            if b > a + 1}
    assert folds == gaps


@pytest.mark.parametrize("what", WATCHED)
def test_totals_are_of_the_whole_run(watched, what):
    trace, data = watched[what]
    wanted = {}
    for step in trace.steps:
        if step.kind <= traces.ATOMIC:
            at = wanted.setdefault(trace.sites[step.pc][-1], np.zeros(7, int))
            shared = step.place == traces.SHARED
            at[0 if shared else 3:][:3] += (1, step.cost, step.least)
            at[6] += 0 if shared else step.bytes * len(step.offsets)
    files = dict(data["files"])
    file, found = None, {}
    for i, (line, _) in enumerate(data["lines"]):
        file = files.get(i, file)
        if str(i) in data["totals"]:
            found[file, line] = data["totals"][str(i)]
    assert found == {place: total.tolist() for place, total in wanted.items()}


@pytest.mark.parametrize("what", WATCHED)
def test_stations_are_the_barriers_in_their_order(watched, drawn, what):
    trace, data = watched[what]
    for number, s in zip(drawn[what]["numbers"], drawn[what]["steps"], strict=True):
        if s["kind"] != "b":
            continue
        work = trace.steps[number - 1].work
        assert sorted(w for group in s["station"] for w in group["warps"]) == sorted(work)
        for group in s["station"]:
            for warp in group["warps"]:
                lines = {}
                for pc, times in work[warp].items():
                    place = trace.sites[pc][-1][1]
                    lines[place] = lines.get(place, 0) + times
                assert {data["lines"][i][0]: n for i, n in group["work"]} == lines
    assert [s.pc for s in trace.steps if s.kind == traces.BARRIER] or what == "race"


def test_the_pad_takes_the_conflicts_away(drawn, watched):
    """The stores of K: 2 passes with the pad, 8 without; nothing else changes."""
    def costs(what):
        data = watched[what][1]
        return {data["lines"][int(i)][1].strip()[:11]: total[1:3]
                for i, total in data["totals"].items() if total[0]}
    with_pad, without = costs("scores"), costs("no pad")
    assert with_pad.pop("kTile[x][y]") == [8, 4] and without.pop("kTile[x][y]") == [32, 4]
    assert with_pad == without
    worst = drawn["no pad"]["worst"]
    assert "8 passes, where 1 would do" in drawn["no pad"]["steps"][worst]["words"]


def test_a_failure_is_the_last_step(watched, drawn):
    trace, data = watched["race"]
    *_, last, end = drawn["race"]["steps"]
    assert trace.error is not None and data["end"]["passed"] is False
    assert end["kind"] == "end" and end["words"].startswith("The end of what can be watched. "
                                                            "softmaxRows has a race on")
    assert data["lines"][last["line"]][1].strip().startswith("partial[warp] = l")


@pytest.mark.parametrize("tokens, kept", [
    ("aaa", 3), ("aaaa", 3), ("abababab", 6), ("xababababy", 8), ("aab" * 4 + "c", 10),
    ("abcd" * 100, 12), (("a" * 9 + "b") * 20, 12), ("abcdefg", 7), ("", 0)])
def test_folding(tokens, kept):
    steps, folds = recording._fold(list(tokens))
    assert len(steps) == kept
    assert len(steps) + sum(n for each in folds.values() for _, n in each) == len(tokens)
    ends = [*steps[1:], len(tokens)]
    for i, each in folds.items():
        assert ends[i] - steps[i] - 1 == sum(n for _, n in each)


def test_patterns_of_all_kinds_come_back(watched):
    rng = random.Random(0)
    rows = [{lane: 4 * lane for lane in range(32)}, {lane: 0 for lane in range(32)},
            {lane: 256 * (lane % 16) + 4 * (lane // 16) for lane in range(32)}, {7: 12},
            {lane: rng.randrange(4096) for lane in range(0, 32, 3)}]
    for offsets in rows:
        lowest = min(offsets.values())
        mask, *form = recording._pattern(offsets, lowest)
        lanes = [lane for lane in range(32) if mask >> lane & 1]
        assert lanes == sorted(offsets)
        if len(form) == 3:
            group, a, b = form
            got = [lowest + a * (lane % group) + b * (lane // group) for lane in lanes]
        else:
            got = [lowest + x for x in form[0]]
        assert got == [offsets[lane] for lane in lanes]
