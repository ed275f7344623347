"""One call: what it computes, what it gives back, and what it refuses in words."""

import lesson
import numpy as np
import pytest
from lesson.errors import ArgumentError
from lesson.launch import ladder
from lesson.launch.attention import EMULATED_RATE, PATIENCE_S
from lesson.measure.gates_and_times import judged
from lesson.problem import cases
from lesson.problem.problem import Problem


def inputs(n=128, heads=None):
    rng = np.random.default_rng(5)
    return rng.standard_normal((3, n, 64) if heads is None else (3, heads, n, 64), np.float32)


@pytest.mark.parametrize("name", ("periodic", "spike-late"))
def test_it_is_attention(emulated, no_gpu, name):
    case = cases.make(name, 128)
    before = case.q.copy(), case.k.copy(), case.v.copy()
    o = lesson.attention(case.q, case.k, case.v)
    assert type(o) is np.ndarray and o.dtype == np.float32
    verdict = judged(case, o)
    assert verdict.passed and verdict.fraction <= 0.35
    assert all(np.array_equal(x, y) for x, y in zip(before, (case.q, case.k, case.v)))


def test_heads_are_problems_of_their_own(emulated, no_gpu):
    q, k, v = inputs(64, heads=3)
    o = lesson.attention(q, k, v)
    assert o.shape == q.shape
    for head in range(3):
        alone = lesson.attention(q[head], k[head], v[head])
        np.testing.assert_allclose(o[head], alone, rtol=0, atol=1e-6)


def test_without_a_compiler_it_is_the_numpy_model(monkeypatch):
    monkeypatch.setattr("lesson.machine.backend.choose", lambda kind=None: None)
    q, k, v = inputs(64, heads=2)
    s = q.astype(float) @ k.astype(float).swapaxes(1, 2) / 8
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    want = p @ v.astype(float) / p.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(lesson.attention(q, k, v), want, rtol=0, atol=2e-6)
    np.testing.assert_allclose(lesson.attention(q[0], k[0], v[0]), want[0], rtol=0, atol=2e-6)


def test_the_gpu_gets_the_fastest_kernel_and_arrays_stay_what_they_are(monkeypatch):
    """A stand-in for CuPy and the live backend: what is put, planned, awaited and given back."""
    log = []

    class Array:  # CuPy's
        dtype = np.dtype(np.float32)

    class Backend:
        mark = "live"

        class cupy:
            @staticmethod
            def array(x, order):
                log.append(("put", order, x.shape))
                return Array()

        @staticmethod
        def get(x):
            log.append("get")
            return "host"

    class Plan:
        output = "device"

        @staticmethod
        def enqueue():
            log.append("enqueue")

    def plan(backend, which, *arrays):
        log.append((which, [type(x).__name__ for x in arrays]))
        return Plan

    monkeypatch.setattr("lesson.machine.backend.choose", lambda kind=None: Backend)
    monkeypatch.setattr(ladder, "plan", plan)
    assert lesson.attention(*inputs(64)) == "host"
    assert log == [*3 * [("put", "K", (64, 64))], ("fastest", 3 * ["Array"]), "enqueue", "get"]
    log.clear()
    assert lesson.attention(Array(), Array(), Array()) == "device"
    assert log == [("fastest", 3 * ["Array"]), "enqueue"]


@pytest.mark.parametrize("change, words", (
    (lambda q, k, v: (q.astype(float), k, v), "q has dtype float64, needs float32"),
    (lambda q, k, v: (q, k[:64], v), r"k has shape \(64, 64\), q has \(128, 64\)"),
    (lambda q, k, v: (q, k, v.T.copy().T), "v is a view that is not C-contiguous"),
    (lambda q, k, v: (q[:100], k[:100], v[:100]), "N must be a positive multiple of 64"),
    (lambda q, k, v: (q[:, :32].copy(), k[:, :32].copy(), v[:, :32].copy()), "d = 32"),
    (lambda q, k, v: (q.tolist(), k, v), "q is builtins.list, needs a NumPy array"),
    (lambda q, k, v: (q[None, None], k[None, None], v[None, None]), "needs .* or .heads, N, 64."),
))
def test_what_no_kernel_takes_is_refused_in_words(emulated, no_gpu, change, words):
    with pytest.raises(ArgumentError, match=words):
        lesson.attention(*change(*inputs()))


def test_a_problem_that_would_take_minutes_is_refused_without_a_gpu(emulated, no_gpu):
    with pytest.raises(ArgumentError, match="without a GPU that takes about 4 minutes") as raised:
        lesson.attention(*np.zeros((3, 4096, 64), np.float32))
    fits = int(str(raised.value).split("N up to ")[1].split()[0].replace(",", ""))
    operations = Problem(fits, fits).operations
    assert 0.9 < operations / EMULATED_RATE / PATIENCE_S <= 1
