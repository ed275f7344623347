"""What stops a kernel is said in its own words, with its line and thread."""

import numpy as np
import pytest
from lesson.machine import prints
from support.emulated import fails, needs_compiler, run

pytestmark = needs_compiler


def test_an_assertion_names_itself(backend):
    message = fails(backend, "int t = threadIdx.x;\nassert(n == 7 && t < 32);\nb[t] = 1.0f;")
    assert "mine fails its assertion: n == 7 && t < 32" in message
    assert "mine.cu, line 3:" in message and "block 0, thread 0" in message


def test_an_assertion_that_holds_costs_nothing(backend):
    assert (run(backend, "assert(n == 32); b[threadIdx.x] = 1.0f;")[0] == 1).all()


@pytest.mark.parametrize("stop", ["__trap()", "__brkpt()"])
def test_a_trap(backend, stop):
    message = fails(backend, f"if (threadIdx.x == 9)\n{stop};\nb[threadIdx.x] = 1.0f;")
    assert f"stops itself: {stop}" in message and "thread 9" in message
    assert "mine.cu, line 3:" in message


@pytest.mark.parametrize("divisor", ["(int)(threadIdx.x / 32)", "(n - n)", "0", "(n & 0u)"])
def test_a_division_by_zero(backend, divisor):
    message = fails(backend, f"int x = n;\nb[threadIdx.x] = x / {divisor};")
    assert "divides an integer by zero" in message and "mine.cu, line 3:" in message
    assert "divides an integer by zero" in fails(backend, f"b[0] = n % {divisor};")


def test_a_division_that_no_integer_holds(backend):
    message = fails(backend, "int x = -2147483647 - (n > 0);\nb[0] = x / (int)(31 - n);")
    assert "divides the smallest integer by -1" in message and "line 3" in message


@pytest.mark.parametrize("shift, words", [
    ("1u << n", "shifts a value of 32 bits by 32 places: C++ defines 0 to 31"),
    ("1ull << 2 * n", "shifts a value of 64 bits by 64 places: C++ defines 0 to 63"),
    ("n >> (31 - n)", "by -1 places"),
])
def test_a_shift_by_all_bits(backend, shift, words):
    message = fails(backend, f"b[threadIdx.x] =\n{shift};")
    assert words in message and "mine.cu, line 3:" in message


@pytest.mark.parametrize("before, call", [
    ("__device__ float down(float x) { return x > -1.0f ? down(x + 1.0f) + 1.0f : x; }",
     "down(a[threadIdx.x])"),
    ("__device__ float odd(float x); "
     "__device__ __noinline__ float even(float x) { return odd(x) + 1.0f; } "
     "__device__ __noinline__ float odd(float x) { return x < -1.0f ? x : even(x) * 0.5f; }",
     "even(a[threadIdx.x])"),
])
def test_recursion_without_an_end(backend, before, call):
    message = fails(backend, f"b[threadIdx.x] = {call};", before=before)
    assert "calls itself without an end" in message and "128 KiB" in message
    assert "mine.cu, line 1:" in message


def test_recursion_that_ends(backend):
    before = "__device__ float sum(int n) { return n ? n + sum(n - 1) : 0.0f; }"
    assert run(backend, "b[threadIdx.x] = sum(threadIdx.x);", before=before)[0][31] == 496


# ---- what kernels print -------------------------------------------------------------------------


def test_printf_is_heard_once(backend, capsys):
    run(backend, 'if (threadIdx.x == 3) printf("lane %d, %.2f\\n", threadIdx.x, a[3]); '
                 "b[threadIdx.x] = 0;")
    assert capsys.readouterr().out == "lane 3, 3.00\n"


def test_a_flood_of_prints_is_cut_with_a_count(backend, capsys):
    run(backend, 'for (int i = 0; i < 3000; ++i) printf("0123456789\\n"); b[threadIdx.x] = 0;')
    *shown, last = capsys.readouterr().out.splitlines()
    assert shown == ["0123456789"] * (prints.LIMIT // 11)
    cut = 32 * 3000 - len(shown)
    assert last == (f"({cut:,} more lines, {11 * cut:,} characters that kernels printed are not "
                    "shown)")


def test_one_limit_for_many_launches(backend, capsys):
    with prints.limited(100):
        for _ in range(4):
            run(backend, 'if (threadIdx.x < 4) printf("lane %d\\n", threadIdx.x); b[0] = 0;')
        assert capsys.readouterr().out.count("lane") == 14
    assert capsys.readouterr().out == ("(2 more lines, 14 characters that kernels printed are "
                                       "not shown)\n")
    run(backend, 'if (threadIdx.x < 4) printf("lane %d\\n", threadIdx.x); b[0] = 0;')
    assert capsys.readouterr().out.count("lane") == 4


def test_what_was_printed_before_an_error_is_heard(backend, capsys):
    fails(backend, 'if (threadIdx.x == 0) printf("here\\n");\nb[n + threadIdx.x] = 0.0f;')
    assert capsys.readouterr().out == "here\n"


def test_prints_of_several_threads(backend, capsys):
    from concurrent.futures import ThreadPoolExecutor

    body = 'if (threadIdx.x < 2) printf("lane %d\\n", threadIdx.x); b[threadIdx.x] = 1.0f;'
    with prints.limited(1000), ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda _: run(backend, body)[0], range(6)))
    assert all(np.array_equal(b, np.ones(32)) for b in made)
    assert capsys.readouterr().out.count("lane 0\nlane 1\n") == 6
