"""The live backend, as far as it can be tested without a GPU."""

import gc
import types
import weakref
from functools import partial

import pytest
from lesson.errors import LaunchError


def test_an_illegal_access_is_reported_with_its_kernel_and_the_remedy():
    from lesson.machine.gpu import GpuBackend

    class CUDARuntimeError(Exception):
        pass

    def wait():
        raise CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access")

    runtime = types.SimpleNamespace(deviceSynchronize=wait, CUDARuntimeError=CUDARuntimeError)
    gpu = object.__new__(GpuBackend)
    gpu.cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime))
    with pytest.raises(LaunchError, match="attentionOnline failed.*IllegalAddress.*restart"):
        gpu.synchronize("attentionOnline")


def test_a_graph_keeps_the_arrays_that_it_has_the_addresses_of():
    from lesson.machine.gpu import GpuBackend

    class Stream:
        def __init__(self, **how): ...
        def __enter__(self): ...
        def __exit__(self, *error): ...
        def begin_capture(self): ...
        def end_capture(self):
            return types.SimpleNamespace(launch=lambda stream: None)

    class Array(list):
        pass

    gpu = object.__new__(GpuBackend)
    gpu.cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(Stream=Stream, Event=object))
    array = Array()
    measure = gpu.capture(partial(array.append, 1), 3)
    there = weakref.ref(array)
    assert len(array) == 3
    del array
    gc.collect()
    assert there() is not None
    del measure
    gc.collect()
    assert there() is None
