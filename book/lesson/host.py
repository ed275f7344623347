"""The emulated backend: the same kernel sources, run on the host, checked as a GPU does not.

A source is compiled by a C++ compiler after ``emulator/cuda.h``, which gives the CUDA names a
host meaning, and linked with ``emulator/run.cpp``, which runs one launch: fibers for threads, a
hook at every load and store. Each launch is a child process, so whatever a kernel does, this
process goes on. An emulated result is for the gate; how long it took says nothing about a GPU.

Every launch runs under several orders of blocks, warps and lanes. In the first, and in each
other, the run checks addresses and looks for two accesses of one word with no barrier between
them, whatever the order was. The orders find the rest: a result that changes with the order,
for example through atomics. Emulated times are neither returned nor shown.
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

from .backend import kernel_of, scalar
from .errors import ArgumentError, CompileError, InputError, LaunchError, RaceError

EMULATOR = Path(__file__).resolve().parent / "emulator"
ORDERS = ("ascending", "descending", "shuffled")
PAGE = 65536  # a multiple of any machine's page: where buffers may start in the memory file

MAX_THREADS = 1024  # of a block, on every GPU so far
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
STATIC_SHARED = 48 * 1024  # bytes of a block without opting in
SHARED = 227 * 1024  # bytes of a block that opts in, on an H200

NO_COMPILER = ("no C++ compiler was found: install g++ (Debian, Ubuntu, Colab: "
               "apt-get install g++) or set CXX to one")

_DTYPES = {"float": "float32", "double": "float64", "int": "int32", "unsigned": "uint32"}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_DYNAMIC = re.compile(r"\bextern\s+__shared__\b[^;\[]*?(\w+)\s*\[\s*\]")
_LINE = re.compile(r'\s*#\s*line\s+(\d+)(?:\s+"(.*)")?')
_ERROR = re.compile(r"(.+?):(\d+):(?:(\d+):)? (?:fatal )?error: (.*)")
_END = "(end of the source)"

_lock = threading.RLock()
_state = {}  # the temporary folder and what was built in it, of this process


@dataclass(frozen=True)
class Counts:
    """Bytes of global memory that the loads and stores of one launch asked for."""

    loads_bytes: int
    stores_bytes: int


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


def _run(command, folder):
    """Run a compiler tool. Returns (exit code, standard output, standard error)."""
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
                          env={**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)},
                          errors="replace", timeout=300)
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
            raise CompileError(f"{compiler} cannot compile the emulator: {_first_error(errors)}")
        # A kernel: debug lines for the messages; hooks at loads and stores; checks of indices
        # and of alignment; arithmetic as written, the same on every machine.
        options += ["-g1", "-w", "-fno-strict-aliasing", "-ffp-contract=off",
                    "-fsanitize=thread,bounds,alignment", "-fno-sanitize-recover=all",
                    "-include", str(EMULATOR / "cuda.h"), "-ftabstop=1"]
        options += (["-mllvm", "-tsan-instrument-func-entry-exit=0", "-fno-caret-diagnostics",
                     "-fno-color-diagnostics", "-ferror-limit=3"] if clang else
                    ["--param", "tsan-instrument-func-entry-exit=0", "-fno-extern-tls-init",
                     "-fno-diagnostics-show-caret", "-fmax-errors=3"])
        _state[compiler] = _Toolchain(compiler, version, tuple(options), run)
        return _state[compiler]


def _first_error(text):
    lines = [line for line in text.splitlines() if "error" in line.lower()] or text.splitlines()
    return lines[0].split("error: ")[-1].strip() if lines else "no message"


def available():
    """(True, what it will use) or (False, why not, in a sentence)."""
    if not sys.platform.startswith("linux"):
        return False, f"the emulator runs on Linux; this is {platform.system() or sys.platform}"
    try:
        return True, _toolchain().version
    except (CompileError, OSError, subprocess.SubprocessError) as error:
        return False, str(error)


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
        return f"emulated on the host, {_toolchain().version}, {orders}"

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
        label = source.label.replace("\\", "/").replace('"', "'")
        text = "\n".join([f'#line 1 "{label}"', source.text, f'#line 1 "{_END}"',
                          *self._registration(source, set(_DYNAMIC.findall(bare)))])
        (folder / "kernel.cpp").write_text(text, encoding="utf-8")
        code, _, errors = _run(
            [tools.compiler, *tools.options, *(f"-D{name}={value}" for name, value in defines),
             "-c", "kernel.cpp", "-o", "kernel.o"], folder)
        if code:
            raise CompileError(_explain_compiler(source, errors, bare))
        code, _, errors = _run([tools.compiler, "-no-pie", "kernel.o", str(tools.run),
                                "-o", "kernel", "-lm"], folder)
        if code:
            raise CompileError(_explain_linker(source, errors))
        self._find_shared(folder)
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

    def _find_shared(self, folder):
        """Name, function, offset and size of each __shared__ array, from the symbol table."""
        self.shared, self.dynamic = [], (0, 0)
        _, table, _ = _run(["readelf", "-sW", "kernel"], folder)
        for line in table.splitlines():
            words = line.split()
            if len(words) < 8 or words[3] != "TLS":
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
        kernel = kernel_of(self.source, name, args)
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
                           repr(self.backend.limit_s), "".join(o[0] for o in self.backend.orders),
                           str(len(buffers))]
                for buffer, at in zip(buffers, offsets, strict=True):
                    command += [str(at), str(buffer.array.nbytes), str(int(buffer.read_only))]
                report, printed = self._child([*command, str(len(words)), *words], memory, view)
                if printed:
                    print(printed, end="")
                if "error" in report:
                    raise _Explain(self, kernel, grid, block, buffers, report).error()
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
        static = self._built.static_shared(name, self.source)
        if shared < 0 or static + shared > SHARED:
            raise LaunchError(f"{name}: {static:,} static and {shared:,} dynamic bytes of shared "
                              f"memory; a block gets at most {SHARED:,}")

    def _arguments(self, kernel, args):
        """Buffers (each array once) and the argument words of the child."""
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

    def _child(self, command, memory, view):
        """Run the child and wait. Returns (its report, what the kernel printed)."""
        try:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, pass_fds=(memory,),
                                     errors="replace")
        except PermissionError:
            raise LaunchError(f"{self._built.folder} may not run programs: set TMPDIR to a "
                              "folder that may") from None
        done = -1
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


# ---- messages ------------------------------------------------------------------------------


def _lines(source):
    """``{(file, line): text}`` as the compiler numbers them, after #line."""
    found, file, number = {}, source.label, 1
    for text in source.text.split("\n"):
        if match := _LINE.match(text):
            number, file = int(match[1]), match[2] or file
            continue
        found[file, number] = text
        number += 1
    return found


def _explain_compiler(source, errors, bare):
    """The first errors, each with the reader's own line."""
    lines, parts = _lines(source), []
    for line in errors.splitlines():
        match = _ERROR.match(line)
        if not match:
            continue
        file, number, column, text = match[1], int(match[2]), int(match[3] or 0), match[4]
        if (file, number) not in lines:
            continue
        text = text.removeprefix("static assertion failed: ")
        part = f"{file}, line {number}: {re.sub(r' [[]-W[^]]*[]]$', '', text)}"
        shown = lines[file, number]
        if shown.strip():
            part += f"\n    {shown}"
            if column:
                indent = "".join("\t" if c == "\t" else " " for c in shown[:column - 1])
                part += f"\n    {indent}^"
        parts.append(part)
    if bare.count("{") > bare.count("}"):
        parts.append(f"{source.label}: the text ends inside a block: a '}}' is missing")
    if not parts:
        match = next(filter(None, map(_ERROR.match, errors.splitlines())), None)
        parts.append(f"{source.label}: {match[4] if match else _first_error(errors)}")
    return "\n".join(["it does not compile", *parts[:3]])


def _explain_linker(source, errors):
    missing = sorted(set(re.findall(r"undefined reference to [`']([^'`]+)'", errors)))
    if missing:
        return f"{source.label}: declared and used, but not defined: {', '.join(missing)}"
    return f"{source.label}: the program cannot be linked: {_first_error(errors)}"


class _Explain:
    """Turns a child's report into an error that a reader can act on."""

    def __init__(self, program, kernel, grid, block, buffers, report):
        self.source, self.built, self.kernel = program.source, program._built, kernel
        self.grid, self.block, self.buffers, self.report = grid, block, buffers, report
        self.backend = program.backend
        self.lines = _lines(program.source)

    def error(self):
        kind = self.report["error"]
        classes = {"const": InputError, "race": RaceError, "order": RaceError}
        return classes.get(kind, LaunchError)(getattr(self, kind)())

    # The parts of a message

    def at(self, key, index):
        """'block 3' or 'thread (1, 2)': as many coordinates as the launch has dimensions."""
        sizes = self.grid if key == "block" else self.block
        count = max((i + 1 for i in range(3) if sizes[i] > 1), default=1)
        return f"{key} {index[0] if count == 1 else tuple(index[:count])}"

    def who(self):
        text = self.at("thread", self.report["thread"]) if "thread" in self.report else ""
        return f"  {self.at('block', self.report['block'])}, {text}"

    def place(self, file, line):
        text = self.lines.get((file, line), "").strip()
        return f"{file}, line {line}:  {text}" if text else f"{file}, line {line}"

    def places(self):
        """The source lines of the report's program counters, as text; None where unknown."""
        counters = [pc - 1 for pc in self.report.get("pc", ())]
        if "line" in self.report:
            return [self.place(self.report["file"], self.report["line"])]
        if not counters or not shutil.which("addr2line"):
            return [None] * len(counters)
        _, text, _ = _run(["addr2line", "-a", "-i", "-e", "kernel", *map(hex, counters)],
                          self.built.folder)
        found = []
        for line in text.splitlines():
            if line.startswith("0x"):
                found.append(None)
                continue
            file, _, number = line.rpartition(":")
            file = file.removeprefix(f"{self.built.folder}/")
            number = re.match(r"\d*", number)[0]
            if found and found[-1] is None and number and (file, int(number)) in self.lines:
                found[-1] = self.place(file, int(number))
        return found

    def text(self, sentence, *more):
        """The message of most reports: what happened, the line, block and thread."""
        place = next(filter(None, self.places()), None)
        return "\n".join([f"{self.kernel.name} {sentence}", *([f"  {place}"] if place else []),
                          self.who(), *more])

    def element(self):
        """'q[17]' for the buffer and offset of the report."""
        buffer = self.buffers[self.report["buffer"]]
        index, rest = divmod(self.report["offset"], buffer.array.itemsize)
        inside = f" (byte {rest} of it)" if rest else ""
        return f"{'/'.join(buffer.names)}[{index}]{inside}", buffer

    def shared(self, offset):
        """'element 17 of qTile' for an offset in shared memory."""
        start, size = self.built.dynamic
        if start <= offset < start + size:
            return f"byte {offset - start} of dynamic shared memory"
        for start, size, name, _ in self.built.shared:
            if start <= offset < start + size:
                return f"element {(offset - start) // 4} of {name} (counted from its start)"
        return "shared memory"

    def verb(self):
        return "writes" if self.report["write"] else "reads"

    # One method for each kind of report

    def bounds(self):
        name, buffer = self.element()
        size = buffer.array.size
        side = "before its start" if self.report["offset"] < 0 else "past its end"
        have = f"it has {size} elements, 0 to {size - 1}" if size else "it has no elements"
        return self.text(f"{self.verb()} {name}, {side}: {have}")

    def const(self):
        name, _ = self.element()
        return self.text(f"writes to its input: {name} is declared const")

    def null(self):
        return self.text(f"{self.verb()} through a null pointer (address "
                         f"{self.report['address']:#x})")

    def wild(self):
        return self.text(f"{self.verb()} memory that belongs to none of its arguments (address "
                         f"{self.report['address']:#x}): a pointer or an index is far off")

    def fault(self):
        return self.text(f"uses memory that does not exist (address "
                         f"{self.report['address']:#x})")

    def dynamic(self):
        used = self.report["used"]
        return self.text(f"{self.verb()} byte {self.report['offset']} of dynamic shared memory; "
                         f"the launch asked for {used} bytes (argument shared)")

    def index(self):
        array = self.report["array"].strip("'")
        return self.text(f"uses index {self.report['index']} in an array of type {array}")

    def misaligned(self):
        where = ""
        if "buffer" in self.report:
            where = f" at {self.element()[0]}"
        elif "shared" in self.report:
            where = f" at {self.shared(self.report['shared'])}"
        return self.text(
            f"uses a {self.report['type'].strip(chr(39))}{where}, which is not aligned: the "
            f"address must be a multiple of {self.report['alignment']} bytes, this one is "
            f"{self.report['address'] % self.report['alignment']} past one")

    def stack(self):
        return self.text("overflows the stack of a thread: 128 KiB of local variables")

    def divide(self):
        return self.text("divides an integer by zero")

    def time(self):
        return self.text(f"was given up: one block ran for more than {self.backend.limit_s:g} s",
                         "  Does a loop never end, or wait for another block?")

    def killed(self):
        return (f"{self.kernel.name} was given up: not one block ended in "
                f"{2 * (self.backend.limit_s + 3):g} s")

    def ended(self):
        return (f"{self.kernel.name} ended its process (exit code {self.report['code']}); "
                "-9 means that the system stopped it, for lack of memory as a rule")

    def internal(self):
        return (f"{self.kernel.name} could not be run: {self.report['what']} failed "
                f"({self.report['why']})")

    def divergence(self):
        groups = []
        for group in self.report["groups"]:
            count, first = group["count"], self.at("thread", group["thread"])
            which = first if count == 1 else f"{count} threads, the first is {first},"
            if group["done"]:
                groups.append(f"  {which} returned")
                continue
            mask = f" with mask {group['mask']:#010x}" if "mask" in group else ""
            waits = "waits" if count == 1 else "wait"
            groups.append(f"  {which} {waits} at {group['what']}{mask}"
                          f"\n    {self.place(group['file'], group['line'])}")
        warp = any("mask" in group for group in self.report["groups"])
        rule = ("every lane in the mask must reach the same warp operation" if warp else
                "every thread of a block must reach the same barrier")
        return "\n".join([f"{self.kernel.name} would wait for ever in "
                          f"{self.at('block', self.report['block'])}: {rule}", *groups])

    def mask(self):
        return self.text(f"calls {self.report['what']} with mask {self.report['mask']:#010x}, "
                         f"which leaves out the calling lane {self.report['lane']}")

    def lane(self):
        return self.text(f"calls {self.report['what']} for the value of lane "
                         f"{self.report['lane']}, which does not take part (mask "
                         f"{self.report['mask']:#010x}): the value is undefined")

    def race(self):
        r = self.report
        what = self.element()[0] if "buffer" in r else self.shared(r["shared"])
        others = r["block"] != r["other_block"]
        if others:
            rule = "nothing orders two blocks of a launch"
        elif self.warp(r["thread"]) == self.warp(r["other_thread"]):
            rule = "no __syncwarp() or __syncthreads() between them"
        else:
            rule = "no __syncthreads() between them"
        parts = [f"{self.kernel.name} has a race on {what}: two threads use it, {rule}"]
        places = self.places()
        for key, write, place in (("other_", r["other_write"], places[1]),
                                  ("", r["write"], places[0])):
            block = f"{self.at('block', r[key + 'block'])}, " if others else ""
            parts.append(f"  {'written' if write else 'read'} by {block}"
                         f"{self.at('thread', r[key + 'thread'])}"
                         + (f"\n    {place}" if place else ""))
        if not others:
            parts.append(f"  both in {self.at('block', r['block'])}")
        return "\n".join(parts)

    def warp(self, thread):
        x, y, _ = self.block
        return (thread[0] + x * (thread[1] + y * thread[2])) // 32

    def order(self):
        name, buffer = self.element()
        size = buffer.array.itemsize
        at = self.report["offset"] % 8 // size * size
        first, other = (np.frombuffer(bytes.fromhex(self.report[k])[at:at + size],
                                      buffer.array.dtype)[0] for k in ("first", "other"))
        orders = self.backend.orders
        return (f"{self.kernel.name} depends on the order in which threads run: {name} is {first} "
                f"when they run {orders[0]}, {other} when they run "
                f"{orders[self.report['order']]}")
