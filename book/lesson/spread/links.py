"""What joins ranks: parts become one, and keys are passed on.

``Sums`` is for ranks of this process, and for GPUs on any number of processes: the merge as a
maximum, a rescale and sums, which is what NCCL offers. Who does the maximum and the sums is its
``calls``: NumPy (``HostCalls``) or NCCL (``NcclCalls``). ``OwnOperation`` is for one rank a
process over MPI: there the merge itself is the operation of the reduction.

``moved`` counts the bytes that ranks of this process have sent to others.
"""

import contextlib
import os

import numpy as np

from ..problem.merge import merge
from .processes import uninterrupted

ROOT = 0  # the rank that gets the answer


class HostCalls:
    """Arrays of ranks in this process, NumPy's: the stand-in for NCCL.

    order: in which sums are formed, a permutation of the ranks.
    """

    def __init__(self, size, order=None):
        self.size, self.order = size, order or range(size)

    def maximum(self, arrays):
        """Every array becomes the elementwise maximum of all."""
        top = np.maximum.reduce(arrays)
        for array in arrays:
            array[...] = top

    def add(self, tuples):
        """Each array of the root's tuple becomes the sum over the ranks' tuples."""
        for same in zip(*tuples):
            total = np.zeros_like(same[ROOT])
            for r in self.order:
                total = total + same[r]
            same[ROOT][...] = total

    def shift(self, sent, received):
        """Rank r's ``sent`` goes to rank r + 1's ``received``; the last one's to the first."""
        for r, array in enumerate(sent):
            received[(r + 1) % self.size][...] = array


class NcclCalls:
    """The same through NCCL: ``comms[i]`` is the communicator of ``ranks[i]``, of ``size`` in all.

    Nothing is waited for: all is said on the ranks' third stream. Source: NCCL's user guide,
    *Group Calls* and *Point-to-point communication*.
    """

    def __init__(self, nccl, ranks, comms, size):
        self._nccl, self._of, self.size = nccl, list(zip(ranks, comms)), size

    @contextlib.contextmanager
    def _group(self):
        self._nccl.groupStart()
        try:
            yield
        finally:
            self._nccl.groupEnd()

    def maximum(self, arrays):
        with self._group():
            for (rank, comm), x in zip(self._of, arrays):
                comm.allReduce(x.data.ptr, x.data.ptr, x.size, self._nccl.NCCL_FLOAT32,
                               self._nccl.NCCL_MAX, rank.line.ptr)

    def add(self, tuples):
        with self._group():
            for (rank, comm), of_rank in zip(self._of, tuples):
                for x in of_rank:
                    comm.reduce(x.data.ptr, x.data.ptr, x.size, self._nccl.NCCL_FLOAT32,
                                self._nccl.NCCL_SUM, ROOT, rank.line.ptr)

    def shift(self, sent, received):
        with self._group():
            for (rank, comm), out, into in zip(self._of, sent, received):
                to, before = (rank.number + 1) % self.size, (rank.number - 1) % self.size
                comm.send(out.data.ptr, out.size, self._nccl.NCCL_FLOAT32, to, rank.line.ptr)
                comm.recv(into.data.ptr, into.size, self._nccl.NCCL_FLOAT32, before, rank.line.ptr)


class Sums:
    """Parts merge by a maximum, a rescale and sums. ``ranks``: those of this process."""

    def __init__(self, ranks, calls):
        self.ranks, self.calls, self.size = ranks, calls, calls.size
        self.moved = 0

    def merge(self, parts):
        """Begin to merge one part of each of ``ranks``. Returns a function that waits and gives
        the root's answer, o / l, as a NumPy array, and None where the root is not."""
        tops, sums = [], []
        for rank, (m, _, _) in zip(self.ranks, parts):
            with rank.talking():
                rank.catch_up()
                tops.append(m.copy())
        self.calls.maximum(tops)
        for rank, (m, l, o), top in zip(self.ranks, parts, tops):
            with rank.talking():
                w = np.exp(m - top)
                sums.append((l * w, o * w[:, None]))
        self.calls.add(sums)
        for rank, top, both in zip(self.ranks, tops, sums):
            if rank.number != ROOT:  # gives m, l and o, and gets the maximum back
                self.moved += 2 * top.nbytes + sum(x.nbytes for x in both)

        def answer():
            found = None
            for rank, (l, o) in zip(self.ranks, sums):
                if rank.number == ROOT:
                    with rank.talking():
                        found = rank.get(o / l[:, None])
                rank.wait()  # what was merged may go: nothing on a stream reads it any more
            parts.clear()
            return found

        return answer

    def shift(self, sent, received):
        """Begin to pass each rank's array on to the next rank."""
        self.calls.shift(sent, received)
        self.moved += sum(x.nbytes for x in sent)

    def gather(self, arrays):
        """NumPy arrays of all ranks, one after the other, at the root."""
        return np.concatenate(arrays)

    def together(self, values):
        """One Python value of each rank of this process: all ranks' values, everywhere."""
        return list(values)


class OwnOperation:
    """Parts merge by MPI, with the merge as its own commutative operation on a type of 66 floats.

    ``ranks``: the one rank of this process. ``comm``: a communicator of mpi4py. GPUs' parts go
    through the host.
    """

    def __init__(self, ranks, comm):
        from mpi4py import MPI

        (self.rank,) = self.ranks = ranks
        self.comm, self.size, self._mpi = comm, comm.size, MPI
        self._type, self._width = None, None
        self._operation = MPI.Op.Create(self._merge, commute=True)
        self.moved = 0

    def _merge(self, one, both, _):
        """What MPI calls: rows of (m, l, o) in ``one`` and ``both`` become ``both``."""
        x, y = (np.frombuffer(rows, np.float32).reshape(-1, self._width) for rows in (one, both))
        m, l, o = merge((x[:, 0], x[:, 1], x[:, 2:]), (y[:, 0], y[:, 1], y[:, 2:]))
        y[:, 0], y[:, 1], y[:, 2:] = m, l, o
        self.moved += x.nbytes  # one of the two came from another rank

    def merge(self, parts):
        ((m, l, o),) = parts
        with self.rank.talking():
            self.rank.catch_up()
            m, l, o = (self.rank.get(x) for x in (m, l, o))
        rows = np.concatenate([m[:, None], l[:, None], o], axis=1)
        if self._type is None:
            self._width = rows.shape[1]
            self._type = self._mpi.FLOAT.Create_contiguous(self._width).Commit()
        whole = np.empty_like(rows) if self.comm.rank == ROOT else None
        received = None if whole is None else [whole, len(rows), self._type]
        with uninterrupted():
            self.comm.Reduce([rows, len(rows), self._type], received, self._operation, ROOT)
        return lambda: None if whole is None else whole[:, 2:] / whole[:, 1:2]

    def shift(self, sent, received):
        (out,), (into,) = sent, received
        to, before = (self.comm.rank + 1) % self.size, (self.comm.rank - 1) % self.size
        with self.rank.talking():
            host = np.empty(into.shape, np.float32)
            self.comm.Sendrecv(self.rank.get(out), to, recvbuf=host, source=before)
            into[...] = self.rank.put(host)
        self.moved += out.nbytes

    def gather(self, arrays):
        return _gathered(self.comm, arrays)

    def together(self, values):
        return self.comm.allgather(*values)


class NcclProcesses(Sums):
    """``Sums`` over NCCL with one GPU a process, the others reached by the id that MPI passed."""

    def __init__(self, rank, comm):
        super().__init__([rank], NcclCalls(*nccl_of(comm, rank)))
        self.comm = comm

    def gather(self, arrays):
        return _gathered(self.comm, arrays)

    def together(self, values):
        return self.comm.allgather(*values)


def _gathered(comm, arrays):
    """Each process's one array, one after the other, at the root; elsewhere None."""
    (own,) = arrays
    own = np.ascontiguousarray(own)
    sizes = comm.gather(own.size, ROOT)
    whole = np.empty((sum(sizes) // own.shape[1], own.shape[1]), own.dtype) if sizes else None
    comm.Gatherv(own, None if whole is None else [whole, sizes], ROOT)
    return whole


def _nccl():
    """CuPy's NCCL, multicast off. Raises LessonError where it is not installed."""
    from ..errors import LessonError

    # NVLink multicast in a virtual machine can leave a host's GPUs unusable, and saves nothing
    # here: what is merged is small.
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    from cupy.cuda import nccl

    if not nccl.available:
        raise LessonError("CuPy finds no NCCL: pip install nvidia-nccl-cu12 (CUDA 13: "
                          "nvidia-nccl-cu13)")
    return nccl


def nccl_here(ranks):
    """``Sums`` over NCCL of GPUs that this one process drives."""
    nccl = _nccl()
    comms = nccl.NcclCommunicator.initAll([rank.device for rank in ranks])
    return Sums(ranks, NcclCalls(nccl, ranks, comms, len(ranks)))


def nccl_of(comm, rank):
    """What NcclCalls takes, for one GPU a process: the id is made by the root and passed by MPI."""
    nccl = _nccl()
    name = comm.bcast(nccl.get_unique_id() if comm.rank == ROOT else None, ROOT)
    with rank.talking():
        return nccl, [rank], [nccl.NcclCommunicator(comm.size, name, comm.rank)], comm.size


def nccl_version():
    """NCCL's version as '2.28.3'."""
    code = _nccl().get_version()
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"
