"""The live backend: compile with NVRTC, launch and time through CuPy."""

import math
import os
import tempfile

import numpy as np

from ..errors import LaunchError
from . import driver, nvrtc
from .arguments import check_array, kernel_of, scalar
from .timing import Timing


class GpuBackend:
    """Kernels on the current CUDA device. ``compiler``: this package's nvrtc or nvcc."""

    mark = "live"

    def __init__(self, compiler=nvrtc):
        import cupy

        self.cupy, self.compiler = cupy, compiler
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

    def time(self, enqueue, what, spoil, warmups=3, runs=10, rounds=5):
        """Time ``enqueue``, a function that launches without waiting. Returns a Timing.

        ``spoil`` is called before the first run and again before the last round: it overwrites the
        output, so that what is gated afterwards was computed by the last runs that were timed.

        The runs of a round are captured in one CUDA graph, so that Python's launch overhead is
        not measured; short runs are repeated until a round lasts about 2 ms.
        """
        spoil()
        for _ in range(warmups):  # modules load at their first launch
            enqueue()
        self.synchronize(what)
        estimate = self.capture(enqueue, runs)()
        runs = max(runs, min(200, math.ceil(2.0 / max(estimate, 1e-3))))
        measure = self.capture(enqueue, runs)
        times = [measure() for _ in range(rounds - 1)]
        spoil()
        self.synchronize(what)  # the stream of the runs does not wait for the default one
        times.append(measure())
        self.synchronize(what)
        return Timing(tuple(times), runs, warmups)

    def capture(self, enqueue, runs):
        """``runs`` runs of ``enqueue`` as one CUDA graph, launched once.

        Returns a function that launches it again and gives milliseconds a run. What ``enqueue``
        launches must have been launched before. The function keeps ``enqueue``, and so the arrays
        that it holds: a graph knows only their addresses.
        """
        cuda = self.cupy.cuda
        stream, start, end = cuda.Stream(non_blocking=True), cuda.Event(), cuda.Event()
        with stream:
            stream.begin_capture()
            for _ in range(runs):
                enqueue()
            graph = stream.end_capture()
        graph.launch(stream)

        def measure():
            with stream:
                start.record(stream)
                graph.launch(stream)
                end.record(stream)
            end.synchronize()  # elapsed time raises unless the end event was waited for
            return cuda.get_elapsed_time(start, end) / runs

        measure.keeps = enqueue
        return measure


class GpuProgram:
    """A compiled source, loaded on the device."""

    def __init__(self, backend, source, defines):
        self.backend, self.source = backend, source
        cubin, log = backend.compiler.compile_cubin(source, backend.arch, defines)
        self._facts = nvrtc.parse_facts(log)
        self.kernels = nvrtc.kernels(source, backend.arch, defines)
        # CuPy loads a module from a file; it reads the file when the first kernel is looked up.
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "kernel.cubin")
            with open(path, "wb") as file:
                file.write(cubin)
            module = backend.cupy.RawModule(path=path)
            self._functions = {name: module.get_function(name)
                               for name, kernel in self.kernels.items() if kernel.symbol == name}

    def template(self, name):
        """Whether the source has a function template called ``name``."""
        return nvrtc.is_template(self.source, name, self.backend.arch)

    def enqueue(self, name, grid, block, args, shared=0, chained=False):
        """Launch without waiting. Arguments are converted to the declared types.

        ``chained``: the launch may start before the one before it has ended; the kernel waits.
        """
        kernel = kernel_of(self, name, args)
        converted = []
        for param, value in zip(kernel.params, args, strict=True):
            if not param.pointer:
                value = scalar(kernel, param, value)
            elif value is not None:  # None is a null pointer
                check_array(kernel, param, value, self.backend)
            converted.append(value)
        function = self._functions[name]
        if shared > 48 * 1024:
            function.max_dynamic_shared_size_bytes = shared
        if chained:
            driver.launch_early(function.kernel.ptr, grid, block, converted, shared,
                                self.backend.cupy.cuda.get_current_stream().ptr)
        else:
            function(tuple(grid), tuple(block), tuple(converted), shared_mem=shared)

    def launch(self, name, grid, block, args, shared=0, chained=False):
        """Launch and wait: an error surfaces here, with the kernel's name."""
        try:
            self.enqueue(name, grid, block, args, shared, chained)
        except self.backend.cupy.cuda.driver.CUDADriverError as error:
            raise LaunchError(f"{name} could not be launched with grid {tuple(grid)} and block "
                              f"{tuple(block)}: {error}") from None
        self.backend.synchronize(name)

    def facts(self, name):
        """KernelFacts of the code that runs on this device."""
        return self._facts[name]

    def resident_blocks(self, name, threads, shared=0):
        """Resident blocks per SM by the driver's own answer."""
        return self.backend.cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
            self._functions[name].kernel.ptr, threads, shared)
