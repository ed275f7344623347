"""Kernels that run emulated: a program, a run, and the message of one that must fail."""

import os

import numpy as np
import pytest
from lesson.errors import LaunchError
from lesson.machine import emulator
from lesson.text import source

READY, REASON = emulator.available()
needs_compiler = pytest.mark.skipif(not READY, reason=f"the emulator needs a compiler: {REASON}")


def spent_s():
    """Seconds of processors that this process and its ended children have taken so far."""
    return sum(os.times()[:4])


def program(backend, body, params="const float* a, float* b, int n", before="", name="mine"):
    """A program with one kernel, whose body starts in line 2 of the file."""
    text = (f'extern "C" __global__ void {name}({params}) {{\n{body}\n}}\n')
    return backend.compile(source.from_text(before.replace("\n", " ") + text, f"{name}.cu"))


def run(backend, body, n=32, block=(32,), grid=(1,), a=None, b=None, shared=0, before=""):
    """Run a kernel mine(a, b, n). Returns (b, Counts)."""
    a = backend.put(np.arange(n, dtype=np.float32) if a is None else a)
    b = backend.full((n,), np.nan) if b is None else backend.put(b)
    counts = program(backend, body, before=before).launch("mine", grid, block, (a, b, n), shared)
    return backend.get(b), counts


def fails(backend, body, error=LaunchError, **how):
    """The message of a kernel that must fail, within the time a reader is promised."""
    start = spent_s()
    with pytest.raises(error) as caught:
        run(backend, body, **how)
    assert spent_s() - start < 20
    assert type(caught.value) is error
    message = str(caught.value)
    assert "/tmp" not in message and "kernel.cpp" not in message
    return message
