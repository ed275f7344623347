"""Kernels in tests: edits as a reader makes them, and the compiler's facts without a GPU."""

from functools import cache

import pytest
from lesson.launch import rungs
from lesson.machine import nvrtc
from lesson.text import source
from lesson.text.edits import find, replace

needs_nvrtc = pytest.mark.skipif(not nvrtc.available()[0], reason=str(nvrtc.available()[1]))

# Written for a Hopper GPU's tensor cores alone, which no other GPU has and the emulator does not
# know.
HOPPER = {rungs.IMAGES, *(r.name for r in rungs.HOPPER), "use/images", "use/hopper"}


def edit(target, old, new):
    """Edit one place of a snippet, as a reader does. Returns what the cell says."""
    name, snippet = find(target)
    text = source.snippets(name)[snippet]
    assert text.count(old) == 1, old
    return replace(target, text.replace(old, new))


@cache
def facts(name, arch):
    """``{kernel: KernelFacts}`` of a source on an architecture, compiled once a process."""
    return nvrtc.facts(source.load(name), arch)
