"""One run over ranks: who takes part, what they do, and the gate."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ..errors import ArgumentError, GateError
from ..problem.gate import judge
from ..problem.problem import D, Handles, Problem, of
from ..problem.reference import Reference, attention
from . import links
from .deal import BLOCK, chunks, deal
from .kept import Kept
from .rank import GpuRank, Rank
from .ways import by_merge, by_ring

WAYS = ("merge", "ring")
SAMPLED_ROWS = 256
ROWS_ON_A_GPU, ROWS_ON_A_HOST = 1 << 15, 1 << 10  # query rows of a chunk
HANDLES = Handles("a run over ranks", multiple=1, why="no more is needed")


@dataclass(frozen=True)
class Result:
    """One run, as the root knows it: ``output`` is the answer (N, 64), and None elsewhere."""

    problem: Problem
    case: str
    way: str
    ranks: tuple  # what each rank computed on
    mark: str
    seconds: float  # from all keys in place to the answer in the root's memory
    moved: int  # bytes that ranks sent to each other
    rows: int  # query rows of a chunk
    resumed: int  # rows that were read from disk
    verdict: object
    sampled_rows: int
    output: object

    @property
    def n(self):
        return self.problem.n


class Party:
    """Who takes part: the ranks of this process, and the link that joins them to all."""

    def __init__(self, ranks, link):
        self.ranks, self.link = ranks, link

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.finish()


def in_this_process(count, backend=None, order=None):
    """``count`` ranks on the host, one after the other, by NumPy or on an emulated backend."""
    ranks = [Rank(number, backend) for number in range(count)]
    return Party(ranks, links.Sums(ranks, links.HostCalls(count, order)))


def gpus_here(count=None):
    """A rank on each GPU that this process sees, or on the first ``count``, joined by NCCL."""
    import cupy

    seen = cupy.cuda.runtime.getDeviceCount()
    count = count or seen
    if count > seen:
        raise ArgumentError(f"ranks = {count}: this process sees {seen} GPU{'s' * (seen > 1)}")
    ranks = [GpuRank(number, number) for number in range(count)]
    return Party(ranks, links.nccl_here(ranks))


def of_processes(comm, kind=None):
    """The rank of this process among those of ``comm``, a communicator of mpi4py.

    kind: 'live', 'emulated' or 'numpy'; where it is None, a GPU where there is one, else NumPy.
    NCCL joins the ranks where each has a GPU of its own, else MPI does.
    """
    from mpi4py import MPI

    from ..machine import backend as backends

    here = comm.Split_type(MPI.COMM_TYPE_SHARED)  # the processes of one machine share its GPUs
    rank, alone = None, False
    if kind == "live" or kind is None and backends.probe().gpu:
        backends.choose("live")  # says why there is none
        import cupy

        seen = cupy.cuda.runtime.getDeviceCount()
        rank, alone = GpuRank(comm.rank, here.rank % seen), here.size <= seen
    else:
        rank = Rank(comm.rank, backends.choose("emulated") if kind == "emulated" else None)
    if all(comm.allgather(alone)):
        return Party([rank], links.NcclProcesses(rank, comm))
    return Party([rank], links.OwnOperation([rank], comm))


def check(n, way="merge", rows=None):
    """Refuse what is no run. Raises ArgumentError."""
    HANDLES.refuse(of(n))
    if way not in WAYS:
        raise ArgumentError(f"way = {way!r}: choose one of {', '.join(WAYS)}")
    if rows is not None and (rows < 1 or rows > BLOCK and rows % BLOCK):
        raise ArgumentError(f"chunk = {rows}: choose a multiple of {BLOCK} query rows, or fewer "
                            f"than {BLOCK}")


def run(party, case, way="merge", rows=None, keep=None, progress=None, exact=None):
    """Attention of a Case, one head, with its keys dealt to ranks. A Result at the root.

    way: 'merge' (keys are dealt, parts merge) or 'ring' (keys pass round). rows: query rows of a
    chunk. keep: a folder for finished chunks, from which the same run goes on; not by ring, where
    all rows are finished together. exact: the Reference of the sampled rows, where it is known.
    Every process of the party calls this alike. Raises GateError.
    """
    n = case.n
    check(n, way, rows)
    ranks, link = party.ranks, party.link
    root = ranks[0].number == links.ROOT
    shares = deal(n, link.size)
    marks = link.together([rank.mark for rank in ranks])
    whats = tuple(link.together([rank.what for rank in ranks]))
    rows = rows or (ROWS_ON_A_GPU if "live" in marks else ROWS_ON_A_HOST)
    if set(marks) != {"computed"}:  # a kernel takes no more rows than keys
        least = min(share.stop - share.start for share in shares)
        rows = min(rows, max(BLOCK, least // BLOCK * BLOCK))
    if exact is None and root:
        exact = sample(case)
    for rank in ranks:
        rank.load(case, shares[rank.number], rows)
    if "live" in marks:
        _warm(ranks, link, min(rows, n))
    link.together([None] * len(ranks))  # nobody starts before all are ready
    link.moved = 0
    start = time.perf_counter()
    if way == "ring":
        output, resumed = by_ring(ranks, link, case, rows), 0
    else:
        output, resumed = _merged(ranks, link, case, rows, keep, progress, exact, root)
    seconds = time.perf_counter() - start
    moved = sum(link.together([link.moved] + [0] * (len(ranks) - 1)))
    if not root:
        return None
    verdict = judge(output[exact.rows], exact.o, n, exact.max_abs_score, exact.rows)
    if not verdict.passed:
        raise GateError(verdict.explain(f"{link.size} ranks by {way}", case.name, n))
    mark = marks[0] if len(set(marks)) == 1 else "live" if "live" in marks else marks[0]
    return Result(case.problem, case.name, way, whats, mark, seconds, moved, rows, resumed, verdict,
                  len(exact.rows), output)


def sample(inputs):
    """The float64 Reference of 256 query rows, spread over all, or of all where they are fewer."""
    rows = np.unique(np.linspace(0, inputs.n - 1, SAMPLED_ROWS).astype(int))
    exact = [x.astype(np.float64) for x in (inputs.q, inputs.k, inputs.v)]
    workers = min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(lambda some: attention(*exact, rows=some),
                              np.array_split(rows, min(workers, len(rows)))))
    return Reference(np.concatenate([f.o for f in found]), rows,
                     max(f.max_abs_score for f in found),
                     np.concatenate([f.lse for f in found], axis=-1))


def _merged(ranks, link, inputs, rows, keep, progress, exact, root):
    """(answer at the root, rows that were read from disk), merged chunk after chunk."""
    kept = None
    if keep is not None and root:
        kept = Kept(keep, {"case": inputs.name, "n": inputs.n, "chunk": rows})
    every = chunks(inputs.n, rows)
    done = [c for c in every if kept and kept.finished(c)]
    done = set(link.together([[(c.start, c.stop) for c in done]] + [[]] * (len(ranks) - 1))[0])
    todo = [c for c in every if (c.start, c.stop) not in done]
    output = np.full(inputs.q.shape, np.nan, np.float32) if root else None
    if root:
        for start, stop in done:
            output[start:stop] = kept.read(slice(start, stop))
    for i, (piece, answer) in enumerate(by_merge(ranks, link, todo)):
        if root:
            output[piece] = answer
            _gate(answer, piece, inputs, exact, link.size)  # before it counts as finished
            if kept:
                kept.add(piece, answer)
            if progress:
                progress(f"N = {inputs.n:,}, {link.size} ranks, chunks of queries", i + 1,
                         len(todo))
    if kept:
        kept.remove()
    return output, sum(stop - start for start, stop in done)


def _gate(answer, piece, inputs, exact, size):
    """Judge the sampled rows of a chunk. Raises GateError."""
    own = (exact.rows >= piece.start) & (exact.rows < piece.stop)
    if own.any():
        verdict = judge(answer[exact.rows[own] - piece.start], exact.o[own], inputs.problem,
                        exact.max_abs_score, exact.rows[own])
        if not verdict.passed:
            raise GateError(verdict.explain(f"{size} ranks, query rows {piece.start} to "
                                            f"{piece.stop - 1}", inputs.name, inputs.problem))


def _warm(ranks, link, rows):
    """Load kernels and let NCCL connect: first calls take long, and are no part of a run."""
    few = 2 * BLOCK
    for rank in ranks:
        with rank.computing(0):
            if len(rank.k):
                rank.part_of(rank.q[:BLOCK], rank.k[:few], rank.v[:few])
    zeros = np.zeros(rows, np.float32), np.zeros(rows, np.float32), np.zeros((rows, D), np.float32)
    parts = []
    for rank in ranks:
        with rank.computing(0):
            parts.append(tuple(rank.put(x + np.float32(1)) for x in zeros))
    link.merge(parts)()
    if link.size == 1:
        return
    sent, received = [], []
    for rank in ranks:
        with rank.talking():
            for some in (sent, received):
                some.append(rank.put(np.zeros(1 << 20, np.float32)))
    link.shift(sent, received)
    for rank in ranks:
        rank.finish()
