"""What a launch on the host said, in words that a reader of the lesson can use.

A launch's child process sends one report (see emulator/report.h); each kind of report becomes one
message here.
"""

import re
import subprocess
from dataclasses import dataclass

import numpy as np

from ..errors import InputError, LaunchError, RaceError, UndefinedError
from ..text.source import lines_of


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
        classes = {"const": InputError, "race": RaceError, "order": RaceError,
                   "unset": UndefinedError, "unset_buffer": UndefinedError,
                   "undefined": UndefinedError}
        text = "\n".join([getattr(self, kind)(), *self.causes(kind)])
        return classes.get(kind, LaunchError)(text)

    def notes(self, report):
        """Sentences on a launch that has ended well."""
        if rounding := report.get("rounding"):
            self.report = rounding
            count = rounding["count"]
            yield (f"{self.element_name()}"
                   + (f" and {count - 1} more elements differ" if count > 1 else " differs")
                   + " from one thread order to another by rounding alone "
                   f"({rounding['first']:.9g} and {rounding['other']:.9g}): atomics add in the "
                   "order in which they come, and each sum is rounded. This is no race.")
        if report.get("clock"):
            yield (f"{self.kernel.name} reads a clock: here it counts its own calls, since an "
                   "emulated kernel has no time.")

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
        return [self.place(*sites[0]) if sites else None for sites in self.sites_at(counters)]

    def sites_at(self, counters):
        """The (file or cell, line) of each program counter and of the calls that led to it.

        The calls are those that the compiler has put in place; () where nothing is known.
        """
        counters = [max(pc - 1, 0) for pc in counters]  # 0 where the caller is not known
        self.lines = lines_of(self.source)
        command = ["addr2line", "-a", "-i", "-e", "kernel", *map(hex, counters)]
        try:
            done = subprocess.run(command, cwd=self.built.folder, stdin=subprocess.DEVNULL,
                                  capture_output=True, encoding="utf-8", errors="replace",
                                  timeout=20)
        except (OSError, subprocess.TimeoutExpired):  # no addr2line: the rest is still true
            return [()] * len(counters)
        found = []
        for line in done.stdout.splitlines():
            if line.startswith("0x"):
                found.append(())
                continue
            file, _, number = line.rpartition(":")
            file = file.removeprefix("/kernel/")  # what host.py calls the build folder
            number = re.match(r"\d*", number)[0]
            if found and number and (file, int(number)) in self.lines:
                found[-1] += ((file, int(number)),)
        return found

    def text(self, sentence, *more):
        """The message of most reports: what happened, the line, block and thread."""
        place = next(filter(None, self.places()), None)
        if place is None and "last_line" in self.report:
            place = self.place(self.report["last_file"], self.report["last_line"])
        return "\n".join([f"{self.kernel.name} {sentence}", *([f"  {place}"] if place else []),
                          self.who(), *more])

    def element(self, report=None):
        """'q[17]' for the buffer and offset of the report, or of a part of it."""
        report = report or self.report
        buffer = self.buffers[report["buffer"]]
        index, rest = divmod(report["offset"], buffer.array.itemsize)
        inside = f" (byte {rest} of it)" if rest else ""
        return f"{'/'.join(buffer.names)}[{index}]{inside}", buffer

    def element_name(self):
        """'q[17]', whichever byte of it the report names."""
        buffer = self.buffers[self.report["buffer"]]
        return f"{'/'.join(buffer.names)}[{self.report['offset'] // buffer.array.itemsize}]"

    def shared(self, offset):
        """'element 17 of qTile' for an offset in shared memory."""
        start, size = self.built.dynamic
        if start <= offset < start + size:
            return f"byte {offset - start} of dynamic shared memory"
        for start, size, name, _ in self.built.shared:
            if start <= offset < start + size:
                return f"element {(offset - start) // 4} of {name} (counted from its start)"
        return "shared memory"

    def causes(self, kind):
        """Lines on what the kernel had done before that may have led to its error."""
        if unset := self.report.get("unset"):
            what = self.shared(unset["shared"]) if "shared" in unset else self.element(unset)[0]
            place = self.lines_at(unset["pc"])[0]
            yield (f"  before that, {self.at('thread', unset['thread'])} of "
                   f"{self.at('block', unset['block'])} read {what}, which had no value"
                   + (f"\n    {place}" if place else ""))
        if (received := self.report.get("received")) and kind != "undefined":
            yield f"  before that, {self.request(received)}\n    " + self.place(
                received["file"], received["line"])

    def request(self, received):
        """How a lane came to a value that CUDA leaves undefined."""
        lane, source = self.index_of(received["thread"]) % 32, received["source"]
        why = (f"its warp has {received['lanes']} threads" if source >= received["lanes"] else
               f"the mask {received['mask']:#010x} leaves that lane out")
        return (f"lane {lane} asked by {received['what']} for the value of lane {source}, and "
                f"{why}: what it receives is undefined in CUDA")

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
        used, at = self.report["used"], self.report["offset"]
        if not used:
            return self.text(f"{self.verb()} dynamic shared memory (extern __shared__), and this "
                             "launch has none", "  The lesson's own launches give none: write "
                             "__shared__ float name[SIZE]; without extern, with a size.")
        return self.text(f"{self.verb()} byte {at} of dynamic shared memory; "
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

    def unset(self):
        verb = "changes" if self.report["atomic"] else "reads"
        return self.text(f"{verb} {self.shared(self.report['shared'])} before anything was "
                         "written to it: shared memory has no value when a block begins")

    def unset_buffer(self):
        name, buffer = self.element()
        if buffer.read_only:
            return self.text(f"reads {name}, which has no value: nothing has been written to it")
        verb = "adds to" if self.report["atomic"] else "reads"
        return self.text(f"{verb} {name} before it has written it: the array has no value when "
                         "the kernel starts (the lesson fills it with NaN, and NaN plus anything "
                         "is NaN)", "  Set the element (=) where you add to it (+=, atomicAdd).")

    def undefined(self):
        first, other = self.two_results()
        what = self.request(self.report["received"])
        return "\n".join([
            f"{self.kernel.name} uses an undefined value: {what}",
            "  " + self.place(self.report["received"]["file"], self.report["received"]["line"]),
            f"  {self.at('block', self.report['received']['block'])}, "
            f"{self.at('thread', self.report['received']['thread'])}",
            f"  With one such value {self.element_name()} is {first}, with another {other}."])

    def stack(self):
        return self.text("needs more than the 128 KiB of stack that the emulator gives a thread: "
                         "large local arrays, or a function that calls itself without an end")

    def recursion(self):
        return self.text("calls a function that calls itself without an end: the 128 KiB of "
                         "stack that the emulator gives a thread are full")

    def divide(self):
        if "line" in self.report:
            return self.text("divides an integer by zero")
        # Zero is checked before: what is left for the processor to refuse is this.
        return self.text("divides the smallest integer by -1, which no integer can hold")

    def shift(self):
        width, places = self.report["width"], self.report["places"]
        return self.text(f"shifts a value of {width} bits by {places} places: C++ defines 0 to "
                         f"{width - 1}. A GPU shifts all bits out, other machines do not: treat "
                         f"{'that case' if places >= width else 'negative places'} on its own")

    def assertion(self):
        return self.text(f"fails its assertion: {self.report['what']}")

    def trap(self):
        if "what" in self.report:
            return self.text(f"stops itself: {self.report['what']}")
        return self.text("comes to a place that the C++ compiler takes to be impossible: what it "
                         "has computed before is undefined in C++")

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
        head, *tail = self.rule_of_waiting()
        return "\n".join([f"{self.kernel.name} {head}", *groups, *(f"  {line}" for line in tail)])

    def rule_of_waiting(self):
        """What threads that do not meet have broken, and what a GPU makes of it."""
        groups, block = self.report["groups"], self.at("block", self.report["block"])
        at_warp = any("mask" in group for group in groups)
        places = {(group["file"], group["line"], group["what"])
                  for group in groups if not group["done"]}
        left = any(group["done"] for group in groups)
        if at_warp:
            yield (f"would wait for ever in {block}: every lane in the mask must reach the same "
                   "warp operation")
            if left:
                yield ("GPUs from compute capability 7.0 on do not wait for lanes that have "
                       "returned; the lesson asks that none returns before.")
        elif len(places) > 1:
            yield (f"waits at different barriers in {block}: CUDA forbids that, every thread of a "
                   "block must reach the same barrier")
            if left or self.report["split"]:
                yield ("What happens is undefined where the threads of one warp part." if not left
                       else "Some threads reach none of them.")
            else:
                yield ("A GPU need not hang there: it counts the warps that have come to a "
                       "barrier, wherever that stands, and goes on once all have. What its "
                       "threads then find in memory is another matter.")
        else:
            yield (f"has a barrier in {block} that not all threads reach: every thread of a block "
                   "must reach the same barrier")
            yield ("GPUs from compute capability 7.0 on (a T4 has 7.5) wait only for threads that "
                   "have not returned; older ones may hang. The lesson asks for all of them.")

    def mask(self):
        return self.text(f"calls {self.report['what']} with mask {self.report['mask']:#010x}, "
                         f"which leaves out the calling lane {self.report['lane']}")

    def race(self):
        r = self.report
        what = self.element()[0] if "buffer" in r else self.shared(r["shared"])
        others = r["block"] != r["other_block"]
        if "values" in r:
            rule = ("lanes of a warp write different values to it by one instruction, and CUDA "
                    "leaves open which of them stays")
        elif others:
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

    def index_of(self, thread):
        x, y, _ = self.block
        return thread[0] + x * (thread[1] + y * thread[2])

    def warp(self, thread):
        return self.index_of(thread) // 32

    def two_results(self):
        """What the element of the report is in the first run, and in another one."""
        dtype = self.buffers[self.report["buffer"]].array.dtype
        at = self.report["offset"] % 8 // dtype.itemsize * dtype.itemsize
        return [np.frombuffer(bytes.fromhex(self.report[key])[at:at + dtype.itemsize], dtype)[0]
                for key in ("first", "other")]

    def order(self):
        (first, other), orders = self.two_results(), self.backend.orders
        return (f"{self.kernel.name} depends on the order in which threads run: "
                f"{self.element_name()} is {first} when they run {orders[0]}, {other} when they "
                f"run {orders[self.report['order']]}")
