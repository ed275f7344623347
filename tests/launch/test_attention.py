"""One call: what it computes, what it gives back, and what it refuses in words."""

import lesson
import numpy as np
import pytest
from lesson.errors import ArgumentError
from lesson.launch import ladder, use
from lesson.measure.gates_and_times import judged
from lesson.problem import cases
from lesson.problem.gate import judge
from lesson.problem.problem import Problem
from lesson.problem.reference import attention as reference


def inputs(queries=128, keys=None, heads=None, d=64):
    rng = np.random.default_rng(5)
    before = () if heads is None else (heads,)
    return tuple(rng.standard_normal((*before, rows, d), np.float32)
                 for rows in (queries, keys or queries, keys or queries))


@pytest.mark.parametrize("name", ("periodic", "spike-late"))
def test_it_is_attention(emulated, no_gpu, name):
    case = cases.make(name, 128)
    before = case.q.copy(), case.k.copy(), case.v.copy()
    o = lesson.attention(case.q, case.k, case.v)
    assert type(o) is np.ndarray and o.dtype == np.float32
    verdict = judged(case, o)
    assert verdict.passed and verdict.fraction <= 0.35
    assert all(np.array_equal(x, y) for x, y in zip(before, (case.q, case.k, case.v)))


def test_a_batch_with_masks_and_shared_heads(emulated, no_gpu):
    p = Problem(20, 70, 2, heads=4, kv_heads=2, d=32, causal=True, key_lengths=(55, 70), scale=0.2)
    case = cases.make("random", p)
    o, lse = lesson.attention(case.q, case.k, case.v, causal=True, scale=0.2, return_lse=True,
                              key_lengths=np.array([55, 70]))
    ref = reference(case.q, case.k, case.v, problem=p)
    assert o.shape == case.q.shape and lse.shape == (2, 4, 20)
    assert judge(o, ref.o, p, ref.max_abs_score).fraction <= 0.35
    np.testing.assert_allclose(lse, ref.lse, rtol=1e-5, atol=1e-5)


def test_the_shape_is_the_callers(emulated, no_gpu):
    q, k, v = inputs(7, 9, heads=2)
    o = lesson.attention(q, k, v)
    assert np.array_equal(lesson.attention(q[None], k[None], v[None])[0], o)
    one, lse = lesson.attention(q[1], k[1], v[1], return_lse=True)
    assert lse.shape == (7,) and np.array_equal(one, o[1])


@pytest.mark.parametrize("masked", (False, True))
def test_without_a_compiler_it_is_numpy(monkeypatch, masked):
    monkeypatch.setattr("lesson.machine.backend.choose", lambda kind=None: None)
    q, k, v = inputs(64, heads=2)
    want = reference(q, k, v, problem=Problem(64, 64, heads=2, causal=masked))
    o, lse = lesson.attention(q, k, v, causal=masked, return_lse=True)
    assert o.dtype == lse.dtype == np.float32
    np.testing.assert_allclose(o, want.o, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(lse, want.lse[0], rtol=1e-6, atol=1e-6)


class Foreign:
    """An array of another package that speaks DLPack, on the host."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array_namespace__(self):
        class Space:
            from_dlpack = staticmethod(lambda x: Foreign(np.from_dlpack(x)))

        return Space


def test_another_packages_arrays_come_back_as_they_are(emulated, no_gpu):
    q, k, v = inputs(5, 9)
    o = lesson.attention(*map(Foreign, (q, k, v)))
    assert isinstance(o, Foreign) and np.array_equal(o.array, lesson.attention(q, k, v))


def test_the_gpu_gets_the_fastest_kernel_that_does_the_problem(monkeypatch):
    """A stand-in for the live backend: what is put, planned, and fetched."""
    log = []

    class Backend:
        mark = "live"
        put = staticmethod(lambda x: log.append("put") or x)
        get = staticmethod(lambda x: log.append("get") or x)

    class Plan:
        def __init__(self, q):
            self.output, self.lse = q, q[..., 0]

        def enqueue(self):
            log.append("enqueue")

    monkeypatch.setattr("lesson.machine.backend.choose", lambda kind=None: Backend)
    monkeypatch.setattr(ladder, "plan", lambda backend, which, q, k, v:
                        log.append((which, q.shape)) or Plan(q))
    monkeypatch.setattr(use, "plan", lambda backend, p, q, k, v, lse:
                        log.append((str(p), lse)) or Plan(q))
    batch = [x.reshape(2, 3, 64, 64) for x in inputs(64, heads=6)]
    assert lesson.attention(*batch).shape == (2, 3, 64, 64)  # to the ladder a batch is heads
    assert log == [*3 * ["put"], ("fastest", (6, 64, 64)), "enqueue", "get"]
    log.clear()
    o, lse = lesson.attention(*inputs(64, heads=6), causal=True, return_lse=True)
    assert log == [*3 * ["put"], ("N = 64, 6 heads, causal", True), "enqueue", "get", "get"]
    assert o.shape == (6, 64, 64) and lse.shape == (6, 64)


@pytest.mark.parametrize("change, words", (
    (lambda q, k, v: (q.astype(float), k, v), "q has dtype float64, needs float32"),
    (lambda q, k, v: (q, k[:64], v), r"v has shape \(128, 64\), k has \(64, 64\)"),
    (lambda q, k, v: (q[:, :32].copy(), k, v), r"k has shape \(128, 64\), q has \(128, 32\)"),
    (lambda q, k, v: (q, k, v.T.copy().T), "v is a view that is not C-contiguous"),
    (lambda q, k, v: tuple(x[:, :59].copy() for x in (q, k, v)), "d = 59: needs a multiple of 8"),
    (lambda q, k, v: (q.tolist(), k, v), "q is builtins.list, needs an array of NumPy or CuPy"),
    (lambda q, k, v: (Foreign(q), k, v), "must be of one kind; they are q: .*, k: numpy"),
    (lambda q, k, v: (q[:0], k, v), r"q has shape \(0, 64\)"),
    (lambda q, k, v: (q.reshape(4, 32, 64), k.reshape(8, 16, 64), v.reshape(8, 16, 64)),
     "kv_heads = 8: must divide heads = 4"),
))
def test_what_no_kernel_takes_is_refused_in_words(emulated, no_gpu, change, words):
    with pytest.raises(ArgumentError, match=words):
        lesson.attention(*change(*inputs()))


@pytest.mark.parametrize("options, words", (
    ({"causal": 1}, "causal = 1: needs True or False"),
    ({"key_lengths": (1, 2)}, "key_lengths has 2 numbers, needs one number for each of 1 batch"),
    ({"key_lengths": (129,)}, "each lies between 0 and keys = 128"),
    ({"scale": -1.0}, "scale = -1.0: needs a number above 0"),
))
def test_options_that_mean_nothing_are_refused_in_words(emulated, no_gpu, options, words):
    with pytest.raises(ArgumentError, match=words):
        lesson.attention(*inputs(), **options)


def test_a_problem_that_would_take_minutes_is_refused_without_a_gpu(emulated, no_gpu):
    with pytest.raises(ArgumentError, match="without a GPU that takes about 4 minutes, emulated"):
        lesson.attention(*np.zeros((3, 4096, 64), np.float32))
    with pytest.raises(ArgumentError, match="without a GPU that takes about .* minutes, emulated"):
        lesson.attention(*np.zeros((3, 2048, 64), np.float32), causal=True)
