"""The emulated backend: the same kernel sources, run on the host, checked as a GPU does not.

A source is compiled by a C++ compiler after ``emulator/cuda.h``, which gives the CUDA names a
host meaning, and linked with ``emulator/run.cpp``, which runs one launch: fibers for threads, a
hook at every load and store. Each launch is a child process, so whatever a kernel does, this
process goes on. An emulated result is for the gate; how long it took says nothing about a GPU.

Every launch runs under several orders of blocks, warps and lanes. Each run checks addresses and
looks for two accesses of one word with no barrier between them; that needs one order only. The
other orders find what it cannot see: a result that changes with the order, for example through
atomics. Emulated times are neither returned nor shown.

Limits: races are followed in 4-byte words of shared memory and of array arguments, not in parts
of words, atomics or __device__ variables; a warp operation is taken to order its whole warp; an
index that lands inside another array of shared memory is seen only where the array's size is
known to the compiler. A return before a barrier is an error, though newer GPUs forgive it.
"""

import atexit
import json
import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import explain
from .backend import kernel_of, scalar
from .errors import ArgumentError, CompileError, LaunchError

EMULATOR = Path(__file__).resolve().parent / "emulator"
ORDERS = ("ascending", "descending", "shuffled")
TOOL_LIMIT_S = 120  # for one run of the compiler; the lesson's kernels take less than 1 s
PAGE = 65536  # a multiple of any machine's page: where buffers may start in the memory file

MAX_ARGUMENTS = 32  # kMaxBuffers of run.cpp
MAX_THREADS = 1024  # of a block, on every GPU so far
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCKS = 2**24  # of an emulated launch: more would run for hours
STATIC_SHARED = 48 * 1024  # bytes of a block without opting in
SHARED = 227 * 1024  # bytes of a block that opts in, on an H200

NO_COMPILER = ("no C++ compiler was found: install g++ (Debian, Ubuntu, Colab: "
               "apt-get install g++) or set CXX to one")

_DTYPES = {"float": "float32", "double": "float64", "int": "int32", "unsigned": "uint32",
           "unsigned int": "uint32"}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_DYNAMIC = re.compile(r"\bextern\s+__shared__\b[^;\[]*?(\w+)\s*\[\s*\]")
_END = "(end of the source)"

_lock = threading.RLock()
_state = {}  # the temporary folder and what was built in it, of this process


@dataclass(frozen=True)
class Counts:
    """Bytes of global memory that the loads and stores of one launch asked for."""

    loads_bytes: int
    stores_bytes: int


@dataclass(frozen=True)
class Shared:
    """Accesses of shared memory that one instruction of a kernel made, all warps together.

    ``wavefronts`` is how many passes they take: 32 banks, one 4-byte word of each bank a pass;
    lanes that want the same word share it. ``ideal`` is the number without bank conflicts.
    """

    line: str  # of the source
    wavefronts: int
    ideal: int


class HostArray(np.ndarray):
    """Memory of the emulated device: a NumPy array that only put() and full() make."""


def _folder():
    """The temporary folder of this process, removed at its end. Honours TMPDIR."""
    with _lock:
        if _state.get("pid") != os.getpid():  # also after a fork, which must not share it
            _state.clear()
            _state.update(pid=os.getpid(), count=0, programs={},
                          folder=Path(tempfile.mkdtemp(prefix="lesson-")))
            atexit.register(_remove, os.getpid(), _state["folder"])
        return _state["folder"]


def _remove(pid, folder):
    if pid == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def _compiler():
    """Path of the C++ compiler, or None."""
    if os.environ.get("CXX"):
        return shutil.which(os.environ["CXX"])
    return next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)


def _run(command, folder, text=""):
    """Run a compiler tool on ``text``. Returns (exit code, standard output, standard error)."""
    try:
        done = subprocess.run(command, cwd=folder, input=text, capture_output=True,
                              encoding="utf-8",
                              env={**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)},
                              errors="replace", timeout=TOOL_LIMIT_S)
    except subprocess.TimeoutExpired:
        return 1, "", f"error: {command[0]} took longer than {TOOL_LIMIT_S} s"
    return done.returncode, done.stdout, done.stderr


@dataclass(frozen=True)
class _Toolchain:
    """A compiler, its options for a kernel, and run.cpp compiled by it."""

    compiler: str
    version: str
    options: tuple
    run: Path


def _toolchain():
    """The compiler, with run.cpp built; raises CompileError where it cannot be used."""
    compiler = _compiler()
    if compiler is None:
        named = os.environ.get("CXX")
        raise CompileError(f"CXX is {named!r}, which is no program that can be run: {NO_COMPILER}"
                           if named else NO_COMPILER)
    with _lock:
        folder = _folder()
        if compiler in _state:
            return _state[compiler]
        _, banner, _ = _run([compiler, "--version"], folder)
        number = re.search(r"\d+\.\d+(\.\d+)?", banner)
        clang = "clang" in banner
        version = f"{'clang++' if clang else 'g++'} {number[0] if number else '?'}"
        # No options of the distribution that get in the way of switching stacks by longjmp.
        options = ["-std=c++17", "-O2", "-fno-exceptions", "-fno-rtti", "-fno-pie",
                   "-U_FORTIFY_SOURCE", "-fno-stack-protector"]
        if platform.machine() in ("x86_64", "i686"):
            options.append("-fcf-protection=none")
        run = folder / f"run{len(_state)}.o"
        code, _, errors = _run([compiler, *options, "-c", str(EMULATOR / "run.cpp"),
                                "-o", str(run)], folder)
        if code:
            raise CompileError(f"{compiler} cannot compile the emulator: "
                               f"{explain.first_error(errors)}")
        # A kernel: debug lines for the messages (in version 4, which every addr2line reads);
        # hooks at loads and stores; checks of indices and of alignment; arithmetic as written,
        # the same on every machine; an endless loop stays one; a large frame meets its guard.
        options += ["-g1", "-gdwarf-4", "-w", "-fno-strict-aliasing", "-ffp-contract=off",
                    "-fno-finite-loops", "-fstack-clash-protection",
                    "-fsanitize=thread,bounds,alignment", "-fno-sanitize-recover=all",
                    "-include", str(EMULATOR / "cuda.h"), "-ftabstop=1"]
        options += (["-mllvm", "-tsan-instrument-func-entry-exit=0", "-fno-caret-diagnostics",
                     "-fno-color-diagnostics", "-ferror-limit=3"] if clang else
                    ["--param", "tsan-instrument-func-entry-exit=0", "-fno-extern-tls-init",
                     "-fno-diagnostics-show-caret", "-fmax-errors=3"])
        _state[compiler] = _Toolchain(compiler, version, tuple(options), run)
        return _state[compiler]


def available():
    """(True, what it will use) or (False, why not, in a sentence)."""
    if not sys.platform.startswith("linux"):
        return False, f"the emulator runs on Linux; this is {platform.system() or sys.platform}"
    try:
        version = _toolchain().version
        if os.statvfs(_folder()).f_flag & os.ST_NOEXEC:
            return False, (f"{_folder().parent} may not run programs: set TMPDIR to a folder "
                           "that may")
        return True, version
    except (CompileError, OSError, subprocess.SubprocessError) as error:
        return False, str(error)


def double_lines(source):
    """``{(file or cell, line): text}`` where the C++ compiler sees a float become a double.

    A GPU's compiler can narrow some of them again; nvrtc.double_lines() knows which.
    """
    tools = _toolchain()
    options = [option for option in tools.options if option != "-w"]
    _, _, warnings = _run([tools.compiler, *options, "-Wdouble-promotion", "-fsyntax-only",
                           "-x", "c++", "-"], _folder(), explain.numbered(source))
    lines = explain.lines_of(source)
    places = [(match[1], int(match[2])) for match in
              re.finditer(r"^(.+?):(\d+):.* \[-Wdouble-promotion\]$", warnings, re.M)]
    return {place: lines[place].strip() for place in places if place in lines}


class HostBackend:
    """Kernels on the host. Safe to use from several threads at once.

    ``orders``: the thread orders each launch runs under, of 'ascending', 'descending' and
    'shuffled'; one is enough where the same kernel has passed at a smaller size.
    ``limit_s``: seconds that one block may take before the launch is given up.
    """

    mark = "emulated"
    array_name = "an array of the emulated device"

    def __init__(self, orders=ORDERS, limit_s=10.0):
        if isinstance(orders, str) or not orders or set(orders) - set(ORDERS):
            raise ArgumentError(f"orders is {orders!r}, needs some of {ORDERS}")
        if not limit_s > 0:
            raise ArgumentError(f"limit_s is {limit_s!r}, needs a number of seconds above 0")
        ready, reason = available()
        if not ready:
            raise ArgumentError(f"no emulation: {reason}")
        self.orders, self.limit_s = tuple(orders), float(limit_s)

    def versions(self):
        """Software that an emulated result depends on."""
        return {"compiler": _toolchain().version, "numpy": np.__version__,
                "machine": platform.machine()}

    def describe(self):
        orders = "1 thread order" if len(self.orders) == 1 else f"{len(self.orders)} thread orders"
        return f"on the host, {_toolchain().version}, {orders}"

    def compile(self, source, defines=None):
        """A HostProgram of ``source``; ``defines`` is ``{macro: value}``."""
        defines = tuple(sorted((defines or {}).items()))
        tools = _toolchain()
        key = (source.digest, source.label, defines, tools.compiler)
        with _lock:
            _folder()
            built = _state["programs"].setdefault(key, _Build())
        with built.lock:  # another thread may be building the same source
            if built.executable is None:
                built.build(source, defines, tools)
        return HostProgram(self, source, built)

    def put(self, array):
        return np.array(array).view(HostArray)

    def full(self, shape, value, dtype=np.float32):
        return np.full(shape, value, dtype=dtype).view(HostArray)

    def get(self, array):
        return np.array(array, subok=False)

    def owns(self, array):
        """Whether ``array`` lives where this backend's kernels can reach it."""
        return isinstance(array, HostArray)

    def free_bytes(self):
        """Bytes that arrays may use. A launch holds an array it writes about ten times: the
        array, its copy for the child, two to compare orders, six for the race detector."""
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":") for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024 // 10


class _Build:
    """One source, compiled: the executable and where shared arrays lie in its memory."""

    def __init__(self):
        self.lock = threading.Lock()
        self.executable = None

    def build(self, source, defines, tools):
        with _lock:
            _state["count"] += 1
            folder = _folder() / str(_state["count"])
        folder.mkdir()
        bare = _COMMENT.sub(" ", source.text)
        text = "\n".join([explain.numbered(source), f'#line 1 "{_END}"',
                          *self._registration(source, set(_DYNAMIC.findall(bare)))])
        (folder / "kernel.cpp").write_text(text, encoding="utf-8")
        code, _, errors = _run(
            [tools.compiler, *tools.options, *(f"-D{name}={value}" for name, value in defines),
             "-c", "kernel.cpp", "-o", "kernel.o"], folder)
        if code:
            raise CompileError(explain.compiler(source, errors))
        code, _, errors = _run([tools.compiler, "-no-pie", "kernel.o", str(tools.run),
                                "-o", "kernel", "-lm"], folder)
        if code:
            raise CompileError(explain.linker(source, errors))
        self._read_symbols(folder)
        for name in source.kernels:
            if self.static_shared(name, source) > STATIC_SHARED:
                raise CompileError(
                    f"{source.label}: {name} declares {self.static_shared(name, source):,} bytes "
                    f"of __shared__ arrays; a block gets at most {STATIC_SHARED:,}")
        self.folder, self.executable = folder, folder / "kernel"

    @staticmethod
    def _registration(source, dynamic):
        """C++ lines after the source: a table of its kernels, and memory for extern arrays."""
        # All extern __shared__ arrays of a source are one piece of memory, as on a GPU.
        if dynamic:
            yield "".join(f'asm(".globl {name}\\n.set {name}, emulator_dynamic\\n'
                          f'.type {name}, %tls_object");' for name in sorted(dynamic))
            yield (f"__attribute__((aligned(1024))) thread_local unsigned char "
                   f'emulator_dynamic_[{SHARED}] __asm__("emulator_dynamic");')
        yield "namespace emulator {"
        for i, kernel in enumerate(source.kernels.values()):
            args = ", ".join(f"*(Param<{j}, decltype(&{kernel.name})>::type*)a[{j}]"
                             for j in range(len(kernel.params)))
            yield f"static void call{i}(void** a) {{ {kernel.name}({args}); }}"
        table = "".join(f'{{"{name}", call{i}}}, ' for i, name in enumerate(source.kernels))
        yield f'const Kernel kernels[] = {{{table}{{"", 0}}}};'
        yield f"const int kernel_count = {len(source.kernels)};"
        yield "}"
        yield ""

    def _read_symbols(self, folder):
        """From the symbol table: name, function, offset and size of each __shared__ array, and
        the functions by the name that a linker sees."""
        self.shared, self.dynamic, self.functions = [], (0, 0), set()
        _, table, _ = _run(["readelf", "-sW", "kernel"], folder)
        for line in table.splitlines():
            words = line.split()
            if len(words) < 8 or words[3] != "TLS":
                if len(words) == 8 and words[3] == "FUNC":
                    self.functions.add(words[7])
                continue
            offset, size, symbol = int(words[1], 16), int(words[2], 0), words[7]
            if symbol == "emulator_dynamic":
                self.dynamic = (offset, size)
            elif local := re.match(r"_ZZ(?:N?)(\d+)(\w+)", symbol):
                function = local[2][:int(local[1])]
                array = re.search(r"E(\d+)(\w+)$", symbol)
                name = array[2][:int(array[1])] if array else symbol
                self.shared.append((offset, size, name, function))
            elif size:
                self.shared.append((offset, size, re.sub(r"^_ZL?\d*", "", symbol), ""))
        # The names of extern arrays are other names of the dynamic part.
        self.shared = [array for array in self.shared if array[:2] != self.dynamic]

    def static_shared(self, kernel, source):
        """Static shared bytes of a kernel: its own arrays and those of device functions."""
        return sum(size for _, size, _, function in self.shared
                   if function == kernel or function not in source.kernels)


class HostProgram:
    """A compiled source: launch() runs one of its kernels."""

    def __init__(self, backend, source, built):
        self.backend, self.source, self._built = backend, source, built

    def launch(self, name, grid, block, args, shared=0):
        """Run a kernel to its end under each thread order. Returns Counts.

        ``grid`` and ``block`` are tuples of 1 to 3 sizes; ``args`` are arrays and Python
        scalars, converted to the declared types; ``shared`` is dynamic shared bytes.
        Raises LaunchError (did not run to its end), RaceError (depends on the order of threads),
        InputError (wrote to a ``const`` argument), ArgumentError (refused before it ran).
        """
        return self._launch(name, grid, block, args, shared, None)

    def shared_accesses(self, name, grid, block, args, shared=0):
        """Run a kernel once; the shared-memory accesses of its first block, a list of Shared.

        The k-th time that each lane of a warp passes an instruction counts as one access of the
        warp: right for code whose lanes take the same path. It is what the source asks for; a
        GPU's compiler may merge accesses.
        """
        with tempfile.TemporaryFile(dir=_folder()) as trace:
            self._launch(name, grid, block, args, shared, trace.fileno())
            trace.seek(0)
            records = np.frombuffer(trace.read(), _ACCESS)
        counters = np.unique(records["pc"])
        places = explain.Run(self.source, self.source.kernels[name], grid, block, self.backend, [],
                             self._built).lines_at(int(pc) for pc in counters)
        return [Shared(place or "", *_wavefronts(records[records["pc"] == pc]))
                for pc, place in zip(counters, places, strict=True)]

    def static_shared_bytes(self, name):
        """Bytes of the __shared__ arrays of a kernel, as the C++ compiler lays them out."""
        return self._built.static_shared(name, self.source)

    def _launch(self, name, grid, block, args, shared, trace):
        kernel = kernel_of(self.source, name, args)
        if name not in self._built.functions:  # a GPU could not find it either
            raise LaunchError(f'{name} has no C linkage: write extern "C" __global__ before it')
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
                           str(-1 if trace is None else trace), str(len(buffers))]
                for buffer, at in zip(buffers, offsets, strict=True):
                    command += [str(at), str(buffer.array.nbytes), str(int(buffer.read_only))]
                report, printed = self._child([*command, str(len(words)), *words], view, memory,
                                              *([] if trace is None else [trace]))
                if printed:
                    print(printed, end="")
                if "error" in report:
                    run = explain.Run(self.source, kernel, grid, block, self.backend, buffers,
                                      self._built)
                    raise run.error(report)
                for buffer, at in zip(buffers, offsets, strict=True):
                    if not buffer.read_only:
                        flat = buffer.array.reshape(-1).view(np.uint8)
                        flat[:] = _window(view, at, buffer.array)
        finally:
            os.close(memory)
        return Counts(report["loads"], report["stores"])

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
        static = self._built.static_shared(name, self.source)
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
            _check_array(kernel, param, value)
            read_only = "const" in param.type.split("*")[0].split()
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
                                 stderr=subprocess.PIPE, pass_fds=files, errors="replace")
        done = 0  # blocks, as the child counts them
        try:
            while True:
                try:
                    printed, errors = child.communicate(timeout=self.backend.limit_s + 3)
                    break
                except subprocess.TimeoutExpired:
                    # The child's own timer has failed if not one block ended in this time.
                    if done == (done := int.from_bytes(view[:8], "little")):
                        return {"error": "killed"}, ""
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


def _check_array(kernel, param, value):
    """Refuse what a GPU would read as something else."""
    where = f"{kernel.name}: {param.name}"
    if not isinstance(value, HostArray):
        raise ArgumentError(f"{where} is {type(value).__module__}.{type(value).__name__}, needs "
                            f"{HostBackend.array_name}: use backend.put({param.name})")
    base = param.type.replace("const", " ").split("*")[0].strip()
    needed = _DTYPES.get(base.rstrip("234") if base[-1:] in "234" else base)
    if needed and value.dtype != needed:
        raise ArgumentError(f"{where} has dtype {value.dtype}, needs {needed}: the kernel "
                            f"declares {param.type}")
    if not value.flags.c_contiguous:
        raise ArgumentError(f"{where} is a view that is not C-contiguous (strides "
                            f"{value.strides}): copy it with .copy()")


_ACCESS = np.dtype([("pc", "u4"), ("offset", "u4"), ("thread", "u2"), ("bytes", "u1"),
                    ("write", "u1")])  # struct Access of run.cpp


def _wavefronts(records):
    """(passes, passes without bank conflicts) of one instruction's accesses.

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


def _memory_file(size):
    """A file descriptor of ``size`` bytes of memory, which the child maps too."""
    try:
        memory = os.memfd_create("lesson")
    except (AttributeError, OSError):  # a C library or a sandbox that has none
        with tempfile.TemporaryFile(dir=_folder()) as file:
            memory = os.dup(file.fileno())
    os.ftruncate(memory, size)
    return memory


def _window(view, at, array):
    return np.frombuffer(view, np.uint8, array.nbytes, at)
