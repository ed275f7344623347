"""Each value of a launch, in the type that its kernel declares."""


import numpy as np
import pytest
from lesson.errors import ArgumentError, LaunchError
from lesson.machine import arguments
from lesson.text import source
from lesson.text.source import from_text


def test_scalars_become_the_declared_type(emulated):
    kernel = emulated.compile(source.load("online")).kernels["attentionOnline"]
    types_ = {p.name: p for p in kernel.params}
    assert type(arguments.scalar(kernel, types_["scale"], 0.125)) is np.float32
    assert type(arguments.scalar(kernel, types_["n"], 256)) is np.uint64
    with pytest.raises(ArgumentError, match="n = -1"):
        arguments.scalar(kernel, types_["n"], -1)
    with pytest.raises(ArgumentError, match="scale = 'a'"):
        arguments.scalar(kernel, types_["scale"], "a")


def test_a_renamed_kernel_lists_what_the_source_defines(emulated):
    with pytest.raises(LaunchError, match="no kernel 'attention'.*attentionOnline"):
        arguments.kernel_of(emulated.compile(source.load("online")), "attention", ())


def test_a_wrong_number_of_arguments_shows_the_signature(emulated):
    with pytest.raises(ArgumentError, match=r"takes 6 arguments.*size_t n.*got 2"):
        arguments.kernel_of(emulated.compile(source.load("online")), "attentionOnline", (1, 2))


KINDS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
         "float32", "float64")
C = {"bool": "bool", "int8": "signed char", "uint8": "unsigned char", "int16": "short",
     "uint16": "unsigned short", "int32": "int", "uint32": "unsigned", "int64": "long long",
     "uint64": "unsigned long", "float32": "float", "float64": "double"}


def program(backend, params):
    return backend.compile(from_text(f'extern "C" __global__ void k({params}) {{}}', "mine.cu"))


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_has_the_type_of_the_pointer(emulated, kind):
    found = program(emulated, f"const {C[kind]}* x, {C[kind]}* y")
    for other in KINDS:
        x = emulated.full((4,), 0, other)
        if other == kind:
            found.launch("k", (1,), (1,), (x, emulated.full((4,), 0, kind)))
            continue
        with pytest.raises(ArgumentError) as error:
            found.launch("k", (1,), (1,), (x, x))
        assert f"k: x has dtype {other}, needs {kind}: the kernel declares const " in str(
            error.value)


def test_any_array_may_be_behind_a_pointer_to_nothing_in_particular(emulated):
    for kind in KINDS:
        program(emulated, "const void* x").launch("k", (1,), (1,), (emulated.full((4,), 0, kind),))


@pytest.mark.parametrize("declared, value, kept", [
    ("float x", 0.125, np.float32(0.125)), ("float x", 3, np.float32(3)),
    ("double x", 0.1, np.float64(0.1)), ("int x", np.int64(7), np.int32(7)),
    ("int x", 7.0, np.int32(7)), ("unsigned char x", 255, np.uint8(255)),
    ("bool x", True, np.bool_(True)), ("bool x", 1, np.bool_(True)),
    ("float x", np.float64("inf"), np.float32("inf")), ("size_t x", 2**63, np.uint64(2**63)),
    ("float x", np.array(2.0), np.float32(2)),
])
def test_a_number_becomes_the_declared_type(emulated, declared, value, kept):
    kernel = program(emulated, declared).kernels["k"]
    found = arguments.scalar(kernel, kernel.params[0], value)
    assert type(found) is type(kept) and found == kept


@pytest.mark.parametrize("declared, value", [
    ("int n", 0.125), ("int n", 2**31), ("int n", None), ("int n", "7"), ("int n", float("nan")),
    ("unsigned n", -1), ("unsigned char n", 256), ("bool n", 2), ("bool n", 0.5),
    ("float n", "1.5"), ("float n", None), ("float n", 1j), ("long long n", 1.5),
])
def test_a_number_that_would_change_is_refused(emulated, declared, value):
    kind, name = declared.rsplit(" ", 1)
    with pytest.raises(ArgumentError) as error:
        program(emulated, declared).launch("k", (1,), (1,), (value,))
    assert str(error.value) == (f"k: {name} = {value!r} is no {kind}: the kernel declares "
                                f"({kind} {name})")


@pytest.mark.parametrize("shape", [(4,), (1,), (2, 2)])
def test_an_array_is_no_number(emulated, shape):
    with pytest.raises(ArgumentError) as error:
        program(emulated, "float* y, float n").launch("k", (1,), (1,), (
            emulated.full((4,), 0), emulated.full(shape, 0)))
    assert f"k: n is an array of shape {shape}; the kernel declares float, one number" in str(
        error.value)


def test_a_number_is_no_array(emulated):
    with pytest.raises(ArgumentError, match="k: y is builtins.float, needs an array of the emul"):
        program(emulated, "float* y").launch("k", (1,), (1,), (2.0,))


def test_a_struct_cannot_be_passed(emulated):
    with pytest.raises(ArgumentError, match="k: v has type float4; the lesson passes arrays"):
        program(emulated, "float4 v").launch("k", (1,), (1,), (1.0,))
