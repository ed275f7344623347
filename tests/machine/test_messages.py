"""What compilers and runs say of a reader's slip, in the reader's own lines."""


import lesson
import pytest
from lesson.errors import CompileError
from lesson.machine import emulator, nvrtc
from lesson.text import source
from lesson.text.edits import current, find, replace, targets
from support import missing
from support.kernels import edit, needs_nvrtc

pytestmark = pytest.mark.usefixtures("no_gpu")

LADDER = [target for target in targets() if target.startswith("ladder/")]


@pytest.mark.skipif(not LADDER, reason="there is no ladder")
def test_a_broken_cell_of_the_ladder_is_reported_in_its_own_lines():
    compilers = [lambda text: nvrtc.compile_cubin(text, "sm_90")] if nvrtc.available()[0] else \
        [emulator.HostBackend().compile] if emulator.available()[0] else missing("no compiler")
    for target in LADDER:
        name, snippet = find(target)
        text = source.snippets(name)[snippet] if snippet else source.read(name)
        replace(target, f"{text.rstrip()}\n    oops oops;\n")
        with pytest.raises(CompileError) as error:
            compilers[0](current(name))
        line = text.rstrip().count("\n") + 3
        assert f"cell {target}, line {line}: " in str(error.value)
        replace(target, text)


# ---- what a reader sees -----------------------------------------------------------------------

def slip(target, old, new):
    """The messages that the C++ compiler and NVRTC have for a slip, without the first line."""
    edit(target, old, new)
    compilers = [emulator.HostBackend().compile] if emulator.available()[0] else []
    if nvrtc.available()[0]:
        compilers.append(lambda text: nvrtc.compile_cubin(text, "sm_75"))
    if not compilers:
        missing("neither a C++ compiler nor NVRTC")
    found = []
    for compiler in compilers:
        with pytest.raises(CompileError) as error:
            compiler(current(find(target)[0]))
        first, *rest = str(error.value).splitlines()
        assert first.endswith(" does not compile")
        found.append(rest)
    return found


def test_a_missing_semicolon_on_line_7_of_a_cell():
    for said in slip("online/score", "s *= scale;", "s *= scale"):
        assert said[0].startswith("cell online/score, line 7: expected ';'")
        assert said[1].strip() == "s *= scale" and said[2].index("^") == len(said[1])
        assert len(said) == 3


def test_a_misspelt_intrinsic():
    for said in slip("online/update", "__shfl_sync(", "__shlf_sync("):
        assert said[0].startswith("cell online/update, line 9: ")
        assert "__shlf_sync" in said[0] and "did you mean '__shfl_sync'?" in said[0]
        assert "__shlf_sync(FULL, w, j)" in said[1]


def test_a_misspelt_function():
    for said in slip("online/update", "w = expf(", "w = exfp("):
        assert "line 4: " in said[0] and "did you mean 'expf'?" in said[0]


@pytest.mark.parametrize("old, new, what", [
    ("        }\n        __sync", "        __sync", "a '}' is missing"),
    ("m[r] = mNew;", "m[r] = mNew; }", "there is a '}' too many")])
def test_a_brace_is_missed_in_the_cell_that_lacks_it(old, new, what):
    assert all(said == [f"cell online/update: {what}"] for said in slip("online/update", old, new))


def test_a_precondition_speaks_in_its_own_words():
    for said in slip("online/tiles", "BM = 64;", "BM = 60;"):
        assert said[0].endswith(": a block's query rows must divide evenly among its warps")


def test_what_an_edit_broke_elsewhere_is_said_to_be_elsewhere():
    for said in slip("online/score", "float s = 0.0f;\n", "float t = 0.0f; float& s2 = t;\n"):
        assert said[0].startswith("cell online/score, line 6: ")  # in the cell first
    lesson.reset()
    for said in slip("online/state", "const int lane = ", "const int lan = "):
        assert said[0].startswith("online.cu, line ") and "did you mean 'lan'?" in said[0]
        assert said[-1].startswith("These lines are not edited")


DOUBLES = [("s *= scale;", "s *= scale * 1.1;"), ("s *= scale;", "s = exp(s * (double)scale);")]


@needs_nvrtc
@pytest.mark.parametrize("old, new", DOUBLES)
def test_a_double_literal_is_warned_about(old, new):
    edit("online/score", old, new)
    (place, text), = nvrtc.double_lines(current("online")).items()
    assert place == ("cell online/score", 7) and text == new


@needs_nvrtc
def test_no_warning_where_the_compiler_computes_in_float():
    assert not nvrtc.double_lines(source.load("online"))
    assert not nvrtc.double_lines(source.load("materialised"))
    edit("online/score", "s *= scale;", "s = s * scale * 0.125;")  # narrowed: it is exact
    assert not nvrtc.double_lines(current("online"))


@pytest.mark.parametrize("old, new", DOUBLES)
def test_a_double_literal_is_warned_about_without_nvrtc(old, new, emulated):
    assert not emulator.double_lines(source.load("online"))
    edit("online/score", old, new)
    assert emulator.double_lines(current("online")) == {("cell online/score", 7): new}
