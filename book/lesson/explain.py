"""What a compiler or a launch on the host said, in words that a reader of the lesson can use.

Compiler messages keep their first errors, at the reader's own lines. A launch's child process
sends one report (see emulator/run.cpp); each kind of report becomes one message here.
"""

import difflib
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import InputError, LaunchError, RaceError
from .source import bare, snippets

CUDA_NAMES = Path(__file__).resolve().parent / "emulator" / "cuda.h"

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_LINE = re.compile(r'\s*#\s*line\s+(\d+)(?:\s+"(.*)")?')
_ERROR = re.compile(r"(.+?):(\d+):(?:(\d+):)? (?:fatal )?error: (.*)")


def first_error(text):
    """The first line of a tool's output that says what is wrong."""
    lines = [line for line in text.splitlines() if "error" in line.lower()] or text.splitlines()
    return lines[0].split("error: ")[-1].strip() if lines else "no message"


def numbered(source):
    """The text of a Source under the name that messages call it by."""
    label = source.label.replace("\\", "/").replace('"', "'")
    return f'#line 1 "{label}"\n{source.text}'


def lines_of(source):
    """``{(file, line): text}`` as the compiler numbers them, after #line."""
    found, file, number = {}, source.label, 1
    for text in source.text.split("\n"):
        if match := _LINE.match(text):
            number, file = int(match[1]), match[2] or file
            continue
        found[file, number] = text
        number += 1
    return found


def line_of(source, file, line):
    """The text at a line of a file or cell that a compiler named; '' where there is none."""
    return lines_of(source).get((file, line), "").strip()


def compiler(source, errors):
    """A CompileError's text from the messages of g++ or clang++."""
    found = []
    for line in errors.splitlines():
        if match := _ERROR.match(line):
            # g++ and two ages of clang++ put different words around a static_assert's reason.
            message = re.sub(r" \[-W.*\]$", "", match[4])
            message = re.sub(r"^static assertion failed( due to requirement '.*')?: ", "", message)
            message = re.sub(r'^static_assert failed .*?"(.*)"$', r"\1", message)
            found.append((match[1], int(match[2]), int(match[3] or 0), message))
    return compile_error(source, found, first_error(errors))


def compile_error(source, found, otherwise):
    """The first errors of a compiler, at the reader's own lines: what a CompileError says.

    Args:
        source: the Source that was compiled.
        found: ``(file or cell, line, column or 0, message)`` of each error, in order.
        otherwise: what to say if none of them is in the source.
    """
    if braces := _braces(source):  # every other message would be a consequence of this
        return f"{source.label} does not compile\n{braces}"
    lines, parts = lines_of(source), []
    known = [_missing_semicolon(lines, *error) for error in found if error[:2] in lines]
    in_cells = [error for error in known if error[0].startswith("cell ")]
    for file, number, column, message in in_cells or known:
        shown = lines[file, number]
        part = f"{file}, line {number}: {message}{_suggestion(source, message)}"
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
    return "\n".join([f"{source.label} does not compile", *parts])


def _missing_semicolon(lines, file, number, column, message):
    """The end of the code before the token that surprised, where a semicolon is missing."""
    if not re.search(r"expected (a )?['\"]?;", message):
        return file, number, column, message
    places = list(lines)
    at = places.index((file, number))
    if _COMMENT.sub("", lines[file, number])[:max(column - 1, 0)].strip():
        return file, number, column, message  # there is code before it on its own line
    while at > 0:
        at -= 1
        code = _COMMENT.sub("", lines[places[at]]).rstrip()
        if code:
            return *places[at], len(code) + 1, "expected ';' at the end of this line"
    return file, number, column, message


def _suggestion(source, message):
    """'; did you mean ...?' for a name that neither CUDA nor the source has."""
    name = re.search(r"identifier \"(\w+)\" is undefined|'(\w+)' was not declared"
                     r"|use of undeclared identifier '(\w+)'", message)
    if not name:
        return ""
    name = next(filter(None, name.groups()))
    words = set(re.findall(r"[A-Za-z_]\w*", bare(source.text)))
    cuda = set(re.findall(r"\b\w+(?=\()", CUDA_NAMES.read_text(encoding="utf-8")))
    cuda |= {"threadIdx", "blockIdx", "blockDim", "gridDim"}

    def likeness(word):  # a name that the source uses elsewhere is the likelier one
        ratio = difflib.SequenceMatcher(None, name, word).ratio()
        return ratio + 0.12 * (word in words) if ratio >= 0.7 else 0.0

    best = max(sorted((words | cuda) - {name}), key=likeness)
    return f"; did you mean '{best}'?" if likeness(best) else ""


def _braces(source):
    """Which edited cell opens more blocks than it closes, or fewer, than the file's text."""
    def balance(text):
        return bare(text).count("{") - bare(text).count("}")

    if not balance(source.text):
        return ""
    more = balance(source.text) > 0
    missing = "a '}' is missing" if more else "there is a '}' too many"
    if source.path:
        for snippet, text in source.edits.items():
            off = balance(text) - balance(snippets(source.name)[snippet])
            if off and (off > 0) == more:
                return f"cell {source.name}/{snippet}: {missing}"
    return f"{source.label}: {missing}"


def doubles(found):
    """Sentences on the lines that a compiler computes in double: ``{(file, line): text}``."""
    return [f"{file}, line {line} computes in double, which a GPU such as the T4 does at a small "
            f"part of its speed in float: write 0.5f for 0.5, and call expf, not exp.  {text}"
            for (file, line), text in found.items()]


def linker(source, errors):
    missing = sorted(set(re.findall(r"undefined reference to [`']([^'`]+)'", errors)))
    if missing:
        return f"{source.label}: declared and used, but not defined: {', '.join(missing)}"
    return f"{source.label}: the program cannot be linked: {first_error(errors)}"


@dataclass
class Run:
    """One launch, and what turns its child's report into an error that a reader can act on."""

    source: object
    kernel: object
    grid: tuple
    block: tuple
    backend: object
    buffers: list
    built: object

    def error(self, report):
        """The exception for a report: one method below for each kind."""
        self.report, self.lines = report, lines_of(self.source)
        kind = report["error"]
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
        if "line" in self.report:
            return [self.place(self.report["file"], self.report["line"])]
        return self.lines_at(self.report.get("pc", ()))

    def lines_at(self, counters):
        """The source line of each program counter, as text; None where unknown."""
        counters = [pc - 1 for pc in counters]
        self.lines = lines_of(self.source)
        command = ["addr2line", "-a", "-i", "-e", "kernel", *map(hex, counters)]
        try:
            done = subprocess.run(command, cwd=self.built.folder, stdin=subprocess.DEVNULL,
                                  capture_output=True, errors="replace", timeout=20)
        except (OSError, subprocess.TimeoutExpired):  # no addr2line: the rest is still true
            return [None] * len(counters)
        found = []
        for line in done.stdout.splitlines():
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
        if place is None and "last_line" in self.report:
            place = self.place(self.report["last_file"], self.report["last_line"])
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
        array = self.report["array"].strip("'").replace(" [", "[")
        return self.text(f"uses index {self.report['index']} in an array of type {array}")

    def misaligned(self):
        where = ""
        if "buffer" in self.report:
            where = f" at {self.element()[0]}"
        elif "shared" in self.report:
            where = f" at {self.shared(self.report['shared'])}"
        kind = re.sub(r"\b(const|struct) ", "", self.report["type"].strip("'"))
        return self.text(
            f"uses a {kind}{where}, which is not aligned: the "
            f"address must be a multiple of {self.report['alignment']} bytes, this one is "
            f"{self.report['address'] % self.report['alignment']} past one")

    def stack(self):
        return self.text("has more local variables than the 128 KiB that the emulator gives "
                         "a thread")

    def divide(self):
        return self.text("divides an integer by zero")

    def time(self):
        return self.text(f"was given up: one block ran for more than {self.backend.limit_s:g} s",
                         "  Does a loop never end, or wait for another block?")

    def killed(self):
        return (f"{self.kernel.name} was given up: its process does not answer and no block "
                f"ended in {self.backend.limit_s + 3:g} s")

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

    def race(self):
        r = self.report
        what = self.element()[0] if "buffer" in r else self.shared(r["shared"])
        others = r["block"] != r["other_block"]
        if others:
            rule = "two blocks use it, and nothing orders the blocks of a launch"
        elif self.warp(r["thread"]) == self.warp(r["other_thread"]):
            rule = "two threads use it with no __syncwarp() or __syncthreads() between them"
        else:
            rule = "two threads use it with no __syncthreads() between them"
        parts = [f"{self.kernel.name} has a race on {what}: {rule}"]
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
        buffer = self.buffers[self.report["buffer"]]
        size = buffer.array.itemsize
        name = f"{'/'.join(buffer.names)}[{self.report['offset'] // size}]"
        at = self.report["offset"] % 8 // size * size
        first, other = (np.frombuffer(bytes.fromhex(self.report[k])[at:at + size],
                                      buffer.array.dtype)[0] for k in ("first", "other"))
        orders = self.backend.orders
        return (f"{self.kernel.name} depends on the order in which threads run: {name} is {first} "
                f"when they run {orders[0]}, {other} when they run "
                f"{orders[self.report['order']]}")
