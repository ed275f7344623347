"""What a compiler has against a source, in words that a reader of the lesson can use.

The first errors of g++, clang++ or NVRTC, at the reader's own lines, without those that follow
from others; and for what public kernels stumble over most often, the remedy.
"""

import difflib
import re
import unicodedata
from dataclasses import replace
from pathlib import Path

from ..text.source import blanked, lines_of, snippets

# Where the emulator declares CUDA's names, some of them as the first argument of a macro.
CUDA_NAMES = sorted((Path(__file__).resolve().parent / "emulator").glob("cuda*.h"))
_CUDA_NAME = re.compile(r"\b\w+(?=\()|(?<=\()\w+|(?<=#define )__\w+")

_ERROR = re.compile(r"(.+?):(\d+):(?:(\d+):)? (?:fatal )?[eE]rror: (.*)")
# Where the reader's text led to an error in what the emulator adds: a macro (said after the error
# by g++), a template (before it by g++, after it by clang++).
_INSIDE = re.compile(r"(.+?):(\d+):(\d+): (?:note: in expansion of macro |note: in instantiation of"
                     r"|  required from here)")
_UNKNOWN = re.compile(r"""['"]([\w:]+)['"](?: was not declared| has not been declared"""
                      r"""| does not name a type| is undefined| is not a member of 'std')"""
                      r"""|(?:undeclared identifier|unknown type name|no member named) '(\w+)'""")
_NEVER_ENDS = re.compile("unterminated|unclosed|missing terminating|missing closing quote")
_DECLARES = r'(extern|static|const|constexpr|"\s*"|__\w+__|\s)*'  # how a declaration begins
_NO_FILE = re.compile(r"""(\S+): No such file or directory|path in which to search for (\S+)"""
                      r"""|'(\S+)' file not found| open source file "(\S+?)\"""")

_INFINITY = "__int_as_float(0x7f800000)"
# What a reader's usual headers would define, and a GPU's compiler does not know without them.
_WRITE = {
    "INFINITY": _INFINITY, "HUGE_VALF": _INFINITY, "CUDART_INF_F": _INFINITY,
    "NAN": "__int_as_float(0x7fffffff)", "FLT_MAX": "3.402823466e+38f",
    "FLT_MIN": "1.175494351e-38f", "FLT_EPSILON": "1.192092896e-07f",
    "DBL_MAX": "1.7976931348623157e+308", "INT_MAX": "2147483647",
    "INT_MIN": "(-2147483647 - 1)", "UINT_MAX": "4294967295u", "SIZE_MAX": "~size_t(0)",
    "M_PI": "3.14159265358979", "M_LOG2E": "1.44269504088896",
    "int8_t": "signed char", "uint8_t": "unsigned char", "int16_t": "short",
    "uint16_t": "unsigned short", "int32_t": "int", "uint32_t": "unsigned",
    "int64_t": "long long", "uint64_t": "unsigned long long", "uint": "unsigned",
}
_HEADERS = {  # what to do without one
    "math": f"expf, fmaxf and the rest are built in, and INFINITY is {_INFINITY}",
    "float": f"FLT_MAX is {_WRITE['FLT_MAX']}",
    "limits": f"INT_MAX is {_WRITE['INT_MAX']}, FLT_MAX {_WRITE['FLT_MAX']}",
    "stdint": "write unsigned for uint32_t, unsigned long long for uint64_t",
    "stdio": "printf is built in", "assert": "assert is built in",
}
_HOST_CODE = "the lesson launches the kernel itself: take main() and other host code out"
_HINTS = [  # (what a compiler says, what to say instead, or after it where that begins with :)
    (r"\basm\b|constraint|mnemonic",
     "this is PTX, a GPU's own instructions, and the emulator runs none: it runs on a GPU. For "
     "both, put it under #ifdef __CUDA_ARCH__ and C under #else"),
    (r"^A function (without execution space|explicitly marked as a __host__)",
     "this function has no __device__, and a GPU runs only what has it: write __device__ before "
     "it, or take it out if it is host code"),
    (r"^A namespace scope variable without memory space",
     "this variable has no __device__, and a GPU has only such variables: write __device__, "
     "__constant__ or constexpr before it"),
    (r"^initializer not allowed for __shared__",
     ": let a thread set it in the kernel, and then a __syncthreads()"),
    (r"'::main' must", "a kernel cannot be called main here: rename it"),
]


def first_error(text):
    """The first line of a tool's output that says what is wrong."""
    lines = [line for line in text.splitlines() if "error" in line.lower()] or text.splitlines()
    return lines[0].split("error: ")[-1].strip() if lines else "no message"


def errors_of(errors):
    """``[(file or cell, line, column or 0, message)]`` from the messages of g++ or clang++."""
    found, added, before = [], [path.name for path in CUDA_NAMES], None
    for line in errors.splitlines():
        if inside := _INSIDE.match(line):
            place = inside[1], int(inside[2]), int(inside[3])
            if "required from here" in line:
                before = place
            elif found and Path(found[-1][0]).name in added:
                found[-1] = (*place, found[-1][3])
        elif match := _ERROR.match(line):
            # g++ and two ages of clang++ put different words around a static_assert's reason.
            message = re.sub(r" \[-[Wf].*\]$", "", match[4])
            message = re.sub(r"^static assertion failed( due to requirement '.*')?: ", "", message)
            message = re.sub(r'^static_assert failed .*?"(.*)"$', r"\1", message)
            message = message.replace("'thread_local'", "'__shared__'")
            if " Error: " in line:  # the assembler's: what a compiler writes itself is right
                message = f"asm: {message}"
            place = match[1], int(match[2]), int(match[3] or 0)
            if Path(place[0]).name in added and before:
                place, before = before, None
            found.append((*place, message))
    return found


def compiler(source, errors, gpu_takes_it=False):
    """A CompileError's text from the messages of g++ or clang++.

    ``gpu_takes_it``: NVRTC has compiled the source, so that the emulator is what lacks something.
    """
    return compile_error(source, errors_of(errors), first_error(errors), gpu_takes_it)


def host_code(source, name):
    """A CompileError's text where a source defines a function that is the host's alone."""
    lines = lines_of(source, blanked(source.text))
    at = next((at for at, code in lines.items() if re.search(rf"\b{name}\s*\(", code)), None)
    return compile_error(source, [(*at, 0, _HOST_CODE)] if at else [], f"{name}: {_HOST_CODE}")


def compile_error(source, found, otherwise, gpu_takes_it=False):
    """The first errors of a compiler, at the reader's own lines: what a CompileError says.

    Args:
        source: the Source that was compiled.
        found: ``(file or cell, line, column or 0, message)`` of each error, in order.
        otherwise: what to say if none of them is in the source.
        gpu_takes_it: as in compiler().
    """
    said = f"{source.label} does not compile"
    if never_ends := [error for error in found if _NEVER_ENDS.search(error[3])]:
        found = never_ends
    elif braces := _braces(source):  # every other message would be a consequence of this
        return f"{said}\n{braces}"
    lines, code, parts = lines_of(source), lines_of(source, blanked(source.text)), []
    known = _without_consequences(code, [error for error in found if error[:2] in lines])
    in_cells = [error for error in known if error[0].startswith("cell ")]
    for file, number, column, message in in_cells or known:
        shown = lines[file, number]
        part = f"{file}, line {number}: "
        part += _worded(source, message, code[file, number], gpu_takes_it)
        if any(other.startswith(part) for other in parts):
            continue
        if shown.strip():
            part += f"\n    {shown}"
            if column:
                indent = "".join("\t" if c == "\t" else " " for c in shown[:column - 1])
                part += f"\n    {indent}^"
        parts.append(part)
    parts = parts[:3]
    if known and source.edits and not in_cells:
        parts.append("These lines are not edited; they need something that an edited cell left "
                     "out or changed.")
    if not parts:
        parts.append(f"{source.label}: {found[0][3] if found else otherwise}")
    text = "\n".join([said, *parts])
    if gpu_takes_it and "on a GPU" not in text:
        text += "\nNVRTC takes this source: CUDA has what the emulator lacks, and it runs on a GPU."
    return text


def unknown(message):
    """The name that a compiler's message calls unknown, or None."""
    match = _UNKNOWN.search(message)
    return next(filter(None, match.groups())) if match else None


def _without_consequences(code, found):
    """Errors without those that follow from an earlier one; a missing ; where it is missing."""
    kept, words, given_up, places = [], set(), set(), list(code)
    for file, number, column, message in found:
        name, line = unknown(message), (file, number)
        # What a statement declares that the compiler gave up is unknown from there on.
        if name in words or line in given_up:
            continue
        if kept and kept[-1][:2] == line and not code[line].isascii():
            continue  # a letter that is no code is said once
        at = _missing_semicolon(code, file, number, column, message)
        lines = {line, at[:2]}
        if ";" in at[3] and "expected" in at[3]:
            if kept and code[kept[-1][:2]].strip() == "}" and "expression" in kept[-1][3]:
                kept.pop()  # return without ; is two errors
            if at[:2] != line:
                given_up.add(line)
            lines.update(places[places.index(at[:2]):][:3])
        for place in lines:
            words |= set(re.findall(r"[A-Za-z_]\w*", code[place])) - {name}
        kept.append(at)
    return kept


def _missing_semicolon(code, file, number, column, message):
    """The end of the code before the token that surprised, where a semicolon is missing."""
    begun = re.search(r"expected (initializer before|unqualified-id)|^linkage specification",
                      message)
    if not (begun or re.search(r"expected ([',]+ or |a )?['\"]?;", message)):
        return file, number, column, message
    places = list(code)
    at = places.index((file, number))
    if not re.fullmatch(_DECLARES, code[file, number][:max(column - 1, 0)]):
        return file, number, column, message  # there is code before it on its own line
    while at > 0:
        at -= 1
        text = code[places[at]].rstrip()
        if text and not text.lstrip().startswith("#"):
            if begun and "(" in text:  # a function's head: no semicolon belongs there
                break
            return *places[at], len(text) + 1, "expected ';' at the end of this line"
    return file, number, column, message


def _worded(source, message, code, gpu_takes_it):
    """A compiler's message in words that help; ``code`` is its line without comments."""
    if match := _NO_FILE.search(message):
        name = next(filter(None, match.groups()))
        if "<" not in code:
            return f"there is no file {name} here: put its text in the place of this line"
        kind = name.removesuffix(".h")
        kind = kind if kind in _HEADERS else kind.removeprefix("c")
        remedy = f"; {_HEADERS[kind]}" if kind in _HEADERS else ""
        return (f"there is no header {name}: NVRTC, which compiles for the GPU, has none, and "
                f"CUDA's own names are built in. Delete this line{remedy}")
    if "<<<" in code and "expected" in message:
        return f"a launch with <<< >>> is host code: {_HOST_CODE}"
    for pattern, words in _HINTS:
        if re.search(pattern, message):
            if "main(" in code.replace(" ", ""):
                words = _HOST_CODE
            return message.strip() + words if words.startswith(":") else words
    message = re.sub(r"; did you mean .*", "", message)  # it may name the emulator's own
    if re.match(r"\s*#\s*error", code) and "__CUDA_ARCH__" in source.text:
        return message + ("; __CUDA_ARCH__ is defined where code for a GPU is compiled, and not "
                          "in the emulator: ask for it with #if defined(__CUDA_ARCH__) && ...")
    if strange := sorted(set(re.findall(r"[^\x00-\x7f]", code))):
        names = ", ".join(f"{unicodedata.name(c, 'no letter')} (U+{ord(c):04X})" for c in strange)
        return f"{message}; this line holds {names}: type it anew on the keyboard"
    if gpu_takes_it and unknown(message):
        return f"{unknown(message)}: CUDA has this and the emulator does not; it runs on a GPU"
    return message + _suggestion(source, unknown(message), "'std'" in message)


def _suggestion(source, name, std):
    """What to write for a name that neither CUDA nor the source has; '' where nothing is near."""
    if name is None:
        return ""
    if name in _WRITE:
        return f"; no header is included: write {_WRITE[name]}"
    if std:
        return "; there is no standard library here: CUDA's own names go without std::"
    if re.match(r"cuda[A-Z]", name):
        return f"; {_HOST_CODE}"
    words = set(re.findall(r"[A-Za-z_]\w*", blanked(source.text)))
    cuda = {"threadIdx", "blockIdx", "blockDim", "gridDim"}
    for path in CUDA_NAMES:
        cuda |= set(_CUDA_NAME.findall(blanked(path.read_text(encoding="utf-8"))))

    def likeness(word):  # a name that the source uses elsewhere is the likelier one
        ratio = difflib.SequenceMatcher(None, name, word).ratio()
        return ratio + 0.12 * (word in words) if ratio >= 0.7 else 0.0

    best = max(sorted((words | cuda) - {name}), key=likeness)
    if likeness(best):
        return f"; did you mean '{best}'?"
    if re.match(r"__|atomic|make_|tex|surf|cooperative_groups|nvcuda", name):
        return "; the emulator has no such name: if CUDA has it, it runs on a GPU"
    return ""


def _braces(source):
    """Which edited cell opens more blocks than it closes, or fewer, than the file's text."""
    balance = _balance(source.text)
    if not balance:
        return ""
    missing = "a '}' is missing" if balance > 0 else "there is a '}' too many"
    if source.path:
        for snippet, text in source.edits.items():
            off = _balance(text) - _balance(snippets(source.name)[snippet])
            if off and (off > 0) == (balance > 0):
                return f"cell {source.name}/{snippet}: {missing}"
    return f"{source.label}: {missing}"


def _balance(text):
    """Blocks that a text opens and does not close; 0 where its macros hide that.

    Of #if ... #else ... #endif the first branch counts, of #if 0 the second.
    """
    count, branches = 0, []  # of each open #if: whether this branch counts, whether one has
    for line in blanked(text).split("\n"):
        if match := re.match(r"\s*#\s*(\w+)\s*(.*)", line):
            word, rest = match.groups()
            if word in ("if", "ifdef", "ifndef"):
                counts = not (word == "if" and rest.strip() in ("0", "false"))
                branches.append((counts, counts))
            elif word in ("else", "elif") and branches:
                counts = word == "else" and not branches[-1][1]
                branches[-1] = counts, counts or branches[-1][1]
            elif word == "endif" and branches:
                branches.pop()
            elif rest.count("{") != rest.count("}"):
                return 0
        elif all(counts for counts, _ in branches):
            count += line.count("{") - line.count("}")
    return count


def probe(source, name):
    """A Source with one function more, which a compiler refuses where ``name`` is a template."""
    return replace(source, text=f'{source.text}\n#line 1 "(end of the source)"\n'
                                f"__device__ void lesson_probe() {{ (void)&{name}; }}\n")


def means_template(errors):
    """Whether a compiler's errors on probe() say that the name is a template."""
    return bool(re.search("overloaded function|function template", errors))


def doubles(found):
    """Sentences on the lines that a compiler computes in double: ``{(file, line): text}``."""
    return [f"{file}, line {line} computes in double, which a GPU such as the T4 does at a small "
            f"part of its speed in float: write 0.5f for 0.5, and call expf, not exp.  {text}"
            for (file, line), text in found.items()]


def linker(source, errors):
    """A CompileError's text from the messages of a linker."""
    missing = {}
    for line in errors.splitlines():
        if match := re.search(r"undefined reference to [`']([^'`]+)'", line):
            place = re.match(r"(?:.*: )?(.+?):(\d+): ", line[:match.start()])
            missing.setdefault(match[1], (place[1], int(place[2])) if place else None)
    if not missing:
        return f"{source.label}: the program cannot be linked: {first_error(errors)}"
    lines, parts = lines_of(source), [f"{source.label} does not compile"]
    for name, place in list(missing.items())[:3]:
        known = next((at for at in lines if place and place[0].endswith(at[0])
                      and place[1] == at[1]), None)
        where = f"{known[0]}, line {known[1]}" if known else source.label
        parts.append(f"{where}: declared and used, but not defined: {name}"
                     + (f"\n    {lines[known]}" if known else ""))
    return "\n".join(parts)
