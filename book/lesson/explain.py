"""What a compiler or a launch on the host said, in words that a reader of the lesson can use.

Compiler messages keep their first errors, at the reader's own lines. A launch's child process
sends one report (see emulator/run.cpp); each kind of report becomes one message here.
"""

import re
import subprocess
from dataclasses import dataclass

import numpy as np

from .errors import InputError, LaunchError, RaceError

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_LINE = re.compile(r'\s*#\s*line\s+(\d+)(?:\s+"(.*)")?')
_ERROR = re.compile(r"(.+?):(\d+):(?:(\d+):)? (?:fatal )?error: (.*)")


def first_error(text):
    """The first line of a tool's output that says what is wrong."""
    lines = [line for line in text.splitlines() if "error" in line.lower()] or text.splitlines()
    return lines[0].split("error: ")[-1].strip() if lines else "no message"


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


def compiler(source, errors):
    """The first errors, each with the reader's own line."""
    lines, parts = lines_of(source), []
    bare = _COMMENT.sub(" ", source.text)
    for line in errors.splitlines():
        match = _ERROR.match(line)
        if not match:
            continue
        file, number, column, text = match[1], int(match[2]), int(match[3] or 0), match[4]
        if (file, number) not in lines:
            continue
        # g++ and two ages of clang++ put different words around a static_assert's reason.
        text = re.sub(r" \[-W.*\]$", "", text)
        text = re.sub(r"^static assertion failed( due to requirement '.*')?: ", "", text)
        text = re.sub(r'^static_assert failed .*?"(.*)"$', r"\1", text)
        part = f"{file}, line {number}: {text}"
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
        parts.append(f"{source.label}: {match[4] if match else first_error(errors)}")
    return "\n".join([f"{source.label} does not compile", *parts[:3]])


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
        counters = [pc - 1 for pc in self.report.get("pc", ())]
        if "line" in self.report:
            return [self.place(self.report["file"], self.report["line"])]
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

    def lane(self):
        return self.text(f"calls {self.report['what']} for the value of lane "
                         f"{self.report['lane']}, which does not take part (mask "
                         f"{self.report['mask']:#010x}): the value is undefined")

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
