"""Kernels and parameters from debug information: the same from every compiler, however typed."""

import struct

import pytest
from lesson.errors import CompileError
from lesson.machine import nvrtc, signatures
from lesson.text import source
from lesson.text.source import from_text
from support.kernels import HOPPER, needs_nvrtc


@pytest.fixture(params=["host", "NVRTC"])
def kernels(request):
    """A function: ``{name: Kernel}`` of a Source, by the host's compiler and by NVRTC."""
    if request.param == "host":
        backend = request.getfixturevalue("emulated")
        return lambda text: backend.compile(text).kernels
    if not nvrtc.available()[0]:
        pytest.skip(nvrtc.available()[1])
    return nvrtc.kernels


def params_of(kernels, text, name="k"):
    return kernels(from_text(text, "mine.cu"))[name].params


def test_signatures_are_the_public_ones(kernels):
    found = {**kernels(source.load("materialised")), **kernels(source.load("online"))}
    assert {k: [p.name for p in kernel.params] for k, kernel in found.items()} == {
        "scoresQKt": ["q", "k", "s", "n", "scale"], "softmaxRows": ["s", "p", "rowSum", "n"],
        "weightedV": ["p", "v", "rowSum", "o", "n"],
        "attentionOnline": ["q", "k", "v", "o", "n", "scale"]}
    for kernel in found.values():
        types = {p.name: p.type for p in kernel.params}
        assert types["n"] == "size_t" and types.get("scale", "float") == "float"


@needs_nvrtc
@pytest.mark.parametrize("name", sorted({*source.names()} - HOPPER))
def test_both_compilers_read_the_same_in_every_file(emulated, name):
    assert emulated.compile(source.load(name)).kernels == nvrtc.kernels(source.load(name), "sm_90")


@needs_nvrtc
@pytest.mark.parametrize("name", sorted(HOPPER))
def test_the_emulator_says_that_it_does_not_know_a_hopper_gpus_instructions(emulated, name):
    assert nvrtc.kernels(source.load(name), "sm_90")
    with pytest.raises(CompileError, match="PTX, a GPU's own instructions"):
        emulated.compile(source.load(name))


@pytest.mark.parametrize("declared, pointer, read_only, dtype", [
    ("float* x", True, False, "float32"),
    ("const float* x", True, True, "float32"),
    ("float const* const x", True, True, "float32"),
    ("float* const __restrict__ x", True, False, "float32"),
    ("const float* __restrict x", True, True, "float32"),
    ("float x[]", True, False, "float32"),
    ("const float x[][8]", True, True, "float32"),
    ("double (*x)[8]", True, False, "float64"),
    ("volatile int* x", True, False, "int32"),
    ("const Real* x", True, True, "float32"),
    ("In x", True, True, "float64"),
    ("const float4* x", True, True, "float32"),
    ("long long* x", True, False, "int64"),
    ("unsigned short x[4]", True, False, "uint16"),
    ("bool* x", True, False, "bool"),
    ("unsigned char* x", True, False, "uint8"),
    ("Pair* x", True, False, None),
    ("void* x", True, False, None),
    ("float** x", True, False, None),
    ("float x", False, False, "float32"),
    ("Real const x", False, False, "float32"),
    ("long x", False, False, "int64"),
    ("unsigned long long int x", False, False, "uint64"),
    ("size_t x", False, False, "uint64"),
    ("signed x", False, False, "int32"),
    ("short int x", False, False, "int16"),
    ("const bool x", False, False, "bool"),
    ("double x", False, False, "float64"),
    ("Choice x", False, False, "int32"),
    ("float4 x", False, False, None),
    ("Pair x", False, False, None),
    ("Real x = 2", False, False, "float32"),
    ("const float* x = nullptr", True, True, "float32"),
    ("CONST_INPUT x", True, True, "float32"),
])
def test_a_parameter_is_read_as_the_compiler_reads_it(kernels, declared, pointer, read_only, dtype):
    before = ("typedef float Real;\nusing In = const double* const;\nenum Choice { A, B };\n"
              "struct Pair { int key; float value; };\n"
              "#define CONST_INPUT const float* __restrict__\n")
    param, last = params_of(
        kernels, f'{before}extern "C" __global__ void k({declared}, int last = 0) {{}}')
    assert (param.name, param.pointer, param.read_only, param.dtype) == (
        "x", pointer, read_only, dtype)
    assert (last.name, last.type, last.dtype) == ("last", "int", "int32")


@pytest.mark.parametrize("type_, dtype", [
    ("float4", "float32"), ("uint2", "uint32"), ("int3", "int32"), ("double2", "float64")])
def test_behind_a_vector_type_are_its_members(kernels, type_, dtype):
    x, = params_of(kernels, f'extern "C" __global__ void k({type_}* x) {{ x[0].x = 1; }}')
    assert x.pointer and x.dtype == dtype and x.type == f"{type_}*"


def test_types_are_spelled_for_a_reader(kernels):
    kernel = kernels(from_text("""
        extern "C" __global__ void k(const float* const a, float b[], size_t n, unsigned long m,
                                     float4* c, const float (*d)[3], int) {}"""))["k"]
    assert kernel.declared() == ("const float* a, float* b, size_t n, unsigned long m, float4* c, "
                                 "const float* d, int (argument 7)")


@pytest.mark.parametrize("text, names", [
    ('#if 0\nextern "C" __global__ void old(float* x) {}\n#endif\n', []),
    ('// extern "C" __global__ void old(float* x) {}\n/* __global__ void older() {} */', []),
    ('#define MAKE(name) extern "C" __global__ void name(float* x) { *x = 1; }\n'
     "MAKE(one) MAKE(two)", ["one", "two"]),
    ('extern "C" __global__ void none(void) {}', ["none"]),
    ('extern "C" __global__ void __launch_bounds__((4 * 8) * (1 + 1), 2) bound() {}', ["bound"]),
    ('namespace a { namespace b { extern "C" __global__ void inside(int* x) {} } }', ["inside"]),
    ("template <class T> __global__ void any(T* x) { *x = 0; }", []),
    ('extern "C" __global__ void later(float* x);\n__global__ void later(float* y) {}', ["later"]),
    ('const char* text = "__global__ void quoted(float* x) {";', []),
    ("__device__ void helper(float* x) { *x = 1; }", []),
])
def test_kernels_are_those_that_are_compiled(kernels, text, names):
    text = text.replace("const char* text", "__device__ const char* text")
    found = kernels(from_text(f'{text}\nextern "C" __global__ void k(float* x) {{ *x = 2; }}\n'))
    assert list(found) == [*names, "k"]
    assert all(kernel.symbol == name for name, kernel in found.items())


def test_of_overloads_the_one_with_c_linkage_counts(kernels):
    found = kernels(from_text("""
        __global__ void k(double* x) { *x = 1; }
        extern "C" __global__ void k(float* x) { *x = 1; }
        __global__ void k(int* x) { *x = 1; }
        __global__ void other(int* x) { *x = 1; }"""))
    assert found["k"].symbol == "k" and found["k"].params[0].dtype == "float32"
    assert found["other"].symbol == "_Z5otherPi"


def test_a_template_is_known_as_one(emulated):
    text = from_text("template <int W> __global__ void k(float* x) { *x = W; }\n"
                     "__global__ void plain(float* x) { *x = 1; }\n")
    program = emulated.compile(text)
    assert program.template("k") and not program.template("plain")
    assert not program.template("absent")
    if nvrtc.available()[0]:
        assert nvrtc.is_template(text, "k") and not nvrtc.is_template(text, "plain")
        assert not nvrtc.is_template(text, "absent")


def test_what_cannot_be_read_is_said(tmp_path):
    other = tmp_path / "other.o"
    other.write_bytes(b"\x7fELF\x01\x01" + bytes(60))
    with pytest.raises(CompileError, match="no little-endian ELF64"):
        signatures.Elf(other)
    newer = struct.pack("<IHBBI", 8, 7, 1, 8, 0)  # one unit of a version that does not exist
    listing = ".section .debug_info\n{\n.b8 " + ",".join(map(str, newer)) + "\n}\n"
    with pytest.raises(CompileError, match="version 7"):
        signatures.in_ptx(listing)
