"""Gates as a reader sees them."""


import lesson
import numpy as np
import pytest
from lesson.errors import ArgumentError
from lesson.machine import backend as backends
from lesson.machine import gpus
from lesson.machine.gpus import T4
from lesson.problem import cases
from lesson.text import source
from lesson.text.edits import replace as edit


def test_a_rung_is_gated_as_edited(emulated):
    assert "pass" in lesson.gate(12, "spike-late").text()
    text = source.snippets("ladder/12_lazy")["rescale"]
    assert text.count("m[i] + SLACK") == 1
    edit("ladder/12_lazy/rescale", text.replace("m[i] + SLACK", "m[i] + 1000.0f"))
    try:
        # As the chapter's first answer says.
        for name in cases.NAMES:
            fails = name in ("large", "peaks")
            said = lesson.gate(12, name, 256, splits=1).text()
            assert ("fail" if fails else "pass") in said, name
        assert "pass" in lesson.gate(12, "large", 256, splits=4).text()
        assert "pass" in lesson.gate(12, "peaks", 256, splits=4).text()
        failed = lesson.gate(12, "large", 256, splits=1).text()
        assert "fail" in failed and "edited: ladder/12_lazy/rescale" in failed
        edit("ladder/12_lazy/rescale", text.replace("m[i] + SLACK", "m[i] + 0.0f"))
        assert "pass" in lesson.gate(12, "ascending").text()  # at every rise: slower, right
    finally:
        lesson.reset()


def test_a_gpu_that_cannot_hold_a_rung_leaves_it_to_the_emulator(emulated, monkeypatch):
    monkeypatch.setattr(gpus, "of", lambda backend: (T4, T4.sms))
    tried = []
    choose = backends.choose
    monkeypatch.setattr(backends, "choose",
                        lambda kind=None: tried.append(kind) or choose(kind))
    assert "emulated" in lesson.gate(19, "flat").text() and tried == [None, "emulated"]
    tried.clear()
    assert "pass" in lesson.gate(21, "flat").text() and tried == [None]


def test_without_gpu_and_compiler_a_rung_is_not_gated(monkeypatch):
    monkeypatch.setattr(backends, "choose", lambda kind=None: None)
    assert "nothing ran" in lesson.gate(19).text()


def test_an_output_says_where_it_ran_and_holds_what_a_path_computed(emulated):
    run = lesson.output("materialised", "flat", 128)
    assert run.o.shape == (128, 64) and run.o.dtype == np.float32 and run.case.name == "flat"
    assert "emulated" in run.text() and 'data-mark="emulated"' in run._repr_html_()
    mean = run.case.v.astype(float).mean(axis=0)
    assert np.abs(run.o - mean).max() < 1e-6


def test_only_a_path_has_an_output():
    with pytest.raises(ArgumentError, match="no path is called 'pair'; there are: materialised, "):
        lesson.output("pair")
