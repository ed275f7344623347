"""The C++ compiler of the emulator: which it is, its options, and the runtime that it makes.

What it makes is kept for later processes (see ``machine/cache.py``), as far as a folder for that
can be had.
"""

import atexit
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

from ...errors import CompileError
from ...text.source import lines_of, numbered
from .. import cache, nvrtc, refusals, signatures

EMULATOR = Path(__file__).resolve().parent
TOOL_LIMIT_S = 120  # for one run of the compiler; the lesson's kernels take less than 1 s
NO_COMPILER = ("no C++ compiler was found: install g++ (Debian, Ubuntu, Colab: "
               "apt-get install g++) or set CXX to one")

lock = threading.RLock()
state = {}  # the temporary folder and what was built in it, of this process


def folder():
    """The temporary folder of this process, removed at its end. Honours TMPDIR."""
    with lock:
        if state.get("pid") != os.getpid():  # also after a fork, which must not share it
            state.clear()
            state.update(pid=os.getpid(), count=0, programs={},
                          folder=Path(tempfile.mkdtemp(prefix="lesson-")))
            atexit.register(_remove, os.getpid(), state["folder"])
        return state["folder"]


def _remove(pid, folder):
    if pid == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def _compiler():
    """Path of the C++ compiler, or None."""
    if os.environ.get("CXX"):
        return shutil.which(os.environ["CXX"])
    return next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)


def run(command, where, text=""):
    """Run a compiler tool on ``text``. Returns (exit code, standard output, standard error)."""
    # Folders that a compiler would search although -nostdinc tells it to search none.
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")}
    try:
        done = subprocess.run(command, cwd=where, input=text, capture_output=True,
                              encoding="utf-8",
                              env={**environment, "LC_ALL": "C", "TMPDIR": str(where)},
                              errors="replace", timeout=TOOL_LIMIT_S)
    except subprocess.TimeoutExpired:
        return 1, "", f"error: {command[0]} took longer than {TOOL_LIMIT_S} s"
    return done.returncode, done.stdout, done.stderr


@dataclass(frozen=True)
class Toolchain:
    """A compiler, its options, and the emulator's runtime compiled by it."""

    compiler: str
    version: str
    plain: tuple  # options of what no kernel is
    options: tuple
    runtime: Path
    key: str  # of the compiler and of the emulator's sources


def toolchain():
    """The compiler, with the runtime built; raises CompileError where it cannot be used."""
    compiler = _compiler()
    if compiler is None:
        named = os.environ.get("CXX")
        raise CompileError(f"CXX is {named!r}, which is no program that can be run: {NO_COMPILER}"
                           if named else NO_COMPILER)
    with lock:
        place = folder()
        if compiler in state:
            return state[compiler]
        _, banner, _ = run([compiler, "--version"], place)
        number = re.search(r"\d+\.\d+(\.\d+)?", banner)
        clang = "clang" in banner
        version = f"{'clang++' if clang else 'g++'} {number[0] if number else '?'}"
        # No options of the distribution that get in the way of switching stacks by longjmp.
        plain = ["-std=c++17", "-O2", "-fno-exceptions", "-fno-rtti", "-fno-pie",
                 "-U_FORTIFY_SOURCE", "-fno-stack-protector"]
        if platform.machine() in ("x86_64", "i686"):
            plain.append("-fcf-protection=none")
        sources = sorted(file for file in EMULATOR.iterdir() if file.is_file())
        sources += [Path(module.__file__) for module in (nvrtc, signatures)]
        key = cache.key(os.path.realpath(compiler), banner, platform.machine(),
                        *(file.read_bytes() for file in sources))
        runtime = place / f"runtime{len(state)}" / "runtime.o"
        runtime.parent.mkdir()
        if not cache.fetch(key, runtime.parent):
            code, _, errors = run([compiler, *plain, "-c", str(EMULATOR / "run.cpp"),
                                    "-o", str(runtime)], place)
            if code:
                raise CompileError(f"{compiler} cannot compile the emulator: "
                                   f"{refusals.first_error(errors)}")
            cache.keep(key, [runtime])
        options = _kernel_options(clang, int(number[0].split(".")[0]) if number else 0)
        state[compiler] = Toolchain(compiler, version, tuple(plain), (*plain, *options),
                                      runtime, key)
        return state[compiler]


# Functions of the C library that a compiler knows and CUDA does not have: names for kernels.
_LIBRARY = ("abort", "conj", "exit", "index", "memcmp", "puts", "signal", "strlen", "tolower")


def _kernel_options(clang, age):
    """Options for a kernel, beside those of the runtime; ``age`` is the compiler's version."""
    # Debug information for the messages and for signatures.py, in version 4, which every addr2line
    # reads; hooks at loads and stores; checks of indices, of alignment and of the integer
    # arithmetic that C++ leaves undefined; floating-point arithmetic as written, the same on
    # every machine; an endless loop stays one; a large frame meets its guard; a __shared__
    # variable that nobody writes is read all the same. No header but cuda.h is found: NVRTC has
    # none. No two kernels become one.
    options = ["-g", "-gdwarf-4", "-gz=none", "-w", "-fno-strict-aliasing", "-ffp-contract=off",
               "-fno-finite-loops", "-fstack-clash-protection", "-fno-optimize-sibling-calls",
               "-fsanitize=thread,bounds,alignment,integer-divide-by-zero,shift-exponent",
               "-fno-sanitize-recover=all", "-nostdinc", "-include", str(EMULATOR / "cuda.h"),
               "-ftabstop=1", "-fno-builtin-printf", *(f"-fno-builtin-{name}" for name in _LIBRARY)]
    if clang or age >= 12:
        options.append("-ftrivial-auto-var-init=pattern")  # see nan_for_no_value()
    if clang:
        if age >= 12:  # it leaves out the read of what is then written, else
            options += ["-mllvm", "-tsan-instrument-read-before-write=1"]
        return [*options, "-mllvm", "-tsan-instrument-func-entry-exit=0",
                "-fno-caret-diagnostics", "-fno-color-diagnostics", "-fstandalone-debug",
                "-ferror-limit=9"]
    return [*options, "--param", "tsan-instrument-func-entry-exit=0", "-fno-extern-tls-init",
            "-fno-var-tracking", "-fno-ipa-icf", "-fno-ipa-reference-addressable",
            "-fno-isolate-erroneous-paths-dereference", "-fno-diagnostics-show-caret",
            "-fmax-errors=9"]


# For HostBackend(whole=True): g++ does not take a float4 apart into the parts that are used. An
# option of g++ alone: clang++ warns of it, and its warnings are off.
WHOLE = ("-fno-tree-sra",)

# What g++ puts into a variable that the source gives no value: bytes of 0xfe. Its assembly has them
# as numbers of four and eight bytes, byte by byte, and as the value for memset().
_NO_VALUE = re.compile(r"(?<![\w.-])(-16843010|-72340172838076674)(?!\w)"
                       r"|(?P<bytes>(?:\t\.byte\t-2\n){4,})"
                       r"|(?P<set>\$254)(?=, %esi\n(?:(?!\tcall).*\n){0,8}\tcall\t\w*memset)")


def nan_for_no_value(assembly, byte=-1):
    """A kernel's assembly with NaN for local variables that have no first value.

    g++ gives them -1.7e38, which exp(-inf) = 0 wipes out; a NaN stays, except in a maximum. There
    another ``byte`` shows more: of bytes of 126 a float is 8.5e37.
    """
    def number(found):
        if found["bytes"]:
            return found["bytes"].replace("-2", str(byte))
        if found["set"]:
            return f"${byte % 256}"
        size = 4 if found[0] == "-16843010" else 8
        return str(int.from_bytes(bytes([byte % 256]) * size, "little", signed=True))

    return _NO_VALUE.sub(number, assembly)


def available():
    """(True, what it will use) or (False, why not, in a sentence)."""
    if not sys.platform.startswith("linux"):
        return False, f"the emulator runs on Linux; this is {platform.system() or sys.platform}"
    try:
        version = toolchain().version
        if os.statvfs(folder()).f_flag & os.ST_NOEXEC:
            return False, (f"{folder().parent} may not run programs: set TMPDIR to a folder "
                           "that may")
        return True, version
    except (CompileError, OSError, subprocess.SubprocessError) as error:
        return False, str(error)


def double_lines(source):
    """``{(file or cell, line): text}`` where the C++ compiler sees a float become a double.

    A GPU's compiler can narrow some of them again; nvrtc.double_lines() knows which.
    """
    tools = toolchain()
    options = [option for option in tools.options if option != "-w"]
    _, _, warnings = run([tools.compiler, *options, "-Wdouble-promotion", "-fsyntax-only",
                           "-x", "c++", "-"], folder(), numbered(source))
    lines = lines_of(source)
    places = [(match[1], int(match[2])) for match in
              re.finditer(r"^(.+?):(\d+):.* \[-Wdouble-promotion\]$", warnings, re.M)]
    return {place: lines[place].strip() for place in places if place in lines}
