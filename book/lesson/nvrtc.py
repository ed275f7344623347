"""NVRTC through CuPy: compile a source for any architecture, with or without a GPU."""

import atexit
import os
import re
import shutil
import tempfile

from .errors import CompileError, LessonError
from .explain import compile_error, lines_of
from .occupancy import KernelFacts

OPTIONS = ("-std=c++17",)

_FACTS = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads\s+ptxas info\s*: Used (?P<registers>\d+) registers"
    r"(?P<rest>[^\n]*)",
    re.S,
)

_ERROR = re.compile(r"^(?P<label>.+?)\((?P<line>\d+)\): (?:catastrophic )?error:? ?(?P<message>.*)"
                    r"(?:\n  .*\n(?P<caret> *)\^)?", re.M)
_DOUBLE = re.compile(r"\s*(?:add|sub|mul|fma|div|rcp|sqrt|rsqrt|min|max|setp|neg|abs)\.[\w.]*f64\b")


def import_cupy():
    """Import CuPy, which makes its kernel cache at once: in a read-only home, a temporary one."""
    if "CUPY_CACHE_DIR" not in os.environ:
        cache = os.path.expanduser("~/.cupy/kernel_cache")
        try:
            os.makedirs(cache, exist_ok=True)
            writable = os.access(cache, os.W_OK)
        except OSError:
            writable = False
        if not writable:
            os.environ["CUPY_CACHE_DIR"] = folder = tempfile.mkdtemp(prefix="lesson-cupy-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
    import cupy

    return cupy


def available():
    """``(True, version)`` or ``(False, reason in a sentence)``."""
    try:
        import_cupy()
        from cupy.cuda import nvrtc
    except ImportError:
        return False, "CuPy is not installed, so there is no NVRTC to compile with"
    try:
        return True, "{}.{}".format(*nvrtc.getVersion())
    except Exception as error:  # CuPy raises RuntimeError or its own, by version
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return False, f"NVRTC does not load ({first}); pip install nvidia-cuda-nvrtc-cu12"


def compile_cubin(source, arch, defines=None):
    """Compile ``source`` (a Source) for ``arch`` ('sm_75').

    Returns (cubin bytes, log). Raises CompileError with the compiler's message, in the line
    numbers of the source's own labels, and LessonError where there is no NVRTC.
    """
    found, reason = available()
    if not found:
        raise LessonError(reason)
    return _compile(source, (f"-arch={arch}", "--ptxas-options=-v",
                             *(f"-D{name}={value}" for name, value in (defines or {}).items())),
                    "getCUBIN")


def _compile(source, options, get):
    """(what ``get`` gives, log) of a source compiled with ``options``."""
    from cupy.cuda import nvrtc

    # From 12.9 on NVRTC caches what it compiled, and a cached kernel comes without ptxas's facts.
    uncached = ("-no-cache",) if nvrtc.getVersion() >= (12, 9) else ()
    program = nvrtc.createProgram(source.text, source.label, (), ())
    try:
        nvrtc.compileProgram(program, (*OPTIONS, *uncached, *options))
        return getattr(nvrtc, get)(program), nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise CompileError(explain(source, log) if log.strip() else str(error)) from None
    finally:
        nvrtc.destroyProgram(program)


def explain(source, log):
    """A CompileError's text from an NVRTC log."""
    found = []
    for match in _ERROR.finditer(log):
        message = re.sub(r"^#\d+(-D)?: ", "", match["message"])
        if asserted := re.match(r'static assertion failed with "(.*)"', message):
            message = asserted[1]
        # NVRTC shows the line, moved right by two, and a caret under it.
        column = len(match["caret"]) - 1 if match["caret"] is not None else 0
        found.append((match["label"], int(match["line"]), column, message))
    shared = re.search(r"Entry function '(\w+)' uses too much shared data "
                       r"\(0x(\w+) bytes, 0x(\w+) max\)", log)
    return compile_error(source, found, f"{shared[1]} declares {int(shared[2], 16):,} bytes of "
                         f"__shared__ arrays; a block gets at most {int(shared[3], 16):,}"
                         if shared else log.strip())


def double_lines(source):
    """``{(file or cell, line): text}`` of the lines that the compiler computes in double.

    Its own PTX decides: a literal that it can narrow to float without another result costs
    nothing and is not named. What it moved out of a loop lost its line, so lines of edited cells
    count before others.
    """
    ptx, _ = _compile(source, ("-arch=compute_75", "-lineinfo"), "getPTX")
    ptx = ptx.decode() if isinstance(ptx, bytes) else ptx  # by CuPy's version
    files = dict(re.findall(r'\.file\s+(\d+) "(.*?)"', ptx))
    lines, place, found = lines_of(source), None, {}
    for line in ptx.splitlines():
        if at := re.match(r"\s*\.loc\s+(\d+) (\d+)", line):
            label = next((known for known, _ in lines if files.get(at[1], "").endswith(known)), "")
            place = label, int(at[2])
        elif _DOUBLE.match(line) and place in lines:
            found[place] = lines[place].strip()
    return {place: found[place] for place in found if place[0].startswith("cell ")} or found


def parse_facts(log):
    """KernelFacts per kernel from ptxas's verbose output."""
    return {
        m["kernel"]: KernelFacts(
            m["kernel"],
            int(m["registers"]),
            int(found[1]) if (found := re.search(r"(\d+) bytes smem", m["rest"])) else 0,
            int(m["stack"]),
            int(m["stores"]) + int(m["loads"]),
        )
        for m in _FACTS.finditer(log)
    }


def facts(source, arch="sm_75", defines=None):
    """``{kernel: KernelFacts}`` of ``source`` compiled for ``arch``. Needs NVRTC, no GPU."""
    return parse_facts(compile_cubin(source, arch, defines)[1])
