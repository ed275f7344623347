"""The probe: each way a GPU can be missing has its sentence, and the lesson goes on without."""


import pytest
from lesson.errors import ArgumentError
from lesson.machine import backend as backends
from support.gpus import fake_cupy, probe_with


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
