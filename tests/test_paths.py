"""Mistakes a reader makes: each is refused before a launch; what was got, what is needed."""

import sys
import types

import numpy as np
import pytest
from lesson import backend as backends
from lesson import cases, nvrtc, paths, results, source
from lesson.errors import ArgumentError, GateError, InputError, LaunchError, LessonError


def arrays(n=64):
    case = cases.make("random", n)
    return {"q": case.q, "k": case.k, "v": case.v}


class HereBackend:
    """NumPy arrays as device arrays: enough of a backend for the checks before a launch."""

    array_name = "a NumPy array"

    def owns(self, array):
        return isinstance(array, np.ndarray)

    def free_bytes(self):
        return 1 << 30


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("spoil, words", [
    (lambda x: x.astype(np.float64), ("float64", "float32", "astype")),
    (lambda x: x[:, :32], ("(64, 32)", "(N, 64)", "d must be 64")),
    (lambda x: x[None], ("(1, 64, 64)", "(N, 64)")),
    (lambda x: np.repeat(x, 2, axis=0)[::2], ("C-contiguous", "copy")),
    (lambda x: np.asfortranarray(x), ("C-contiguous", "copy")),
    (lambda x: x.T.copy().T, ("C-contiguous", "copy")),
    (lambda x: x.tolist(), ("list", "NumPy array", "put")),
])
def test_an_array_that_a_kernel_would_misread_is_refused(name, spoil, words):
    given = arrays()
    given[name] = spoil(given[name])
    with pytest.raises(ArgumentError) as error:
        paths.check(HereBackend(), **given)
    assert str(error.value).startswith(f"{name} ")
    for word in words:
        assert word in str(error.value)


def test_shapes_that_differ_are_refused():
    given = arrays()
    given["v"] = cases.make("random", 128).v
    with pytest.raises(ArgumentError, match=r"v has shape \(128, 64\), q has \(64, 64\)"):
        paths.check(HereBackend(), **given)


@pytest.mark.parametrize("n", [0, 16, 96])
def test_n_that_is_no_multiple_of_the_tile_is_refused(n):
    x = np.zeros((n, 64), np.float32)
    with pytest.raises(ArgumentError, match=f"n = {n}: N must be a positive multiple of 64"):
        paths.check(HereBackend(), x, x, x)


def test_memory_is_computed_before_anything_is_allocated():
    with pytest.raises(ArgumentError, match=r"32,832 MiB.*1,024 MiB are free.*online"):
        paths.check_memory(HereBackend(), "materialised", 65536)
    paths.check_memory(HereBackend(), "online", 65536)


def test_scalars_become_the_declared_type():
    kernel = source.load("online").kernels["attentionOnline"]
    types_ = {p.name: p for p in kernel.params}
    assert type(backends.scalar(kernel, types_["scale"], 0.125)) is np.float32
    assert type(backends.scalar(kernel, types_["n"], 256)) is np.uint64
    with pytest.raises(ArgumentError, match="n = -1"):
        backends.scalar(kernel, types_["n"], -1)
    with pytest.raises(ArgumentError, match="scale = 'a'"):
        backends.scalar(kernel, types_["scale"], "a")


def test_a_renamed_kernel_lists_what_the_source_defines():
    with pytest.raises(LaunchError, match="no kernel 'attention'.*attentionOnline"):
        backends.kernel_of(source.load("online"), "attention", ())


def test_a_wrong_number_of_arguments_shows_the_signature():
    with pytest.raises(ArgumentError, match=r"takes 6 arguments.*size_t n.*got 2"):
        backends.kernel_of(source.load("online"), "attentionOnline", (1, 2))


def test_an_array_of_another_device_is_refused():
    class Elsewhere(HereBackend):
        array_name = "a CuPy array on the current device"

        def owns(self, array):
            return False

    with pytest.raises(ArgumentError, match="q is numpy.ndarray, needs a CuPy array"):
        paths.check(Elsewhere(), **arrays())


def test_a_kernel_that_changes_its_input_is_named(emulated):
    text = source.load("online").text.replace(
        "const float* q, const float* k, const float* v", "float* q, const float* k, const float* v"
    ).replace("    float m[R]", "    q[row0 * D] = 0.0f;\n    float m[R]")
    with pytest.raises((InputError, LaunchError), match="q"):
        paths.run(emulated, "online", cases.make("random", 64), source.from_text(text))


class FakeGpu(HereBackend):
    """A backend whose kernel gives ``answer`` and whose clock is a constant."""

    mark = "live"

    def __init__(self, answer):
        self.answer, self.timed = answer, 0

    def compile(self, text):
        return types.SimpleNamespace(backend=self, launch=self.launch, enqueue=self.launch)

    def launch(self, kernel, grid, block, arguments):
        arguments[3][:] = self.answer(*arguments[:3])

    put = staticmethod(np.array)
    get = staticmethod(np.array)

    def full(self, shape, value, dtype=np.float32):
        return np.full(shape, value, dtype)

    def time(self, enqueue, what):
        self.timed += 1
        enqueue()
        from lesson.timing import Timing

        return Timing((1.0, 2.0, 4.0), 10, 3)


def test_a_wrong_kernel_is_never_given_a_time():
    backend = FakeGpu(lambda q, k, v: 0.0)
    with pytest.raises(GateError, match="no time, before timing.*online, periodic, N = 64"):
        results.time_path(backend, "online", 64)
    assert backend.timed == 0


def test_a_kernel_that_goes_wrong_while_timed_gets_no_time():
    from lesson import model

    calls = []

    def answer(q, k, v):
        calls.append(1)
        return model.online(q, k, v) if len(calls) == 1 else np.nan

    with pytest.raises(GateError, match="no time, after timing.*not finite"):
        results.time_path(FakeGpu(answer), "online", 64)


def test_times_come_with_their_spread():
    from lesson import model

    gate, (time,) = results.time_path(FakeGpu(model.online), "online", 64)
    assert gate.passed and (time.median_ms, time.low_ms, time.high_ms) == (2.0, 1.0, 4.0)


# The probe: each way a GPU can be missing has its sentence, and the lesson goes on without.

def probe_with(monkeypatch, packages, cupy=None, nvrtc_found=(True, "12.9")):
    backends.probe.cache_clear()
    monkeypatch.setattr(backends, "_cupy_packages", lambda: packages)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(nvrtc, "available", lambda: nvrtc_found)
    try:
        return backends.probe()
    finally:
        backends.probe.cache_clear()


def fake_cupy(count=0, error=None):
    def devices():
        if error:
            raise RuntimeError(error)
        return count

    runtime = types.SimpleNamespace(getDeviceCount=devices)
    return types.SimpleNamespace(__version__="14.0.1", cuda=types.SimpleNamespace(runtime=runtime))


@pytest.mark.parametrize("packages, cupy, nvrtc_found, words", [
    ([], None, (True, ""), "CuPy is not installed"),
    (["cupy-cuda12x"], None, (True, ""), "does not import"),
    (["cupy-cuda12x", "cupy-cuda13x"], fake_cupy(1), (True, ""), "two CuPy packages"),
    (["cupy-cuda12x"], fake_cupy(error="cudaErrorInsufficientDriver: .."), (True, ""),
     "no NVIDIA driver"),
    (["cupy-cuda12x"], fake_cupy(error="cudaErrorNoDevice: .."), (True, ""), "finds no GPU"),
    (["cupy-cuda12x"], fake_cupy(0), (True, ""), "finds no GPU"),
    (["cupy-cuda12x"], fake_cupy(1), (False, "NVRTC does not load"), "NVRTC does not load"),
    (["cupy-cuda12x"], fake_cupy(1), (True, "12.9"), "trivial kernel does not run"),
])
def test_probe_says_why_there_is_no_gpu(monkeypatch, packages, cupy, nvrtc_found, words):
    found = probe_with(monkeypatch, packages, cupy, nvrtc_found)
    assert not found.gpu and words in found.reason


def test_an_unknown_backend_and_one_that_is_not_there_are_refused(monkeypatch):
    with pytest.raises(ArgumentError, match="'live', 'emulated'"):
        backends.choose("gpu")
    backends.probe.cache_clear()
    monkeypatch.setattr(backends, "probe", lambda: backends.Probe(False, "no driver", {}))
    with pytest.raises(ArgumentError, match="no live GPU: no driver"):
        backends.choose("live")


def test_an_illegal_access_is_reported_with_its_kernel_and_the_remedy():
    from lesson.gpu import GpuBackend

    class CUDARuntimeError(Exception):
        pass

    def wait():
        raise CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access")

    runtime = types.SimpleNamespace(deviceSynchronize=wait, CUDARuntimeError=CUDARuntimeError)
    gpu = object.__new__(GpuBackend)
    gpu.cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime))
    with pytest.raises(LaunchError, match="attentionOnline failed.*IllegalAddress.*restart"):
        gpu.synchronize("attentionOnline")


def test_a_lesson_error_shows_its_message_alone():
    assert LessonError("what to do")._render_traceback_() == ["LessonError: what to do"]
