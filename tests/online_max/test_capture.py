"""OnlineMax.from_kernel: m, l and o read out of the CUDA kernel itself, here on the host."""

import numpy as np
import pytest
from lesson import ArgumentError, CompileError, OnlineMax
from lesson.launch import paths
from lesson.online_max import capture
from lesson.problem import cases
from lesson.text import edits, source


@pytest.fixture
def on_host(emulated, monkeypatch):
    """The kernel runs emulated, also where there is a GPU."""
    monkeypatch.setattr(capture, "choose", lambda: emulated)
    return emulated


@pytest.mark.parametrize("case", ["spike-late", "large", "all-negative", "periodic"])
def test_the_kernel_agrees_with_the_trace(on_host, case):
    shown = OnlineMax.from_kernel(row=77, case=case, n=128, columns=(0, 31, 63))
    said = shown.agreement()
    assert "m, l and o agree with the NumPy trace after each of the 4 tiles" in said.words
    assert said.mark == "emulated" and shown.mark() == "emulated"
    assert shown.verdict.passed


def test_reading_the_state_does_not_change_the_answer(on_host):
    inputs = cases.make("random", 128)
    plain, _ = paths.run(on_host, "online", inputs)
    for row in (0, 64, 127):
        got = capture.capture(inputs, row)
        np.testing.assert_array_equal(got.answer, plain[row])
        np.testing.assert_array_equal(got.o[-1] / got.l[-1], plain[row])
        assert got.m[0] == -np.inf and got.l[0] == 0 and not got.o[0].any()


def test_a_broken_update_is_shown_as_what_it_does(on_host):
    update = source.snippets("online")["update"]
    broken = update.replace("l[r] * rescale + warpSum(w)", "l[r] + warpSum(w)")
    assert broken != update
    edits.replace("online/update", broken)
    shown = OnlineMax.from_kernel(n=128)
    assert "differ from the NumPy trace" in shown.agreement().words
    assert "edited: online/update" in shown.agreement().note
    assert not shown.verdict.passed
    shown.fault = "forget-l"  # the same mistake, in NumPy
    assert "agree with the NumPy trace" in shown.agreement().words


def test_the_reader_s_line_numbers_survive(on_host):
    score = source.snippets("online")["score"].splitlines()
    score[3] = "            typo += 1.0f;"
    edits.replace("online/score", "\n".join(score))
    with pytest.raises(CompileError) as error:
        OnlineMax.from_kernel(n=128)
    assert "cell online/score" in str(error.value) and "typo" in str(error.value)
    assert "capture" not in str(error.value)
    assert "5" in str(error.value)  # line 1 of the cell is the magic


def test_a_whole_source_without_snippets_is_refused(on_host):
    edits.replace("online", source.read("online").replace("// snippet: score\n", ""))
    with pytest.raises(ArgumentError, match=r"no line '// snippet: score'.*lesson.reset"):
        OnlineMax.from_kernel(n=128)


@pytest.mark.parametrize("arguments, words", [
    ({"row": 256}, "row = 256: must be from 0 to 255"),
    ({"row": -1}, "row = -1"),
    ({"row": 1.5}, "row = 1.5"),
    ({"n": 100}, "multiple of 64"),
    ({"case": "spike"}, "no case is called 'spike'"),
    ({"columns": (0, 1)}, "shows 3"),
    ({"columns": (0, 1, 64)}, "from 0 to 63"),
])
def test_bad_arguments_are_refused(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        OnlineMax.from_kernel(**arguments)


def test_without_gpu_and_compiler_a_model_stands_in_and_says_so(monkeypatch):
    monkeypatch.setattr(capture, "choose", lambda: None)
    shown = OnlineMax.from_kernel(row=3)
    assert shown.mark() == "computed" and "not the kernels" in shown.captured["note"]
    assert "agree with the NumPy trace" in shown.agreement().words


def test_what_a_kernel_did_does_not_change(monkeypatch):
    monkeypatch.setattr(capture, "choose", lambda: None)
    shown = OnlineMax.from_kernel()
    for name, x in (("scores", [1.0] * 256), ("tile", 16), ("case", "flat"), ("captured", {})):
        with pytest.raises(ArgumentError, match="shows what the kernel did"):
            setattr(shown, name, x)
    shown.step = 3
    with pytest.raises(ArgumentError, match="holds no kernel's state"):
        OnlineMax().agreement()
