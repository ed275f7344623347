"""NVRTC through CuPy: compile a source for any architecture, with or without a GPU."""

import re

from .errors import CompileError, LessonError
from .occupancy import KernelFacts

OPTIONS = ("-std=c++17",)

_FACTS = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads\s+ptxas info\s*: Used (?P<registers>\d+) registers"
    r"(?P<rest>[^\n]*)",
    re.S,
)


def available():
    """``(True, version)`` or ``(False, reason in a sentence)``."""
    try:
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
    from cupy.cuda import nvrtc

    # From 12.9 on NVRTC caches what it compiled, and a cached kernel comes without ptxas's facts.
    uncached = ("-no-cache",) if nvrtc.getVersion() >= (12, 9) else ()
    options = (*OPTIONS, *uncached, f"-arch={arch}", "--ptxas-options=-v",
               *(f"-D{name}={value}" for name, value in (defines or {}).items()))
    program = nvrtc.createProgram(source.text, source.label, (), ())
    try:
        nvrtc.compileProgram(program, options)
        return nvrtc.getCUBIN(program), nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise CompileError(explain(source, log) if log.strip() else str(error)) from None
    finally:
        nvrtc.destroyProgram(program)


def explain(source, log):
    """The errors of an NVRTC log, each with the file or cell, the line, and the line's text."""
    errors = re.findall(r"^(.+?)\((\d+)\): (?:catastrophic )?error:? ?(.*)$", log, re.M)
    parts = []
    for label, line, message in errors[:3]:
        text = line_of(source, label, int(line))
        message = re.sub(r"^#\d+(-D)?: ", "", message)
        parts.append(f"{label}, line {line}: {message}" + (f"\n    {text}" if text else ""))
    return "\n".join(parts) if parts else log.strip()


def line_of(source, label, line):
    """The text at ``line`` of the part of ``source`` that ``#line`` directives call ``label``."""
    current, number = source.label, 0
    for text in source.text.splitlines():
        number += 1
        directive = re.match(r'#line (\d+) "(.*)"', text)
        if directive:
            number, current = int(directive[1]) - 1, directive[2]
        elif current == label and number == line:
            return text.strip()
    return ""


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
