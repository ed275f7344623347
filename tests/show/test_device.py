"""What was found here, in three lines, for each way in which a GPU can be missing."""

import pytest
from lesson import colab
from lesson.machine import backend as backends
from lesson.machine import emulator
from lesson.show.device import device
from support.gpus import fake_cupy, probe_with

# The first output, for each way in which a GPU can be missing

@pytest.mark.parametrize("packages, cupy, nvrtc_found, words, switch", [
    ([], None, (True, ""), "CuPy is not installed", True),
    (["cupy-cuda12x"], fake_cupy(error="cudaErrorInsufficientDriver: .."), (True, ""),
     "no NVIDIA driver", True),
    (["cupy-cuda12x"], fake_cupy(error="cudaErrorNoDevice: .."), (True, ""), "finds no GPU", True),
    (["cupy-cuda12x"], fake_cupy(1), (False, "NVRTC does not load"), "NVRTC does not load", False),
    (["cupy-cuda12x", "cupy-cuda13x"], None, (True, ""), "two CuPy packages", False),
])
def test_the_first_output_names_what_is_missing(monkeypatch, packages, cupy, nvrtc_found, words,
                                                switch):
    monkeypatch.setattr(colab, "here", lambda: True)
    monkeypatch.setattr(emulator, "available", lambda: (True, "g++ 12"))
    found = probe_with(monkeypatch, packages, cupy, nvrtc_found)
    monkeypatch.setattr(backends, "probe", lambda: found)
    table = device()
    assert len(table.rows) == 3, "three lines"
    assert words in table.text()
    assert ("Runtime > Change runtime type > T4 GPU" in table.text()) == switch
    assert "pip install cupy" not in table.text(), "in Colab the runtime brings CuPy"


def test_outside_colab_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(colab, "here", lambda: False)
    assert "pip install cupy-cuda12x" in probe_with(monkeypatch, [], None).reason
