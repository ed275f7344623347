"""A rank: some of the keys, and where their part is computed."""

from contextlib import contextmanager, nullcontext

import numpy as np

from .deal import BLOCK
from .parts import ByKernel, by_arrays, none


class Rank:
    """A rank on the host: NumPy where ``backend`` is None, else the emulated kernels."""

    lanes = 1  # chunks that may be under way at once

    def __init__(self, number, backend=None):
        self.number, self.backend = number, backend
        self.what = backend.describe() if backend else "NumPy"
        self.mark = backend.mark if backend else "computed"

    def load(self, case, keys, rows):
        """Take all queries of a Case and the keys of the slice ``keys``; ``rows``: of a chunk."""
        with self.talking():
            own = keys.stop - keys.start
            self.part_of = ByKernel(self.backend, own, rows) if self.backend else by_arrays
            self.q = self.put(_whole_blocks(case.q))
            self.k, self.v = self.put(case.k[keys]), self.put(case.v[keys])
        self.wait()

    def part(self, rows, lane=0, k=None, v=None):
        """The part (m, l, o) of the query rows of a slice; of other keys than its own with k, v.

        On a GPU it is not waited for: see ``talking``.
        """
        k, v = (self.k, self.v) if k is None else (k, v)
        with self.computing(lane):
            if not len(k):
                return tuple(self.put(x) for x in none(rows.stop - rows.start))
            many = rows.stop - rows.start
            found = self.part_of(self.q[rows.start : rows.start + -(-many // BLOCK) * BLOCK], k, v)
            return tuple(x[:many] for x in found)

    def put(self, array):
        return self.backend.put(array) if self.backend else np.ascontiguousarray(array)

    def get(self, array):
        return self.backend.get(array) if self.backend else np.asarray(array)

    def computing(self, lane):
        """Where a part is computed."""
        return nullcontext()

    def talking(self):
        """Where parts are merged and keys are passed on."""
        return nullcontext()

    def catch_up(self):
        """What is said from now on waits for the part that was computed last."""

    def wait(self):
        """Until everything said in ``talking`` is done."""

    def finish(self):
        """Until everything is done."""


class GpuRank(Rank):
    """A rank on a GPU of this process: two streams compute, a third one talks.

    The blocks of the next chunk fill the SMs that the last ones of a chunk leave, and what the
    third stream has to say goes before them.
    """

    lanes = 2

    def __init__(self, number, device):
        import cupy

        from ..machine.gpu import GpuBackend

        self._cuda, self.device = cupy.cuda, device
        with cupy.cuda.Device(device):
            super().__init__(number, GpuBackend())
            self._lanes = [cupy.cuda.Stream(non_blocking=True) for _ in range(self.lanes)]
            self.line = cupy.cuda.Stream(non_blocking=True, priority=-1)  # lower goes first
            self.what = f"{self.backend.versions()['gpu']}, device {device}"

    @contextmanager
    def computing(self, lane):
        stream = self._lanes[lane % self.lanes]
        with self._cuda.Device(self.device), stream:
            yield
            self._computed = stream.record()

    def catch_up(self):
        self.line.wait_event(self._computed)

    @contextmanager
    def talking(self):
        with self._cuda.Device(self.device), self.line:
            yield

    def wait(self):
        with self._cuda.Device(self.device):
            self.line.synchronize()

    def finish(self):
        with self._cuda.Device(self.device):
            self.backend.synchronize(f"rank {self.number}")


def _whole_blocks(q):
    """Q and rows of zeros after it: from any row on there are whole blocks of 128 to the end."""
    return np.concatenate([q, np.zeros((2 * BLOCK, q.shape[1]), q.dtype)])
