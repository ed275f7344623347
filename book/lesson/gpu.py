"""The live backend: compile with NVRTC, launch and time through CuPy."""

import math
import os
import tempfile

import numpy as np

from . import nvrtc
from .backend import kernel_of, scalar
from .errors import ArgumentError, LaunchError
from .occupancy import KernelFacts
from .timing import Timing


class GpuBackend:
    """Kernels on the current CUDA device."""

    mark = "live"

    def __init__(self):
        import cupy

        self.cupy = cupy
        self.device = cupy.cuda.Device()
        self.arch = f"sm_{self.device.compute_capability}"
        self._programs = {}

    def versions(self):
        """Device and software, as evidence and reports name them."""
        runtime = self.cupy.cuda.runtime
        facts = runtime.getDeviceProperties(self.device.id)
        driver, cuda = runtime.driverGetVersion(), runtime.runtimeGetVersion()
        return {
            "gpu": facts["name"].decode(),
            "compute_capability": f"{facts['major']}.{facts['minor']}",
            "sms": facts["multiProcessorCount"],
            "memory_bytes": facts["totalGlobalMem"],
            "l2_bytes": facts["l2CacheSize"],
            "driver_cuda": f"{driver // 1000}.{driver % 1000 // 10}",
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "nvrtc": nvrtc.available()[1],
            "cupy": self.cupy.__version__,
        }

    def describe(self):
        v = self.versions()
        return f"{v['gpu']}, {self.arch}, CUDA {v['cuda']}, CuPy {v['cupy']}"

    def compile(self, source, defines=None):
        key = (source.digest, source.label, tuple(sorted((defines or {}).items())))
        if key not in self._programs:
            self._programs[key] = GpuProgram(self, source, defines)
        return self._programs[key]

    def put(self, array):
        return self.cupy.asarray(array)

    def full(self, shape, value, dtype=np.float32):
        return self.cupy.full(shape, value, dtype=dtype)

    def get(self, array):
        return self.cupy.asnumpy(array)

    def owns(self, array):
        """Whether ``array`` lives where this backend's kernels can reach it."""
        return isinstance(array, self.cupy.ndarray) and array.device.id == self.device.id

    array_name = "a CuPy array on the current device"

    def free_bytes(self):
        pool = self.cupy.get_default_memory_pool()
        return self.cupy.cuda.runtime.memGetInfo()[0] + pool.free_bytes()

    def synchronize(self, what):
        """Wait for the device; name ``what`` if something on it went wrong."""
        try:
            self.cupy.cuda.runtime.deviceSynchronize()
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            raise LaunchError(
                f"{what} failed on the GPU: {error}. Its CUDA context is lost: restart this "
                "process (in a notebook, restart the kernel)"
            ) from None

    def time(self, enqueue, what, warmups=3, runs=10, rounds=5):
        """Time ``enqueue``, a function that launches without waiting. Returns a Timing.

        The runs of a round are captured in one CUDA graph, so that Python's launch overhead is
        not measured; short runs are repeated until a round lasts about 2 ms.
        """
        cuda = self.cupy.cuda
        for _ in range(warmups):  # modules load at their first launch
            enqueue()
        self.synchronize(what)
        stream = cuda.Stream(non_blocking=True)
        start, end = cuda.Event(), cuda.Event()

        def capture(count):
            with stream:
                stream.begin_capture()
                for _ in range(count):
                    enqueue()
                graph = stream.end_capture()
            graph.launch(stream)
            return graph

        def measure(graph, count):
            with stream:
                start.record(stream)
                graph.launch(stream)
                end.record(stream)
            end.synchronize()  # elapsed time raises unless the end event was waited for
            return cuda.get_elapsed_time(start, end) / count

        estimate = measure(capture(runs), runs)
        runs = max(runs, min(200, math.ceil(2.0 / max(estimate, 1e-3))))
        graph = capture(runs)
        times = [measure(graph, runs) for _ in range(rounds)]
        self.synchronize(what)
        return Timing(tuple(times), runs, warmups)


class GpuProgram:
    """A compiled source, loaded on the device."""

    def __init__(self, backend, source, defines):
        self.backend, self.source = backend, source
        cubin, log = nvrtc.compile_cubin(source, backend.arch, defines)
        self._facts = nvrtc.parse_facts(log)
        # CuPy loads a module from a file; it reads the file when the first kernel is looked up.
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "kernel.cubin")
            with open(path, "wb") as file:
                file.write(cubin)
            module = backend.cupy.RawModule(path=path)
            self._kernels = {name: module.get_function(name) for name in source.kernels
                             if name in self._facts}

    def enqueue(self, name, grid, block, args, shared=0):
        """Launch without waiting. Arguments are converted to the declared types."""
        kernel = kernel_of(self.source, name, args)
        if name not in self._kernels:
            raise LaunchError(f"{name} has no C linkage: write extern \"C\" __global__ before it")
        converted = []
        for param, value in zip(kernel.params, args):
            if param.pointer:
                if not self.backend.owns(value):
                    raise ArgumentError(f"{name}: {param.name} is {type(value).__name__}, needs "
                                        f"{self.backend.array_name}")
                converted.append(value)
            else:
                converted.append(scalar(kernel, param, value))
        function = self._kernels[name]
        if shared > 48 * 1024:
            function.max_dynamic_shared_size_bytes = shared
        function(tuple(grid), tuple(block), tuple(converted), shared_mem=shared)

    def launch(self, name, grid, block, args, shared=0):
        """Launch and wait: an error surfaces here, with the kernel's name."""
        try:
            self.enqueue(name, grid, block, args, shared)
        except self.backend.cupy.cuda.driver.CUDADriverError as error:
            raise LaunchError(f"{name} could not be launched with grid {tuple(grid)} and block "
                              f"{tuple(block)}: {error}") from None
        self.backend.synchronize(name)

    def facts(self, name):
        """KernelFacts of the code that runs on this device."""
        return self._facts[name]

    def driver_facts(self, name):
        """The same from the driver, which does not count spills."""
        f = self._kernels[name]
        return KernelFacts(name, f.num_regs, f.shared_size_bytes, f.local_size_bytes, None)

    def resident_blocks(self, name, threads, shared=0):
        """Resident blocks per SM by the driver's own answer."""
        return self.backend.cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
            self._kernels[name].kernel.ptr, threads, shared)
