"""The emulator: the kernels' own sources, run and checked on the host."""

from .backend import (
    ORDERS,
    Counts,
    HostArray,
    HostBackend,
    HostProgram,
)
from .toolchain import available, double_lines
from .trace import Shared, Step, Trace

__all__ = ["ORDERS", "Counts", "HostArray", "HostBackend", "HostProgram", "Shared", "Step", "Trace",
           "available", "double_lines"]
