"""Backends and probes that stand in for a GPU."""

import sys
import types

import numpy as np
from lesson.machine import backend as backends
from lesson.machine import nvrtc
from lesson.machine.timing import Timing
from tools import estimate


class HereBackend:
    """NumPy arrays as device arrays: enough of a backend for the checks before a launch."""

    array_name = "a NumPy array"

    def owns(self, array):
        return isinstance(array, np.ndarray)

    def free_bytes(self):
        return 1 << 30


class FakeGpu(HereBackend):
    """A backend whose kernel gives ``answer`` and whose clock is a constant."""

    mark = "live"

    def __init__(self, answer):
        self.answer, self.timed = answer, 0

    def compile(self, text):
        return types.SimpleNamespace(backend=self, launch=self.launch, enqueue=self.launch)

    def launch(self, kernel, grid, block, arguments):
        found = self.answer(*arguments[:3])
        if found is not None:  # None: the kernel writes nothing
            arguments[3][:] = found

    put = staticmethod(np.array)
    get = staticmethod(np.array)

    def full(self, shape, value, dtype=np.float32):
        return np.full(shape, value, dtype)

    def time(self, enqueue, what, spoil):
        self.timed += 1
        spoil()
        enqueue()
        return Timing((1.0, 2.0, 4.0), 10, 3)


def fake_cupy(count=0, error=None):
    """A CuPy that finds ``count`` devices, or fails to look with ``error``."""
    def devices():
        if error:
            raise RuntimeError(error)
        return count

    runtime = types.SimpleNamespace(getDeviceCount=devices)
    return types.SimpleNamespace(__version__="14.0.1", cuda=types.SimpleNamespace(runtime=runtime))


def probe_with(monkeypatch, packages, cupy=None, nvrtc_found=(True, "12.9")):
    """What the probe finds with these packages, this CuPy and this NVRTC."""
    backends.probe.cache_clear()
    monkeypatch.setattr(backends, "_cupy_packages", lambda: packages)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(nvrtc, "available", lambda: nvrtc_found)
    try:
        return backends.probe()
    finally:
        backends.probe.cache_clear()


class StandInT4(estimate.StandIn):
    """A T4 whose results are right and whose times are estimates: for the tests alone."""

    def __init__(self):
        super().__init__(estimate.kernel_ms(estimate.recorded()))

    def versions(self):
        return {**super().versions(), "gpu": "Tesla T4"}
