"""The emulated backend: the same kernel sources, run on the host, checked as a GPU does not.

A source is compiled by a C++ compiler after ``cuda.h``, which gives the CUDA names a host meaning,
and linked with ``run.cpp``, which runs one launch: fibers for threads, a hook at every load and
store. Where NVRTC is installed it must take the source too, so that what only a GPU's compiler
refuses is refused here. Each launch is a child process, so whatever a kernel does, this process
goes on. An emulated result is for the gate; how long it took says nothing about a GPU.

Every launch runs under several orders of blocks, warps and lanes. Each run checks addresses,
follows who has written what, and looks for two accesses of one word that nothing orders: no
barrier, no warp operation, no fence with an atomic. That needs one order only. The other orders
find what it cannot see: a result that changes with the order, for example through atomics; what
the rounding of sums by atomics explains is none. Where lanes have received values that CUDA
leaves undefined, more runs tell whether a result hangs on them. Emulated times are neither
returned nor shown.

Limits: races are followed in 4-byte words of shared memory and of array arguments, not in parts
of words, atomics or __device__ variables; a warp operation is taken to order its whole warp, and
an atomic to acquire without a fence after it; blocks run one after the other, so none can wait
for another; an index that lands inside another array of shared memory is seen only where the
array's size is known to the compiler; a local variable without a first value is NaN with g++ 12
or clang++, and 0 in a register with an older g++. A return before a barrier is an error, though
newer GPUs forgive it.
"""

import json
import math
import mmap
import os
import platform
import subprocess
import tempfile
from dataclasses import dataclass

import numpy as np

from ...errors import ArgumentError, LaunchError, LessonError
from ...text.source import numbered
from .. import messages, nvrtc, prints, refusals
from ..arguments import check_array, kernel_of, scalar
from . import trace as traces
from .build import SHARED, Build
from .toolchain import WHOLE, available, folder, lock, run, state, toolchain

ORDERS = ("ascending", "descending", "shuffled")
PAGE = 65536  # a multiple of any machine's page: where buffers may start in the memory file

MAX_ARGUMENTS = 32  # kMaxArguments of fibers.h
MAX_THREADS = 1024  # of a block, on every GPU so far
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCKS = 2**24  # of an emulated launch: more would run for hours


@dataclass(frozen=True)
class Counts:
    """Bytes of global memory that the loads and stores of one launch asked for.

    ``notes``: sentences on what is no error, but good to know of the result.
    """

    loads_bytes: int
    stores_bytes: int
    notes: tuple = ()


# What fill(nan) puts into an output before a launch, as kNoValue of memory.h: a NaN as float32 and
# as float64, by which the emulator knows an element that nothing has written.
_UNSET = 0x7FF97A5E


class HostArray(np.ndarray):
    """Memory of the emulated device: a NumPy array that only put() and full() make."""

    def fill(self, value):
        """As NumPy's; a NaN means that the elements have no value yet."""
        super().fill(value)
        if self.dtype in _KINDS and value != value and self.flags.c_contiguous:
            self.view(np.ndarray).reshape(-1).view(np.uint32)[:] = _UNSET


class HostBackend:
    """Kernels on the host. Safe to use from several threads at once.

    ``orders``: the thread orders each launch runs under, of 'ascending', 'descending' and
    'shuffled'; one is enough where the same kernel has passed at a smaller size.
    ``limit_s``: seconds that one block may take before the launch is given up.
    ``whole``: float4 and its like are read at once, as on a GPU, and not part by part: slower.
    """

    mark = "emulated"
    array_name = "an array of the emulated device"

    def __init__(self, orders=ORDERS, limit_s=10.0, whole=False):
        if isinstance(orders, str) or not orders or set(orders) - set(ORDERS):
            raise ArgumentError(f"orders is {orders!r}, needs some of {ORDERS}")
        if not limit_s > 0:
            raise ArgumentError(f"limit_s is {limit_s!r}, needs a number of seconds above 0")
        ready, reason = available()
        if not ready:
            raise ArgumentError(f"no emulation: {reason}")
        self.orders, self.limit_s = tuple(orders), float(limit_s)
        self._options = WHOLE if whole else ()

    def versions(self):
        """Software that an emulated result depends on."""
        return {"compiler": toolchain().version, "numpy": np.__version__,
                "machine": platform.machine()}

    def describe(self):
        orders = "1 thread order" if len(self.orders) == 1 else f"{len(self.orders)} thread orders"
        found, version = nvrtc.available()
        also = f"NVRTC {version}" if found else "no NVRTC"
        return f"on the host, {toolchain().version} and {also}, {orders}"

    def compile(self, source, defines=None):
        """A HostProgram of ``source``; ``defines`` is ``{macro: value}``."""
        defines = tuple(sorted((defines or {}).items()))
        tools = toolchain()
        key = (source.digest, source.label, defines, tools.compiler, self._options)
        with lock:
            folder()
            built = state["programs"].setdefault(key, Build())
        with built.lock:  # another thread may be building the same source
            if built.executable is None:
                built.build(source, defines, tools, self._options)
        return HostProgram(self, source, built)

    def put(self, array):
        return np.array(array).view(HostArray)

    def full(self, shape, value, dtype=np.float32):
        array = np.empty(shape, dtype=dtype).view(HostArray)
        array.fill(value)
        return array

    def get(self, array):
        return np.array(array, subok=False)

    def owns(self, array):
        """Whether ``array`` lives where this backend's kernels can reach it."""
        return isinstance(array, HostArray)

    def free_bytes(self):
        """Bytes that arrays may use. A launch holds an array it writes twelve times: the array,
        its copy for the child, two to compare orders, eight for the race detector."""
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":") for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024 // 12


class HostProgram:
    """A compiled source: launch() runs one of its kernels."""

    def __init__(self, backend, source, built):
        self.backend, self.source, self._built = backend, source, built
        self.kernels = built.kernels  # {name: signatures.Kernel}

    def template(self, name):
        """Whether the source has a function template called ``name``."""
        tools = toolchain()
        _, _, errors = run([tools.compiler, *tools.options, "-fsyntax-only", "-x", "c++", "-"],
                            folder(), numbered(refusals.probe(self.source, name)))
        return refusals.means_template(errors)

    def launch(self, name, grid, block, args, shared=0):
        """Run a kernel to its end under each thread order. Returns Counts.

        ``grid`` and ``block`` are tuples of 1 to 3 sizes; ``args`` are arrays and Python
        scalars, converted to the declared types; ``shared`` is dynamic shared bytes.
        Raises LaunchError (did not run to its end), RaceError (depends on the order of threads),
        InputError (wrote to a ``const`` argument), ArgumentError (refused before it ran).
        """
        return self._launch(name, grid, block, args, shared, None)

    def shared_accesses(self, name, grid, block, args, shared=0):
        """Run a kernel's first block once; its accesses of shared memory, a list of Shared.

        The k-th time that each lane of a warp passes an instruction counts as one access of the
        warp: right for code whose lanes take the same path. It is what the source asks for; a
        GPU's compiler may merge accesses.
        """
        with tempfile.TemporaryFile(dir=folder()) as file:
            self._launch(name, grid, block, args, shared, (file.fileno(), 0, -1))
            records = traces.accesses_of_shared(traces.read(file))
        counters = np.unique(records["pc"])
        places = self._run(name, grid, block).lines_at(int(pc) for pc in counters)
        return [traces.Shared(place or "", *traces.passes(records[records["pc"] == pc]))
                for pc, place in zip(counters, places, strict=True)]

    def trace(self, name, grid, block, args, shared=0, at=0, warp=0):
        """Run one block of a launch once and write down what one of its warps did: a Trace.

        at: the block, counted along x, then y, then z. A kernel that fails is traced up to there.
        Raises ArgumentError for a block or warp that the launch does not have.
        """
        threads = math.prod(_geometry(name, "block", block))
        for what, value, count in (("block", at, math.prod(_geometry(name, "grid", grid))),
                                   ("warp", warp, -(-threads // 32))):
            if not (isinstance(value, (int, np.integer)) and 0 <= value < count):
                raise ArgumentError(f"{what} = {value!r}: {name} has the {what}s 0 to {count - 1}")
        with tempfile.TemporaryFile(dir=folder()) as file:
            error, report = None, {}
            try:
                self._launch(name, grid, block, args, shared, (file.fileno(), at, warp))
            except LessonError as raised:
                error, report = raised, getattr(raised, "report", None)
                if report is None:  # refused before it ran
                    raise
            records = traces.read(file)
        counters = [pc for pc in np.unique(records["pc"]).tolist() if pc]
        counters += report.get("pc", ())[:1]  # the last: where it failed
        places = self._run(name, grid, block).sites_at(counters)
        sites = dict(zip(counters, places, strict=True))
        until = error and traces.stops(records, report, _geometry(name, "block", block))
        steps, rest = traces.steps(records, sites, until)
        failed = (report["file"], report["line"]) if "line" in report else (
            next(iter(places[-1]), None) if "pc" in report else None)
        buffers, _ = self._arguments(self.kernels[name], args)
        arrays = {"/".join(buffer.names): buffer.array.shape for buffer in buffers}
        return traces.Trace(steps, sites, arrays, self._shared_arrays(name), error, failed, rest)

    def _shared_arrays(self, name):
        """(start, bytes, name) of the arrays of shared memory that a kernel may use."""
        start, size = self._built.dynamic
        found = [(at, n, array) for at, n, array, function in self._built.shared
                 if function == name or function not in self.kernels]
        return sorted(found + ([(start, size, "shared")] if size else []))

    def _run(self, name, grid, block):
        return messages.Run(self.source, self.kernels[name], grid, block, self.backend, [],
                            self._built)

    def static_shared_bytes(self, name):
        """Bytes of the __shared__ arrays of a kernel, as the C++ compiler lays them out."""
        return self._built.static_shared(name)

    def _launch(self, name, grid, block, args, shared, trace):
        kernel = kernel_of(self, name, args)
        grid, block = _geometry(name, "grid", grid), _geometry(name, "block", block)
        self._check_launch(name, grid, block, shared)
        buffers, words = self._arguments(kernel, args)
        offsets, end = [], PAGE
        for buffer in buffers:
            offsets.append(end)
            end += -(-buffer.array.nbytes // PAGE) * PAGE
        memory = _memory_file(end)
        try:
            with mmap.mmap(memory, end) as view:
                for buffer, at in zip(buffers, offsets, strict=True):
                    _window(view, at, buffer.array)[:] = buffer.array.reshape(-1).view(np.uint8)
                command = [str(self._built.executable), str(memory), name,
                           *map(str, (*grid, *block, shared, *self._built.dynamic)),
                           repr(self.backend.limit_s),
                           "".join(o[0] for o in self.backend.orders) if trace is None else "a",
                           *map(str, trace or (-1, 0, -1)), str(len(buffers))]
                for buffer, at in zip(buffers, offsets, strict=True):
                    command += [str(at), str(buffer.array.nbytes), str(int(buffer.read_only)),
                                _KINDS.get(buffer.array.dtype, "-")]
                report, printed = self._child([*command, str(len(words)), *words], view, memory,
                                              *(trace or ())[:1])
                prints.hear(printed, report.get("cut_bytes", 0), report.get("cut_lines", 0))
                run = messages.Run(self.source, kernel, grid, block, self.backend, buffers,
                                   self._built)
                if "error" in report:
                    error = run.error(report)
                    error.report = report
                    raise error
                for buffer, at in zip(buffers, offsets, strict=True):
                    if not buffer.read_only:
                        flat = buffer.array.reshape(-1).view(np.uint8)
                        flat[:] = _window(view, at, buffer.array)
        finally:
            os.close(memory)
        return Counts(report["loads"], report["stores"], tuple(run.notes(report)))

    def _check_launch(self, name, grid, block, shared):
        threads = block[0] * block[1] * block[2]
        if threads > MAX_THREADS:
            raise LaunchError(f"{name}: a block of {block} has {threads} threads; "
                              f"a GPU runs at most {MAX_THREADS}")
        for what, sizes, limits in (("block", block, MAX_BLOCK), ("grid", grid, MAX_GRID)):
            for size, limit, axis in zip(sizes, limits, "xyz", strict=True):
                if size > limit:
                    raise LaunchError(f"{name}: {what}.{axis} is {size}, at most {limit}")
        if grid[0] * grid[1] * grid[2] > MAX_BLOCKS:
            raise LaunchError(f"{name}: a grid of {grid} is more than the {MAX_BLOCKS:,} blocks "
                              "that the emulator runs")
        bound = self._built.bounds.get(name, MAX_THREADS)
        if threads > bound:
            raise LaunchError(f"{name}: the block has {threads} threads, more than the kernel's "
                              f"__launch_bounds__({bound}) allows: a GPU refuses the launch")
        static = self._built.static_shared(name)
        if shared < 0 or static + shared > SHARED:
            raise LaunchError(f"{name}: {static:,} static and {shared:,} dynamic bytes of shared "
                              f"memory; a block gets at most {SHARED:,}")

    def _arguments(self, kernel, args):
        """Buffers (each array once) and the argument words of the child."""
        if len(args) > MAX_ARGUMENTS:
            raise ArgumentError(f"{kernel.name} takes {len(args)} arguments; the emulator passes "
                                f"at most {MAX_ARGUMENTS}")
        buffers, words = [], []
        for param, value in zip(kernel.params, args, strict=True):
            if not param.pointer:
                words.append("s" + scalar(kernel, param, value).tobytes().hex())
                continue
            if value is None:
                words.append("n")
                continue
            check_array(kernel, param, value, self.backend)
            read_only = param.read_only
            span = (value.ctypes.data, value.nbytes)
            for i, buffer in enumerate(buffers):
                if buffer.span == span:
                    buffer.names.append(param.name)
                    buffer.read_only &= read_only
                    words.append(f"b{i}")
                    break
                if np.may_share_memory(buffer.array, value):
                    raise ArgumentError(f"{kernel.name}: {buffer.names[0]} and {param.name} "
                                        "overlap in memory: pass two arrays, or the same one")
            else:
                words.append(f"b{len(buffers)}")
                buffers.append(_Buffer(value, span, [param.name], read_only))
        return buffers, words

    def _child(self, command, view, *files):
        """Run the child and wait. Returns (its report, what the kernel printed)."""
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, pass_fds=files, encoding="utf-8",
                                 errors="replace")
        blocks, before = 0, (0.0, 0.0)  # ended; seconds of the processor at the last, and at all
        try:
            while True:
                try:
                    printed, errors = child.communicate(timeout=self.backend.limit_s + 3)
                    break
                except subprocess.TimeoutExpired:
                    # The child's own timer counts the time that it runs, whatever else runs here.
                    # It has failed if no block ended in that time, or if the child does nothing.
                    ended, spent = int.from_bytes(view[:8], "little"), _seconds_of(child.pid)
                    if ended == blocks and (spent <= before[1] or
                                            spent > before[0] + self.backend.limit_s + 3):
                        return {"error": "killed"}, ""
                    before = (spent if ended > blocks else before[0], spent)
                    blocks = ended
        finally:
            if child.poll() is None:
                child.kill()
                child.communicate()
        lines = [line for line in errors.splitlines() if line.startswith("{")]
        try:
            return json.loads(lines[-1]), printed
        except (IndexError, ValueError):
            return {"error": "ended", "code": child.returncode}, printed


@dataclass
class _Buffer:
    array: np.ndarray
    span: tuple
    names: list
    read_only: bool


def _geometry(name, what, sizes):
    """(x, y, z) of a grid or block."""
    sizes = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)
    whole = all(isinstance(s, (int, np.integer)) and s > 0 for s in sizes)
    if not (whole and 1 <= len(sizes) <= 3):
        raise LaunchError(f"{name}: {what} is {sizes}, needs 1 to 3 whole numbers of at least 1")
    return tuple(int(s) for s in sizes) + (1,) * (3 - len(sizes))


_KINDS = {np.dtype(np.float32): "f", np.dtype(np.float64): "d"}  # Buffer::kind of memory.h


def _seconds_of(pid):
    """Seconds that a process has run on a processor so far; 0 where that cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # man 5 proc
    except (OSError, ValueError, IndexError):
        return 0.0


def _memory_file(size):
    """A file descriptor of ``size`` bytes of memory, which the child maps too."""
    try:
        memory = os.memfd_create("lesson")
    except (AttributeError, OSError):  # a C library or a sandbox that has none
        with tempfile.TemporaryFile(dir=folder()) as file:
            memory = os.dup(file.fileno())
    os.ftruncate(memory, size)
    return memory


def _window(view, at, array):
    return np.frombuffer(view, np.uint8, array.nbytes, at)
