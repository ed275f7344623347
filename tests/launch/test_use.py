"""Kernels for any Problem, emulated: lengths, masks, heads, widths, padding, NaN."""

import numpy as np
import pytest
from lesson.errors import ArgumentError
from lesson.launch import use
from lesson.problem import cases
from lesson.problem.gate import judge
from lesson.problem.problem import Problem
from lesson.problem.reference import attention

MOST = 0.35  # of the gate
# Pairs of lengths, a mask or none, widths, heads and lengths of keys: each value of each at least
# once, and those that meet in a kernel (an end and a mask, a mask and parts) together.
PROBLEMS = (
    (Problem(1, 1), 1), (Problem(1, 200, heads=2), 3), (Problem(200, 1, causal=True), 1),
    (Problem(64, 64, causal=True, d=8), 1), (Problem(65, 63, causal=True, d=32), 1),
    (Problem(63, 65, causal=True, d=40), 2), (Problem(113, 203, causal=True), 4),
    (Problem(128, 217, d=56, scale=0.3), 2), (Problem(129, 127, heads=6, kv_heads=3, d=96), 1),
    (Problem(33, 129, heads=6, kv_heads=1, causal=True, d=120), 3), (Problem(70, 100, d=128), 2),
    (Problem(40, 90, batch=3, heads=2, key_lengths=(0, 65, 90)), 1),
    (Problem(1, 300, heads=6, kv_heads=2, d=128), 2), (Problem(3, 90, causal=True, d=40), 1),
    (Problem(2, 70, batch=2, heads=4, kv_heads=1, key_lengths=(0, 66), causal=True), 2),
    (Problem(90, 40, batch=2, heads=2, kv_heads=1, key_lengths=(7, 40), causal=True, d=128), 1),
)


def run(backend, case, splits=None, lse=True):
    planned = use.plan(backend, case.problem, *(backend.put(x) for x in (case.q, case.k, case.v)),
                       lse=lse, splits=splits)
    o = planned.run()
    return o, backend.get(planned.lse) if lse else None


@pytest.mark.parametrize("p, splits", PROBLEMS, ids=lambda x: str(x))
def test_it_is_attention(one_order, p, splits):
    case = cases.make("random", p)
    ref = attention(case.q, case.k, case.v, problem=p)
    o, lse = run(one_order, case, splits)
    verdict = judge(o, ref.o, p, ref.max_abs_score)
    assert verdict.passed and verdict.fraction <= MOST, verdict.explain("use", "random", p)
    np.testing.assert_allclose(lse, ref.lse, rtol=1e-5, atol=1e-5)
    blind = p.seen()[:, None] == 0  # rows that see no key
    assert not o.reshape(p.batch, p.heads, p.queries, p.d)[np.broadcast_to(blind, lse.shape)].any()
    assert np.array_equal(np.isneginf(lse), np.broadcast_to(blind, lse.shape))


@pytest.mark.parametrize("name", ("spike-late", "peaks", "very-negative", "large"))
def test_the_cases_that_tell_kernels_apart(one_order, name):
    p = Problem(70, 150, causal=True)
    case = cases.make(name, p)
    ref = attention(case.q, case.k, case.v, problem=p)
    for splits in (1, 3):
        verdict = judge(run(one_order, case, splits)[0], ref.o, p, ref.max_abs_score)
        assert verdict.passed and verdict.fraction <= MOST, verdict.explain("use", name, p)


def test_no_result_depends_on_the_order_of_threads(emulated):
    p = Problem(33, 70, causal=True, batch=2, key_lengths=(9, 70))
    case = cases.make("spike-late", p)
    ref = attention(case.q, case.k, case.v, problem=p)
    assert judge(run(emulated, case, 2)[0], ref.o, p, ref.max_abs_score).passed


def test_padding_is_not_read(one_order):
    p = Problem(40, 100, batch=2, key_lengths=(30, 64))
    case = cases.make("random", p)
    clean = run(one_order, case)
    k, v = case.k.copy(), case.v.copy()
    for entry, length in enumerate(p.key_lengths):
        k[entry, 0, length:] = v[entry, 0, length:] = np.nan
    for mine, other in zip(run(one_order, cases.Case("", p, case.q, k, v, "")), clean):
        assert np.array_equal(mine, other)


@pytest.mark.parametrize("bad", (np.nan, np.inf))
def test_what_is_not_finite_reaches_the_rows_that_see_it_and_no_others(one_order, bad):
    p = Problem(100, 100, causal=True)
    case = cases.make("random", p)
    clean = run(one_order, case)[0]
    q, k, v = (x.copy() for x in (case.q, case.k, case.v))
    q[20, 3] = bad
    o = run(one_order, cases.Case("", p, q, case.k, case.v, ""))[0]
    assert not np.isfinite(o[20]).any() and np.array_equal(np.delete(o, 20, 0),
                                                           np.delete(clean, 20, 0))
    k[70, 5] = bad
    o = run(one_order, cases.Case("", p, case.q, k, case.v, ""))[0]
    assert np.isfinite(o[:70]).all() and not np.isfinite(o[70:]).any()
    v[80, 9] = bad
    for splits in (1, 2):
        o = run(one_order, cases.Case("", p, case.q, case.k, v, ""), splits)[0]
        assert np.isfinite(o[:80]).all() and not np.isfinite(o[80:, 9]).any()
        assert np.isfinite(np.delete(o, 9, 1)).all()


def test_the_parts_are_as_many_as_fill_the_gpu(one_order):
    kind = use.form(one_order, 64)
    assert use.parts(Problem(1, 131072, heads=16), 132, kind) >= 8
    assert use.parts(Problem(4096, 4096, heads=16), 132, kind) == 1
    assert use.parts(Problem(1, 1), 132, kind) == 1


@pytest.mark.parametrize("p, words", (
    (Problem(4, 4, d=59), "d = 59: needs a multiple of 8 up to 128"),
    (Problem(4, 4, d=136), "d = 136: needs a multiple of 8 up to 128"),
    (Problem(4, 4, heads=300, batch=300), "one launch takes 65,535 heads"),
))
def test_what_no_kernel_does_is_refused(one_order, p, words):
    with pytest.raises(ArgumentError, match=words):
        use.plan(one_order, p, None, None, None)
    for queries in (4, 40):
        with pytest.raises(ArgumentError, match="splits = 2: 4 keys are 1 ti"):
            run(one_order, cases.make("flat", Problem(queries, 4)), 2)
