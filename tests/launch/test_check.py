"""Mistakes in arrays: each is refused before a launch; what was got, what is needed."""

import re

import numpy as np
import pytest
from lesson.errors import ArgumentError
from lesson.launch import paths
from lesson.launch.check import check, check_order
from lesson.launch.paths import HANDLES
from lesson.problem import cases
from lesson.text import source
from lesson.text.source import from_text
from support.gpus import HereBackend


def arrays(n=64):
    case = cases.make("random", n)
    return {"q": case.q, "k": case.k, "v": case.v}


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("spoil, words", [
    (lambda x: x.astype(np.float64), ("float64", "float32", "astype")),
    (lambda x: x[0], ("(64,)", "(N, 64)")),
    (lambda x: x[None, None], ("(1, 1, 64, 64)", "(N, 64)")),
    (lambda x: x[:0], ("(0, 64)", "(N, 64)")),
    (lambda x: np.repeat(x, 2, axis=0)[::2], ("C-contiguous", "copy")),
    (lambda x: np.asfortranarray(x), ("C-contiguous", "copy")),
    (lambda x: x.T.copy().T, ("C-contiguous", "copy")),
    (lambda x: x.tolist(), ("list", "NumPy array", "put")),
])
def test_an_array_that_a_kernel_would_misread_is_refused(name, spoil, words):
    given = arrays()
    given[name] = spoil(given[name])
    with pytest.raises(ArgumentError) as error:
        check(HereBackend(), **given, handles=HANDLES)
    assert str(error.value).startswith(f"{name} ")
    for word in words:
        assert word in str(error.value)


def test_shapes_that_differ_are_refused():
    given = arrays()
    given["v"] = cases.make("random", 128).v
    with pytest.raises(ArgumentError, match=r"v has shape \(128, 64\), q has \(64, 64\)"):
        check(HereBackend(), **given, handles=HANDLES)


@pytest.mark.parametrize("n", [16, 65, 96])
def test_n_that_is_no_multiple_of_the_tile_is_refused(n):
    x = np.zeros((n, 64), np.float32)
    with pytest.raises(ArgumentError, match=f"n = {n}: N must be a positive multiple of 64"):
        check(HereBackend(), x, x, x, HANDLES)


def test_the_kernels_reason_for_d_is_the_wrappers():
    x = np.zeros((64, 32), np.float32)
    with pytest.raises(ArgumentError, match="d = 32: .* needs d = 64") as error:
        check(HereBackend(), x, x, x, HANDLES)
    reason = re.search(r'static_assert\(D == .*"d must be 64: (.*)"\)', source.read("online"))[1]
    assert reason in str(error.value)


def test_an_array_of_another_device_is_refused():
    class Elsewhere(HereBackend):
        array_name = "a CuPy array on the current device"

        def owns(self, array):
            return False

    with pytest.raises(ArgumentError, match="q is numpy.ndarray, needs a CuPy array"):
        check(Elsewhere(), **arrays(), handles=HANDLES)


NAMES = "q k v *o n scale"


def kernel(backend, params):
    text = f'extern "C" __global__ void attentionOnline({params}) {{}}'
    return backend.compile(from_text(text, "mine.cu")).kernels["attentionOnline"]


@pytest.mark.parametrize("params", [
    "const float* q, const float* k, const float* v, float* o, size_t n, float scale",
    "const float* Q, const float* K, const float* V, float* O, int N, float Scale",
    "float query[], float key[], float value[], float out[], long count, double factor",
    "const float*, const float*, const float*, float*, int, float",
    "const float* k, const float* q, const float* w, float* o, int n, float scale",  # own names
])
def test_names_are_a_reader_s_own_affair(emulated, params):
    check_order(kernel(emulated, params), NAMES)


@pytest.mark.parametrize("params, words", [
    ("const float* q, const float* k, const float* v, float* o, float scale, int n",
     "scale would get n, n would get scale"),
    ("float* o, const float* q, const float* k, const float* v, size_t n, float scale",
     "o would get q, q would get k, k would get v, v would get o"),
    ("float* OUT, const float* in, const float* keys, const float* values, size_t n, float s",
     "values would get o"),
    ("const float* q, const float* k, float* o, const float* v, size_t n, float scale",
     "o would get v, v would get o"),
    ("const float* a, const float* b, const float* c, float* d, float* e, float f",
     "e would get n"),
    ("const float* a, const float* b, int c, float* d, int e, float f", "c would get v"),
    ("const float* q, const float* k, const float* v, float* o, size_t n", "q, k, v, o, n, scale"),
])
def test_another_order_is_named(emulated, params, words):
    with pytest.raises(ArgumentError) as error:
        check_order(kernel(emulated, params), NAMES)
    message = str(error.value)
    assert message.startswith("attentionOnline declares (")
    assert "the lesson passes q, k, v, o, n, scale, in this order" in message and words in message


@pytest.mark.parametrize("path", paths.PATHS)
def test_the_lesson_s_kernels_have_the_order_that_they_get(emulated, path):
    known = emulated.compile(source.load(path)).kernels
    for name in paths.kernels_of(path):
        check_order(known[name], paths.KERNELS[name].passed)


def test_a_path_is_refused_before_it_is_launched(emulated):
    text = source.read("online").replace("size_t n, float scale)", "float scale, size_t n)")
    with pytest.raises(ArgumentError, match="scale would get n"):
        paths.run(emulated, "online", cases.make("random", 64), from_text(text))
