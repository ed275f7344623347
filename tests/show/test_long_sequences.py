"""The impossible row: what is said before, instead of and after a run."""

import json

import lesson
import pytest
from lesson.errors import ArgumentError
from lesson.machine import backend as backends
from support import ROOT

CHAPTER = ROOT / "book/the-merge.ipynb"


def cells(kind):
    book = json.loads(CHAPTER.read_text(encoding="utf-8"))
    return ["".join(c["source"]) for c in book["cells"] if c["cell_type"] == kind]


def test_a_long_run_needs_a_gpu_and_a_good_n(monkeypatch):
    monkeypatch.setattr(backends, "choose", lambda kind=None: None)
    assert "needs a GPU" in lesson.long_runs("run").text()
    with pytest.raises(ArgumentError, match="n = 1000: choose a multiple of 128"):
        lesson.long_runs("run", 1000)


def test_estimates_are_the_datasheets(monkeypatch):
    monkeypatch.setattr(backends, "choose", lambda kind=None: None)  # a GPU adds its own estimate
    (cells,) = [c for c, _ in lesson.long_runs("estimate").rows if c[0] == "1,048,576"]
    work = 4 * 1048576**2 * 64
    assert cells[1:] == ("4,194,304", "1,024", f"{work / 67e12:.3g}", f"{work / 8.1e12:.3g}")
