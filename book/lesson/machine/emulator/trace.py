"""What one block of a launch did, read from the records that trace.h writes.

The lanes of a warp run one after the other here and side by side on a GPU. ``steps()`` puts them
side by side again: what the lanes did at the same instruction at the same time is one step.
"""

from dataclasses import dataclass

import numpy as np

RECORD = np.dtype([("offset", "i8"), ("pc", "u4"), ("thread", "u2"), ("bytes", "u2"),
                   ("kind", "u1"), ("place", "i1")])  # struct Record of trace.h
READ, WRITE, ATOMIC, SHUFFLE, VOTE, BARRIER, RELEASED, COUNT, RACE, UNSET = range(10)
SHARED, NOWHERE = -1, -2  # places; else the number of a buffer
SECTOR = 32  # bytes of global memory that travel together


@dataclass(frozen=True)
class Shared:
    """Accesses of shared memory that one instruction of a kernel made, all warps together.

    ``wavefronts`` is how many passes they take: 32 banks, one 4-byte word of each bank a pass;
    lanes that want the same word share it. ``ideal`` is the number without bank conflicts.
    """

    line: str  # of the source
    wavefronts: int
    ideal: int


@dataclass(frozen=True)
class Step:
    """What the lanes of the watched warp did at one instruction, at the same time.

    kind: READ, WRITE or ATOMIC of memory, SHUFFLE, VOTE or BARRIER. place: SHARED, the number of a
    buffer, or NOWHERE. offsets: {lane: bytes from the start of the place; of a shuffle, the lane
    that is asked}. cost and least: passes of an access of shared memory, sectors of 32 bytes of one
    of global memory, and the smallest number of them for as many bytes. work: at a barrier,
    {warp: {pc: how often}} since the one before, of all warps of the block, barriers apart.
    """

    kind: int
    pc: int
    place: int
    bytes: int
    offsets: dict
    cost: int = 0
    least: int = 0
    work: dict | None = None


@dataclass(frozen=True)
class Trace:
    """A warp's steps, and where their program counters stand in the source.

    sites: {pc: ((file or cell, line) of it and of each call that led there)}. buffers: {name: shape
    of the array} in the order of the places. shared: (start, bytes, name) of each array of shared
    memory. error: the LessonError that the launch ended with, or None, ``failed`` where in the
    source; ``rest``: the warps' work by then since the last barrier, as ``work`` of a Step.
    """

    steps: list
    sites: dict
    buffers: dict
    shared: list
    error: Exception | None
    failed: tuple | None
    rest: dict


def passes(records):
    """(passes, passes without bank conflicts) of one instruction's accesses of shared memory.

    An access of 8 or 16 bytes a lane is served by half or quarter warps (CUDA C++ Programming
    Guide, shared memory of compute capability 5.0 and newer; Best Practices Guide).
    """
    # Which execution of its lane each record is: 0, 1, ... in the order of the trace.
    order = np.argsort(records["thread"], kind="stable")
    threads = records["thread"][order].astype(np.int64)
    starts = np.flatnonzero(np.r_[True, threads[1:] != threads[:-1]])
    turn = np.arange(len(threads)) - np.repeat(starts, np.diff(np.r_[starts, len(threads)]))
    width = max(1, int(records["bytes"].max()) // 4)  # words a lane
    group = threads % 32 // (32 // width)
    request = (turn * 32 + threads // 32) * width + group
    words = (records["offset"][order] // 4)[:, None] + np.arange(width)
    pairs = np.unique(np.stack([np.repeat(request, width), words.reshape(-1)]), axis=1)
    banks, count = np.unique(pairs[0] * 32 + pairs[1] % 32, return_counts=True)
    requests = np.unique(banks // 32)
    most = np.zeros(len(requests), dtype=np.int64)
    np.maximum.at(most, np.searchsorted(requests, banks // 32), count)
    return int(most.sum()), len(requests)


def sectors(records):
    """(sectors, the fewest that hold as many bytes) of one access of global memory by a warp."""
    first = records["offset"].astype(np.int64)
    size = np.maximum(records["bytes"].astype(np.int64), 1)
    touched = np.unique(np.concatenate([np.arange(a, a + n) for a, n in
                                        zip(first, size, strict=True)]))
    return len(np.unique(touched // SECTOR)), -(-len(touched) // SECTOR)


def read(file):
    """The records of a trace's file."""
    file.seek(0)
    return np.frombuffer(file.read(), RECORD)


def accesses_of_shared(records):
    """The records of accesses of shared memory."""
    return records[(records["kind"] <= ATOMIC) & (records["place"] == SHARED)]


_MARKS = {"race": RACE, "unset": UNSET, "unset_buffer": UNSET}


def stops(records, report, block):
    """{thread: its last record that is watched, counted from 1} of a launch that failed.

    report: of the child process. Of the threads at fault only those whose records there are: where
    no lane of the warp is at fault, the warp is watched to the end. block: (x, y, z) threads.
    """
    end = len(records)
    if mark := _MARKS.get(report["error"]):
        found = np.flatnonzero(records["kind"] == mark)
        if mark == UNSET:
            inside = records["place"][found] == SHARED
            found = found[inside if report["error"] == "unset" else ~inside]
        end = found[0] if len(found) else end
    records = records[:end]
    records = records[records["kind"] <= BARRIER]
    found = {}
    for name, pc in (("thread", None), ("other_thread", (report.get("pc") or [0])[-1])):
        if name not in report:
            continue
        x, y, z = report[name]
        thread = x + block[0] * (y + block[1] * z)
        own = records[records["thread"] == thread]
        if pc is not None:  # the earlier of two: where it last used the same word
            word = report.get("shared", report.get("offset", 0))
            same = np.flatnonzero((own["pc"] == pc) & (own["offset"] <= word)
                                  & (word < own["offset"] + own["bytes"]))
            own = own[:same[-1] + 1] if len(same) else own[:0]
        if len(own):
            found[thread] = len(own)
    return found


def steps(records, sites, until=None):
    """(the watched warp's Steps, the work of all warps after its last barrier).

    sites: {pc: where it stands in the source}. until: of ``stops``; the last step is the one in
    which all of these threads have come to their last record.
    """
    records = records[(records["kind"] < RACE)
                      & ~((records["kind"] == COUNT) & (records["bytes"] == BARRIER))]
    found, work, costs, waiting = [], {}, {}, dict(until or {})
    # A compiler may write a barrier twice, one for each branch before it: the line tells.
    meeting = {pc: pcs[0] for pcs in _by_site(sites).values() for pc in pcs}
    held = np.isin(records["kind"], (SHUFFLE, VOTE, BARRIER))
    records = records.copy()
    records["pc"][held] = [meeting[pc] for pc in records["pc"][held].tolist()]
    own = records["kind"] <= BARRIER
    edges = [0, *(np.flatnonzero(records["kind"] == RELEASED) + 1), len(records)]
    for start, end in zip(edges, edges[1:], strict=False):
        part = records[start:end]
        work = _counts(part[part["kind"] == COUNT])
        groups = []
        for group in _together(part[own[start:end]]):
            groups.append(group)
            if group[0]["kind"] != BARRIER:
                done = work.setdefault(int(group[0]["thread"]) // 32, {})
                done[int(group[0]["pc"])] = done.get(int(group[0]["pc"]), 0) + 1
            for thread in waiting.keys() & set(group["thread"].tolist()):
                waiting[thread] -= 1
            if until and max(waiting.values()) <= 0:
                break
        found += [_step(group, work, costs) for group in groups]
        if until and max(waiting.values()) <= 0:
            break
    return found, work


def _by_site(sites):
    found = {}
    for pc, site in sites.items():
        found.setdefault(site or pc, []).append(pc)
    return found


def _counts(records):
    work = {}
    for warp, pc, times in zip((records["thread"] // 32).tolist(), records["pc"].tolist(),
                               records["offset"].tolist(), strict=True):
        work.setdefault(warp, {})[pc] = times
    return work


def _step(group, work, costs):
    """One Step; ``costs`` keeps what such an access has cost before, 128 bytes further or not."""
    first, kind = group[0], int(group[0]["kind"])
    cost = least = 0
    if kind <= ATOMIC:
        count = passes if first["place"] == SHARED else sectors
        shape = (count, group["bytes"].tobytes(), group["thread"].tobytes(),
                 (group["offset"] - group["offset"].min() // 128 * 128).tobytes())
        if shape not in costs:
            costs[shape] = count(group)
        cost, least = costs[shape]
    return Step(kind, int(first["pc"]), int(first["place"]), int(group["bytes"].max()),
                dict(zip((group["thread"] % 32).tolist(), group["offset"].tolist(), strict=True)),
                cost, least, work if kind == BARRIER else None)


def _key(records):
    """What lanes that do the same at the same time have in common, as one number a record."""
    return (records["pc"].astype(np.int64) << 16 | records["kind"].astype(np.int64) << 8
            | (records["place"].astype(np.int64) & 255))


def _together(records):
    """Groups of records, one a step of the warp, in the order in which it made them.

    Between two operations that hold the lanes together each lane has its own row of instructions.
    Where the rows are the same, their records stand side by side. Where they part, the lanes that
    others will not meet again soon go first, as on a GPU.
    """
    lanes = [records[records["thread"] == thread] for thread in np.unique(records["thread"])]
    keys = [_key(lane) for lane in lanes]
    if lanes and all(np.array_equal(key, keys[0]) for key in keys):
        table = np.stack(lanes)
        yield from (table[:, i] for i in range(table.shape[1]))
        return
    at = [0] * len(lanes)
    keys = [key.tolist() for key in keys]
    while True:
        heads = {}
        for i, key in enumerate(keys):
            if at[i] < len(key):
                heads.setdefault(key[at[i]], []).append(i)
        if not heads:
            return
        chosen = next(iter(heads))
        if len(heads) > 1:
            chosen = _first(heads, keys, at)
        members = heads[chosen]
        yield np.stack([lanes[i][at[i]] for i in members])
        for i in members:
            at[i] += 1


_AHEAD = 256  # instructions of a lane that are looked at, to see whether it comes to the same one


def _first(heads, keys, at):
    """Of several instructions that lanes of a warp stand before, the one that is next."""
    def awaited(head):  # by how many lanes that stand elsewhere
        return sum(head in keys[i][at[i]:at[i] + _AHEAD]
                   for other, members in heads.items() if other != head for i in members)
    waits = {head: awaited(head) for head in heads}
    fewest = min(waits.values())
    least = [head for head in heads if waits[head] == fewest]
    # Two branches: the first in the code. Two trips of a loop: the end of the earlier one.
    return min(least) if fewest == 0 else max(least)
