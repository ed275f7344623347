"""What is said where a compiler refuses a source: the place, the cause, the remedy."""

import pytest
from lesson.errors import CompileError
from lesson.machine import nvrtc, refusals
from lesson.machine.emulator import HostBackend
from lesson.text.source import from_text
from support.kernels import needs_nvrtc

INFINITY = "__int_as_float(0x7f800000)"


def kernel(body="y[threadIdx.x] = 1.0f;", before=""):
    """A source whose kernel's body begins in line 2 after the lines of ``before``."""
    return f'{before}extern "C" __global__ void k(float* y) {{\n{body}\n}}\n'


def by_host(text):
    HostBackend().compile(from_text(text, "mine.cu"))


def by_nvrtc(text):
    nvrtc.kernels(from_text(text, "mine.cu"))


@pytest.fixture(params=["host and NVRTC", "host", "NVRTC"])
def refused(request, monkeypatch):
    """A function: the lines that are said of a text, after the first: by the host's compiler with
    NVRTC beside it, by it alone, and by NVRTC."""
    if request.param != "NVRTC":
        request.getfixturevalue("emulated")
    if request.param == "host":
        monkeypatch.setattr(nvrtc, "available", lambda: (False, "no NVRTC in this test"))
    elif not nvrtc.available()[0]:
        pytest.skip(nvrtc.available()[1])

    def said(text):
        with pytest.raises(CompileError) as error:
            (by_nvrtc if request.param == "NVRTC" else by_host)(text)
        message = str(error.value)
        for leak in ("/tmp", "kernel.cpp", "cuda.h", "builtins.h", "emulator::", "ld returned"):
            assert leak not in message
        first, *rest = message.splitlines()
        assert first in ("mine.cu does not compile", "mine.cu does not compile for a GPU")
        return rest

    return said


# ---- what every compiler is asked ---------------------------------------------------------------


@pytest.mark.parametrize("header, remedy", [
    ("math.h", INFINITY), ("cmath", INFINITY), ("cfloat", "FLT_MAX is 3.4"),
    ("float.h", "FLT_MAX is 3.4"), ("climits", "INT_MAX is 2147483647"), ("limits", "INT_MAX"),
    ("stdint.h", "unsigned for uint32_t"), ("cstdio", "printf is built in"),
    ("assert.h", "assert is built in"), ("cuda_runtime.h", ""), ("cuda_fp16.h", ""),
    ("cooperative_groups.h", ""), ("algorithm", ""), ("cub/cub.cuh", ""), ("type_traits", ""),
])
def test_every_header_is_refused_alike(refused, header, remedy):
    said = refused(kernel(before=f"// a comment\n#include <{header}>\n"))
    assert said[0].startswith(f"mine.cu, line 2: there is no header {header}: NVRTC")
    assert "CUDA's own names are built in. Delete this line" in said[0] and remedy in said[0]


def test_a_file_of_one_s_own_is_not_there(refused):
    said = refused(kernel(before='#include "helpers.cuh"\n'))
    assert said[0] == ("mine.cu, line 1: there is no file helpers.cuh here: put its text in the "
                       "place of this line")


@pytest.mark.parametrize("name, instead", [
    ("INFINITY", INFINITY), ("NAN", "__int_as_float(0x7fffffff)"), ("FLT_MAX", "3.402823466e+38f"),
    ("INT_MAX", "2147483647"), ("M_PI", "3.14159265358979")])
def test_a_name_from_a_header_is_told_what_to_write(refused, name, instead):
    said = refused(kernel(f"float high = -{name}, low = 0.0f;\ny[0] = high + low;"))
    assert "line 2: " in said[0] and name in said[0]
    assert said[0].endswith(f"no header is included: write {instead}")
    assert not any("low" in line and "line 3" in line for line in said)  # no consequence


def test_a_type_from_a_header_is_told_what_to_write(refused):
    said = refused(kernel("uint32_t i = threadIdx.x;\ny[i] = 1.0f;"))
    assert said[0].endswith("write unsigned") and len(said) == 3


@pytest.mark.parametrize("text, line", [
    (kernel("float a = y[0]\nfloat b = a;\ny[1] = b;"), 2),
    (kernel("float a = y[0]   // first\n\n// more\nconst float b = a, c = b;\ny[1] = b + c;"), 2),
    (kernel("int i\nfor (i = 0; i < 3; ++i) y[i] = i;"), 2),
    (kernel("__shared__ float s[32]\n__shared__ float t[32];\ns[0] = t[0] = y[0] = 1;"), 2),
    (kernel("y[0] = 1\ny[1] = 2;"), 2),
    (kernel("__syncthreads()\n#pragma unroll\nfor (int i = 0; i < 3; ++i) y[i] = 2;"), 2),
    (kernel(before="constexpr int A = 3\nconstexpr int B = A;\n"), 1),
    (kernel(before="typedef float Real\n"), 1),
    (kernel(before="struct Pair { float a, b; }\n\n"), 1),
    (kernel(before="enum { A, B }\n"), 1),
    (kernel("return"), 2),
])
def test_a_missing_semicolon_is_shown_where_it_is_missing(refused, text, line):
    said = refused(text)
    assert said[0].startswith(f"mine.cu, line {line}: expected"), said
    assert "';'" in said[0] or '";"' in said[0]
    shown, caret = said[1], said[2]
    assert len(said) == 3, said
    assert caret.index("^") >= len(shown.split("//")[0].rstrip())


@pytest.mark.parametrize("body", ['printf("{");', "if (y[0] == '{') return;", "// {\n", "/* }}} */",
                                  'printf("\\"{");', "int big = 1'000; // '{\n"])
def test_braces_that_are_no_code_are_not_counted(refused, body):
    said = refused(kernel(f"{body} undefined_thing();"))
    assert "undefined_thing" in said[0]


def test_braces_of_branches_that_are_not_compiled_are_not_counted(refused):
    said = refused(kernel("undefined_thing();", "#ifdef NEVER\n__device__ void a() {\n#else\n"
                          "__device__ void b() {\n#endif\n}\n#if 0\n{{{\n#endif\n"))
    assert "undefined_thing" in said[0]


@pytest.mark.parametrize("text, words", [
    (kernel("if (y[0] > 1) { y[0] = 1;"), "a '}' is missing"),
    (kernel("y[0] = 1; }"), "there is a '}' too many")])
def test_braces_that_are_missing_are_said(refused, text, words):
    assert refused(text) == [f"mine.cu: {words}"]


@pytest.mark.parametrize("text, words, line", [
    (kernel("y[0] = 1; /* never closed"), "comment", 2),
    ("#if defined(A)\n" + kernel(), "#", 1),
])
def test_what_never_ends_is_shown_where_it_begins(refused, text, words, line):
    said = refused(text)
    assert words in said[0].lower() and f"line {line}: " in said[0] and "'}'" not in said[0]


@pytest.mark.parametrize("text, line", [
    ("\n" + kernel() + "int main() { return 0; }\n", 5),
    (kernel() + "\nint main(int, char**)\n{\n    return 0;\n}\n", 5),
])
def test_main_is_host_code(refused, text, line):
    said = refused(text)
    assert said[0] == (f"mine.cu, line {line}: the lesson launches the kernel itself: take main() "
                       "and other host code out")


@pytest.mark.parametrize("text, line, words", [
    (kernel() + "void run(float* y) { k<<<1, 32>>>(y); }\n", 4, "a launch with <<< >>> is host"),
    (kernel() + "void run(float** y) { cudaMalloc(y, 4); }\n", 4, "other host code out"),
])
def test_other_host_code_is_named(refused, text, line, words):
    said = "\n".join(refused(text))
    assert f"mine.cu, line {line}: " in said
    assert words in said or "or take it out if it is host code" in said  # NVRTC's refusal


def test_there_is_no_standard_library(refused):
    said = refused(kernel("y[0] = std::max(y[1], y[2]);"))
    assert "CUDA's own names go without std::" in said[0] or "std" in said[0]


@pytest.mark.parametrize("name, better", [
    ("__syncwrap", "__syncwarp"), ("__syncthread", "__syncthreads"), ("rsqtrf", "rsqrtf"),
    ("threadidx", "threadIdx")])
def test_a_likely_name_is_given_once(refused, name, better):
    said = refused(kernel(f"y[0] = {name}(y[1]);"))
    assert said[0].count("did you mean") == 1 and f"did you mean '{better}'?" in said[0]


@pytest.mark.parametrize("letter, name", [
    ("\u00a0", "NO-BREAK SPACE (U+00A0)"), ("\u201c", "LEFT DOUBLE QUOTATION MARK (U+201C)"),
    ("\u0430", "CYRILLIC SMALL LETTER A (U+0430)"), ("\u2212", "MINUS SIGN (U+2212)")])
def test_a_letter_from_elsewhere_is_named_once(refused, letter, name):
    said = refused(kernel(f"y[0] = {letter}1.0f;"))
    assert f"this line holds {name}: type it anew" in said[0]
    assert "\n".join(said).count("type it anew") == 1


def test_letters_in_comments_and_texts_are_no_code(emulated):
    by_host(kernel('printf("\u00e4");  // \u00e4, \u03bb'))


# ---- what only one of the two compilers refuses ------------------------------------------------


@needs_nvrtc
@pytest.mark.parametrize("text, line, words", [
    (kernel("y[0] = helper();", "float helper() { return 1.0f; }\n"), 1, "write __device__ before"),
    (kernel("y[0] = a::b();", "namespace a {\n  float b() { return 1.0f; }\n}\n"), 2,
     "write __device__ before"),
    (kernel("y[0] = Pair(2).a;", "struct Pair {\n  float a;\n  Pair(float x) : a(x) {}\n};\n"), 3,
     "write __device__ before"),
    (kernel("y[0] = twice(2);", "constexpr float twice(float x) { return 2 * x; }\n"), 1,
     "write __device__ before"),
    (kernel("y[0] = twice(2);", "__host__ float twice(float x) { return 2 * x; }\n"), 1,
     "write __device__ before"),
    (kernel("y[0] = scale;", "float scale = 2.0f;\n"), 1, "__device__, __constant__ or constexpr"),
    (kernel("y[0] = table[1];", "\nstatic float table[2] = {1, 2};\n"), 2,
     "__device__, __constant__ or constexpr"),
    (kernel("__shared__ float s[2] = {1, 2};\ny[0] = s[1];"), 2, "let a thread set it"),
    (kernel("y[0] = s[1];", "__shared__ int s[1] = {7};\n"), 1, "let a thread set it"),
    (kernel("y[0] = fmax(y[1], 1.0);"), 2, "more than one instance of overloaded function"),
    (kernel("y[0] = __builtin_inff();"), 2, "__builtin_inff"),
    (kernel("thread_local float x = y[0];\ny[1] = x;"), 2, "thread_local"),
])
def test_what_only_a_gpu_s_compiler_refuses_is_refused(emulated, text, line, words):
    with pytest.raises(CompileError) as error:
        by_host(text)
    first, said, *_ = str(error.value).splitlines()
    assert first == "mine.cu does not compile for a GPU"
    assert said.startswith(f"mine.cu, line {line}: ") and words in said


def test_without_nvrtc_that_is_said(emulated, monkeypatch):
    monkeypatch.setattr(nvrtc, "available", lambda: (False, "CuPy is not installed"))
    by_host(kernel("y[0] = helper();", "float helper() { return 1.0f; }\n"))
    assert "and no NVRTC" in emulated.describe()


@needs_nvrtc
def test_with_nvrtc_that_is_said(emulated):
    assert f"and NVRTC {nvrtc.available()[1]}" in emulated.describe()


@needs_nvrtc
def test_what_only_the_emulator_lacks_runs_on_a_gpu(emulated, monkeypatch):
    text = kernel("y[0] = tex1Dfetch<float>(0, 1);")
    with pytest.raises(CompileError) as error:
        by_host(text)
    assert "mine.cu, line 2: tex1Dfetch: CUDA has this and the emulator does not; it runs on a " \
        "GPU" in str(error.value)
    monkeypatch.setattr(nvrtc, "available", lambda: (False, "CuPy is not installed"))
    with pytest.raises(CompileError, match="if CUDA has it, it runs on a GPU"):
        by_host(text)


@pytest.mark.parametrize("statement, line", [
    ('asm("ex2.approx.f32 %0, %1;" : "=f"(y[0]) : "f"(y[1]));', 2),
    ('asm volatile("bar.sync 0;");', 2),
    ('unsigned lane;\nasm("mov.u32 %0, %%laneid;" : "=r"(lane));\ny[0] = lane;', 3),
    ('unsigned lane;\n__asm__ volatile("mov.u32 %0, %%laneid;"\n : "=r"(lane));\ny[0] = lane;', 3),
])
def test_ptx_runs_on_a_gpu_alone(emulated, statement, line):
    with pytest.raises(CompileError) as error:
        by_host(kernel(statement))
    assert f"mine.cu, line {line}: this is PTX, a GPU's own instructions" in str(error.value)
    assert "#ifdef __CUDA_ARCH__ and C under #else" in str(error.value)


def test_ptx_with_a_form_for_the_host_is_taken(emulated):
    by_host(kernel('#ifdef __CUDA_ARCH__\nasm volatile("bar.sync 0;");\n#else\n__syncthreads();\n'
                   '#endif\nasm volatile("" ::: "memory");'))


def test_cuda_arch_is_not_defined_on_the_host(emulated):
    with pytest.raises(CompileError) as error:
        by_host(kernel(before="#if __CUDA_ARCH__ < 700\n#error too old\n#endif\n"))
    assert "mine.cu, line 2: " in str(error.value) and "too old; __CUDA_ARCH__ is defined where " \
        "code for a GPU is compiled, and not in the emulator" in str(error.value)
    by_host(kernel(before="#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700\n#error too old\n"
                          "#endif\n"))


@pytest.mark.parametrize("errors", [
    # g++: a macro, a template
    """/x/emulator/cuda.h:16:20: error: expected initializer before 'thread_local'
mine.cu:3:2: note: in expansion of macro '__shared__'""",
    """/x/emulator/cuda.h: In instantiation of 'T f(T) [with T = float4]':
/x/emulator/cuda.h:86:1:   required from 'T g(T) [with T = float4]'
mine.cu:3:2:   required from here
/x/emulator/cuda.h:70:5: error: static assertion failed: expected initializer before '__shared__'
/x/emulator/cuda.h:70:6: note: 'false' evaluates to false""",
    # clang++: a template
    """/x/emulator/cuda.h:70:5: error: expected initializer before '__shared__'
mine.cu:3:2: note: in instantiation of function template specialization 'f<float4>' requested""",
])
def test_an_error_in_what_the_emulator_adds_is_the_reader_s(errors):
    assert refusals.errors_of(errors) == [
        ("mine.cu", 3, 2, "expected initializer before '__shared__'")]


def test_what_is_declared_and_not_defined_has_its_line(emulated):
    with pytest.raises(CompileError) as error:
        by_host(kernel("y[0] = 1.0f;\ny[1] = helper(2.0f);", "__device__ float helper(float);\n"))
    assert "mine.cu, line 4: declared and used, but not defined: helper(float)" in str(error.value)
    assert "\n    y[1] = helper(2.0f);" in str(error.value)
