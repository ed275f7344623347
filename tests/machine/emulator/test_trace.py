"""A trace of one warp: its steps, what they cost, the barriers, and where a failure ends it."""

from collections import Counter

import numpy as np
import pytest
from lesson.errors import ArgumentError, LaunchError
from lesson.launch import ladder, paths
from lesson.machine.emulator import HostBackend, trace
from lesson.problem import cases
from support.emulated import needs_compiler, program

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def watching():
    return HostBackend(orders=("ascending",), whole=True)


def traced(backend, body, n=256, block=(32,), grid=(1,), at=0, warp=0, before=""):
    a, b = (backend.put(np.arange(n, dtype=np.float32)) for _ in "ab")
    made = program(backend, body, before=before)
    return made.trace("mine", grid, block, (a, b, n), at=at, warp=warp)


def lines(found):
    """[(line, kind, lanes)] of the steps."""
    return [(found.sites[s.pc][-1][1], s.kind, len(s.offsets)) for s in found.steps]


def by_line(found, work):
    """{warp: {line: how often}} of a Step's work."""
    lines = {warp: Counter() for warp in work}
    for warp, done in work.items():
        for pc, times in done.items():
            lines[warp][found.sites[pc][-1][1]] += times
    return lines


@pytest.mark.parametrize("index, sectors, least", [
    ("t", 4, 4), ("t + 1", 5, 4), ("2 * t", 8, 4), ("8 * t", 32, 4), ("t / 4", 1, 1), ("7", 1, 1),
    ("31 - t", 4, 4), ("8 * (t % 4)", 4, 1)])
def test_sectors_are_those_that_the_lanes_touch(watching, index, sectors, least):
    found = traced(watching, f"int t = threadIdx.x; b[t] = a[{index}];")
    read, write = found.steps
    assert (read.kind, read.place, read.cost, read.least) == (trace.READ, 0, sectors, least)
    assert (write.kind, write.place, write.cost, write.least) == (trace.WRITE, 1, 4, 4)
    assert read.offsets == {t: 4 * eval(index.replace("/", "//")) for t in range(32)}


@pytest.mark.parametrize("vector, index, passes, least", [
    ("float", "t", 1, 1), ("float", "2 * t", 2, 1), ("float", "0", 1, 1), ("float", "33 * t", 1, 1),
    ("float2", "t", 2, 2), ("float4", "t", 4, 4), ("float4", "8 * t", 32, 4)])
def test_a_vector_is_one_access_served_in_parts(watching, vector, index, passes, least):
    found = traced(watching, f"""__shared__ {vector} tile[1024]; int t = threadIdx.x;
        for (int i = t; i < 1024; i += 32) tile[i] = {vector}();
        {vector} got = tile[{index}]; b[t] = first(got);""",
                   before="__device__ float first(float x) { return x; } template <class T> "
                          "__device__ float first(T x) { return x.x; } ")
    read = next(s for s in found.steps if s.kind == trace.READ)
    size = {"float": 4, "float2": 8, "float4": 16}[vector]
    assert (read.bytes, read.cost, read.least) == (size, passes, least)
    assert len(read.offsets) == 32


def test_lanes_that_part_meet_again(watching):
    found = traced(watching, """int t = threadIdx.x;
        for (int i = 0; i < 3; ++i) {
            if (t % 2 == i % 2)
                b[t] = i;
            b[t + 32] = a[t];
        }
        if (t == 0)
            b[64] = 1.0f;
        b[t + 96] = a[t];""")
    half = [(5, trace.WRITE, 16), (6, trace.READ, 32), (6, trace.WRITE, 32)]
    assert lines(found) == [*half * 3, (9, trace.WRITE, 1), (10, trace.READ, 32),
                            (10, trace.WRITE, 32)]


def test_barriers_come_in_their_order_with_the_work_of_every_warp(watching):
    found = traced(watching, """__shared__ float part[4]; int t = threadIdx.x;
        float x = a[t];
        for (int i = 0; i < t / 32; ++i)
            x += a[t + i];
        if (t % 32 == 0)
            part[t / 32] = x;
        __syncthreads();
        for (int i = 0; i < 4; ++i)
            x += part[i];
        b[t] = __shfl_xor_sync(0xffffffffu, x, 1);""", block=(128,), warp=2)
    barrier, = (s for s in found.steps if s.kind == trace.BARRIER)
    assert by_line(found, barrier.work) == {w: {3: 1, **({5: w} if w else {}), 7: 1}
                                            for w in range(4)}
    # The loop is unrolled: four reads of line 10. Line 11 is the shuffle, and the write.
    assert by_line(found, found.rest) == {w: {10: 4, 11: 2} for w in range(4)}
    shuffle, = (s for s in found.steps if s.kind == trace.SHUFFLE)
    assert shuffle.offsets == {lane: lane ^ 1 for lane in range(32)}


def test_one_block_of_a_grid_is_watched(watching):
    found = traced(watching, "b[blockIdx.x * 32 + threadIdx.x] = 1.0f;", grid=(4,), at=2)
    assert found.steps[0].offsets[0] == 4 * 64
    assert found.buffers == {"a": (256,), "b": (256,)}
    for what in ({"at": 4}, {"at": -1}, {"warp": 1}, {"warp": 0.0}, {"at": "x"}):
        with pytest.raises(ArgumentError, match="has the (block|warp)s 0 to"):
            traced(watching, "b[threadIdx.x] = 1.0f;", grid=(4,), **what)


RACE = """__shared__ float x[64]; int t = threadIdx.x;
    x[t] = a[t];
    {0}
    b[t] = x[(t + 1) % 64];
    b[t + 64] = 1.0f;"""


@pytest.mark.parametrize("body, last, warp", [
    (RACE.format("__syncwarp();"), (3, trace.WRITE, 32), 1),  # what warp 0 has read before
    ("b[threadIdx.x] = a[0]; b[64 + threadIdx.x + 200 * (threadIdx.x == 5)] = 1.0f;",
     (2, trace.WRITE, 6), 0),
    ("__shared__ float x[64]; int t = threadIdx.x; x[t] = 1.0f;\n__syncthreads();\n"
     "__shared__ float y[64]; b[t] = y[t] + x[t]; b[t + 64] = 1.0f;", (4, trace.READ, 32), 0)])
def test_a_failure_ends_the_trace(watching, body, last, warp):
    found = traced(watching, body, block=(64,), warp=warp)
    assert isinstance(found.error, LaunchError)
    assert lines(found)[-1] == last
    assert found.failed[1] == last[0]
    right = traced(watching, RACE.format("__syncthreads();"), block=(64,))
    assert right.error is None and right.failed is None


def test_a_warp_that_did_nothing_wrong_is_watched_to_its_end(watching):
    body = RACE.format("__syncwarp();").replace("(t + 1) % 64", "t < 64 ? t % 32 : 0")
    found = traced(watching, body, block=(96,), warp=0)
    assert isinstance(found.error, LaunchError)
    assert lines(found)[-1] == (6, trace.WRITE, 32)


def test_a_launch_that_is_refused_is_no_trace(watching):
    with pytest.raises(LaunchError, match="2048 threads"):
        traced(watching, "b[0] = a[0];", block=(2048,))


# ---- the lesson's kernels, value by value -------------------------------------------------------

def plan(backend, which, n=64):
    case = cases.make("periodic", n)
    if which in paths.PATHS:
        return paths.plan(backend, which, case)
    return ladder.plan(backend, which, *(backend.put(x) for x in (case.q, case.k, case.v)), 1)


@pytest.mark.parametrize("which", ["materialised", "online", 5, 9])
def test_all_warps_together_are_what_the_emulator_counts(watching, which):
    """Passes line by line as shared_accesses() has them, bytes as launch() has them."""
    planned = plan(watching, which)
    for name, grid, block, args, *shared in planned.steps:
        program = planned.program if which in paths.PATHS else planned.program._of[name]
        one = name if which != "materialised" else None
        warps = range(int(np.prod(block)) // 32)
        found = [program.trace(name, grid, block, args, *shared, warp=w) for w in warps]
        passes, loads, stores = Counter(), 0, 0
        for each in found:
            for s in each.steps:
                if s.kind > trace.ATOMIC:
                    continue
                if s.place == trace.SHARED:
                    passes[each.sites[s.pc][0][1]] += np.array([s.cost, s.least])
                else:
                    assert s.cost >= s.least >= 1
                    size = s.bytes * len(s.offsets)
                    loads, stores = (loads + size, stores) if s.kind == trace.READ else (
                        loads, stores + size)
        counted = Counter()
        for access in program.shared_accesses(name, grid, block, args, *shared):
            line = int(access.line.partition("line ")[2].partition(":")[0])
            counted[line] += np.array([access.wavefronts, access.ideal])
        assert {k: tuple(v) for k, v in passes.items()} == {k: tuple(v) for k, v in
                                                             counted.items()}
        counts = program.launch(name, grid, block, args, *shared)
        if int(np.prod(grid)) == 1 or one is None:  # each block asks for as many
            blocks = int(np.prod(grid))
            assert (loads * blocks, stores * blocks) == (counts.loads_bytes, counts.stores_bytes)
        if name == "scoresQKt":
            assert sum(passes.values())[0] == 32 + 64 + 2 * 512 and found[0].error is None
        barriers = [[s.pc for s in each.steps if s.kind == trace.BARRIER] for each in found]
        assert all(row == barriers[0] for row in barriers)
