"""A CuPy that has GPUs where there are none: arrays on the host, streams that keep their order.

It refuses what a GPU would refuse or spoil: a stream of another device, an NCCL call outside of a
group, ranks that do not call alike, blocks of unequal size.
"""

import ctypes
import sys
import types
from collections import deque

import numpy as np
from lesson.machine import gpu
from lesson.machine.emulator import HostBackend
from lesson.machine.emulator.backend import HostArray

NAMES = {"FLOAT32": 7, "SUM": 0, "MAX": 2}


class State:
    """What the stand-in has seen."""

    def __init__(self, devices):
        self.devices, self.current, self.streams = devices, 0, []
        self.waiting, self.grouped = [], False
        self.calls = deque(maxlen=10000)
        self.priorities = []


def where(array):
    """An array's address, as CuPy's arrays say it."""
    return types.SimpleNamespace(ptr=array.__array_interface__["data"][0])


def install(monkeypatch, devices=2):
    """Put the stand-in in CuPy's place. Returns its State."""
    state = State(devices)

    class Device:
        def __init__(self, number=None):
            self.id = state.current if number is None else number
            assert 0 <= self.id < devices

        def __enter__(self):
            state.streams.append(("device", state.current))
            state.current = self.id

        def __exit__(self, *_):
            kind, before = state.streams.pop()
            assert kind == "device"
            state.current = before

    class Event:
        pass

    class Stream:
        def __init__(self, non_blocking=False, priority=None):
            assert non_blocking  # a blocking one would wait for the default stream
            self.device, self.ptr = state.current, id(self)
            state.priorities.append(priority)

        def __enter__(self):
            assert state.current == self.device, "a stream of another device"
            state.streams.append(("stream", self))

        def __exit__(self, *_):
            assert state.streams.pop() == ("stream", self)

        def record(self):
            assert state.current == self.device
            event = Event()
            event.stream = self
            state.calls.append(("record", self, event))
            return event

        def wait_event(self, event):
            state.calls.append(("wait", self, event))

        def synchronize(self):
            assert state.current == self.device
            state.calls.append(("synchronize", self, None))

    class Backend(HostBackend):
        """The emulated backend as one device's live one."""

        mark = "live"

        def __init__(self):
            super().__init__(orders=("ascending",))
            self.device = Device()

        def versions(self):
            return {"gpu": "NVIDIA Stand-in", "sms": 2}

        arch = "sm_90"

        def synchronize(self, what):
            assert state.current == self.device.id

    class Communicator:
        def __init__(self, size, name, rank):
            assert name == state.name and len(name) == 128
            self.size, self.rank, self.device = size, rank, state.current

        @staticmethod
        def initAll(numbers):  # noqa: N802, NCCL's name
            assert isinstance(numbers, list)
            made = []
            for rank, number in enumerate(numbers):
                one = Communicator.__new__(Communicator)
                one.size, one.rank, one.device = len(numbers), rank, number
                made.append(one)
            return made

        def _say(self, what, *rest):
            assert state.grouped, "outside of a group one process would wait for itself"
            stream = next(s for s in state.all_streams if s.ptr == rest[-1])
            assert stream.device == self.device
            state.waiting.append((what, self, rest[:-1]))

        def allReduce(self, out, into, count, kind, op, stream):  # noqa: N802
            assert kind == NAMES["FLOAT32"] and op == NAMES["MAX"]
            self._say("max", out, into, count, stream)

        def reduce(self, out, into, count, kind, op, root, stream):
            assert kind == NAMES["FLOAT32"] and op == NAMES["SUM"] and root == 0
            self._say("sum", out, into, count, stream)

        def send(self, out, count, kind, peer, stream):
            assert kind == NAMES["FLOAT32"] and 0 <= peer < self.size
            self._say("send", out, count, peer, stream)

        def recv(self, into, count, kind, peer, stream):
            assert kind == NAMES["FLOAT32"] and 0 <= peer < self.size
            self._say("recv", into, count, peer, stream)

    def floats(address, count):
        return np.frombuffer((ctypes.c_float * count).from_address(address), np.float32)

    def group_start():
        assert not state.grouped
        state.grouped, state.waiting = True, []

    def group_end():
        state.grouped = False
        said, state.waiting = state.waiting, []
        for what, join in (("max", np.maximum), ("sum", np.add)):
            by_rank = {}
            for kind, comm, rest in said:
                if kind == what:
                    by_rank.setdefault(comm.rank, []).append(rest)
            if by_rank:
                size = next(comm.size for kind, comm, _ in said if kind == what)
                assert set(by_rank) == set(range(size)), "a rank did not call"
                for calls in zip(*(by_rank[r] for r in range(size)), strict=True):
                    assert len({count for _, _, count in calls}) == 1
                    whole = join.reduce([floats(out, n).copy() for out, _, n in calls])
                    for _, into, n in calls if what == "max" else calls[:1]:
                        floats(into, n)[:] = whole
        sent = {(comm.rank, rest[2]): floats(rest[0], rest[1]).copy()
                for kind, comm, rest in said if kind == "send"}
        for comm, (address, count, peer) in [(c, r) for k, c, r in said if k == "recv"]:
            block = sent.pop((peer, comm.rank))
            assert len(block) == count, "what is received has another size than what is sent"
            floats(address, count)[:] = block
        assert not sent

    state.name = tuple(range(128))
    state.all_streams = []
    init = Stream.__init__

    def remember(self, *rest, **named):
        init(self, *rest, **named)
        state.all_streams.append(self)

    Stream.__init__ = remember
    nccl = types.ModuleType("cupy.cuda.nccl")
    nccl.available, nccl.NcclCommunicator = True, Communicator
    nccl.NCCL_FLOAT32, nccl.NCCL_MAX, nccl.NCCL_SUM = (NAMES[n] for n in ("FLOAT32", "MAX", "SUM"))
    nccl.groupStart, nccl.groupEnd = group_start, group_end
    nccl.get_unique_id, nccl.get_version = lambda: state.name, lambda: 22803
    cuda = types.ModuleType("cupy.cuda")
    cuda.Device, cuda.Stream, cuda.nccl = Device, Stream, nccl
    cuda.runtime = types.SimpleNamespace(getDeviceCount=lambda: devices)
    cupy = types.ModuleType("cupy")
    cupy.cuda = cuda
    for name, module in (("cupy", cupy), ("cupy.cuda", cuda), ("cupy.cuda.nccl", nccl)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(gpu, "GpuBackend", Backend)
    monkeypatch.setattr(HostArray, "data", property(where), raising=False)
    return state

