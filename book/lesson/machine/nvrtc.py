"""NVRTC through CuPy: compile a source for any architecture, with or without a GPU."""

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path

from ..errors import CompileError, LessonError
from ..text.source import lines_of
from . import cache, refusals, signatures
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
_AT_END = re.compile(r"^At end of source: error: (?P<message>.*)\n"
                     r"(?P<label>.+?)\((?P<line>\d+)\): note", re.M)
_DOUBLE = re.compile(r"\s*(?:add|sub|mul|fma|div|rcp|sqrt|rsqrt|min|max|setp|neg|abs)\.[\w.]*f64\b")


def import_cupy():
    """Import CuPy, which makes its kernel cache at once: where it may not, a temporary one."""
    cache = os.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache")
    try:
        os.makedirs(cache, exist_ok=True)
        writable = os.access(cache, os.W_OK)
    except (OSError, ValueError):
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


def compile_cubin(source, arch, defines=None, anew=False):
    """Compile ``source`` (a Source) for ``arch`` ('sm_75').

    Returns (cubin bytes, log). Raises CompileError with the compiler's message, in the line
    numbers of the source's own labels, and LessonError where there is no NVRTC. ``anew``: also
    where the result is kept, for who measures how long it takes.
    """
    found, reason = available()
    if not found:
        raise LessonError(reason)
    options = f"-arch={specific(source, arch)}", "--ptxas-options=-v", *_macros(defines)
    return (_compile if anew else _kept)(source, options, "getCUBIN")


def specific(source, arch):
    """``arch``, or 'sm_90a' for a source with wgmma: what plain 'sm_90' leaves out."""
    return "sm_90a" if arch == "sm_90" and "wgmma" in source.text else arch


def kernels(source, arch="sm_75", defines=None):
    """``{name: Kernel}`` of a Source, as NVRTC reads it. Raises as compile_cubin does."""
    found, reason = available()
    if not found:
        raise LessonError(reason)
    return signatures.by_name(signatures.in_ptx(_ptx(source, (
        f"-arch={arch.replace('sm_', 'compute_')}", "-G", *_macros(defines)))))


def taken(source, defines=None):
    """``{name: Kernel}`` of a Source that NVRTC takes, for a T4 or else for an H200; None where
    there is no NVRTC. Raises CompileError where it refuses the source."""
    if not available()[0]:
        return None
    try:
        return kernels(source, "sm_75", defines)
    except CompileError as error:
        try:
            return kernels(source, "sm_90", defines)
        except CompileError:
            raise error from None


def is_template(source, name, arch="sm_75"):
    """Whether a Source has a function template called ``name``; False where it cannot be asked."""
    try:
        kernels(refusals.probe(source, name), arch)
    except LessonError as error:
        return refusals.means_template(str(error))
    return False


def _ptx(source, options):
    return _kept(source, options, "getPTX")[0].decode()


def _macros(defines):
    return tuple(f"-D{name}={value}" for name, value in (defines or {}).items())


def _kept(source, options, get):
    """What ``_compile`` gives: from the user's cache, where that has it."""
    from cupy.cuda import nvrtc

    name = cache.key(str(nvrtc.getVersion()), get, *OPTIONS, *options, source.label, source.text)
    with tempfile.TemporaryDirectory(prefix="lesson-nvrtc-") as folder:
        made, log = Path(folder, "made"), Path(folder, "log")
        if not cache.fetch(name, folder):
            found = _compile(source, options, get)
            made.write_bytes(found[0])
            log.write_text(found[1], encoding="utf-8")
            cache.keep(name, [made, log])
            return found
        return made.read_bytes(), log.read_text(encoding="utf-8")


def _compile(source, options, get):
    """(bytes that ``get`` gives, log) of a source compiled with ``options``."""
    from cupy.cuda import nvrtc

    # From 12.9 on NVRTC caches what it compiled, and a cached kernel comes without ptxas's facts.
    uncached = ("-no-cache",) if nvrtc.getVersion() >= (12, 9) else ()
    program = nvrtc.createProgram(source.text, source.label, (), ())
    try:
        nvrtc.compileProgram(program, (*OPTIONS, *uncached, *options))
        found = getattr(nvrtc, get)(program)  # a str or bytes, by CuPy's version
        found = found.encode() if isinstance(found, str) else found
        return found, nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise CompileError(refused(source, log) if log.strip() else str(error)) from None
    finally:
        nvrtc.destroyProgram(program)


def refused(source, log):
    """A CompileError's text from an NVRTC log."""
    found = []
    for match in _ERROR.finditer(log):
        message = re.sub(r"^#\d+(-D)?: ", "", match["message"])
        if asserted := re.match(r'static assertion failed with "(.*)"', message):
            message = asserted[1]
        # NVRTC shows the line, moved right by two, and a caret under it.
        column = len(match["caret"]) - 1 if match["caret"] is not None else 0
        found.append((match["label"], int(match["line"]), column, message))
    found += [(m["label"], int(m["line"]), 0, m["message"]) for m in _AT_END.finditer(log)]
    shared = re.search(r"Entry function '(\w+)' uses too much shared data "
                       r"\(0x(\w+) bytes, 0x(\w+) max\)", log)
    return refusals.compile_error(
        source, found, f"{shared[1]} declares {int(shared[2], 16):,} bytes of __shared__ arrays; "
        f"a block gets at most {int(shared[3], 16):,}" if shared else log.strip())


def double_lines(source):
    """``{(file or cell, line): text}`` of the lines that the compiler computes in double.

    Its own PTX decides: a literal that it can narrow to float without another result costs
    nothing and is not named. What it moved out of a loop lost its line, so lines of edited cells
    count before others.
    """
    ptx = _ptx(source, ("-arch=compute_75", "-lineinfo"))
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
