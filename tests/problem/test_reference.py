"""The float64 reference: against formulas that share nothing with it."""

import math

import numpy as np
import pytest
from lesson.problem import cases
from lesson.problem.problem import Problem, of
from lesson.problem.reference import attention

PROBLEMS = (
    Problem(7, 7), Problem(5, 9, d=3), Problem(9, 5, d=8, causal=True), Problem(5, 9, causal=True),
    Problem(6, 6, heads=4, kv_heads=2, d=5), Problem(4, 6, heads=3, kv_heads=1, d=4),
    Problem(3, 7, batch=3, heads=2, d=6, key_lengths=(0, 4, 7)),
    Problem(5, 6, batch=2, heads=2, kv_heads=1, d=7, causal=True, key_lengths=(6, 3), scale=1.7),
)


def by_loops(case):
    """(attention of a Case, its largest |score|), one query and one key at a time."""
    p = case.problem
    q = case.q.reshape(p.batch, p.heads, p.queries, p.d).tolist()
    k, v = (x.reshape(p.batch, p.kv_heads, p.keys, p.d).tolist() for x in (case.k, case.v))
    o, largest = np.zeros((p.batch, p.heads, p.queries, p.d)), 0.0
    for b, h, i in np.ndindex(p.batch, p.heads, p.queries):
        shared = h // (p.heads // p.kv_heads)
        total, found = 0.0, []
        for j in range(p.keys):
            if p.causal and j > i + p.keys - p.queries:
                continue
            if p.key_lengths is not None and j >= p.key_lengths[b]:
                continue
            s = p.scale * math.fsum(x * y for x, y in zip(q[b][h][i], k[b][shared][j]))
            largest = max(largest, abs(s))
            total += math.exp(s)
            found.append((math.exp(s), v[b][shared][j]))
        for w, value in found:
            o[b, h, i] += w / total * np.array(value)
    return o.reshape(p.q_shape), largest


@pytest.mark.parametrize("p", PROBLEMS, ids=str)
@pytest.mark.parametrize("name", ["random", "periodic", "ties"])
def test_reference_is_that_of_two_loops(name, p):
    case = cases.make(name, p)
    want, largest = by_loops(case)
    ref = attention(case.q, case.k, case.v, problem=p)
    assert ref.o.shape == p.q_shape
    np.testing.assert_allclose(ref.o, want, rtol=1e-12, atol=1e-14)
    assert ref.max_abs_score == pytest.approx(largest, rel=1e-12)


def test_without_a_problem_the_shapes_are_one_heads():
    case = cases.make("random", Problem(5, 9, d=16))
    assert np.array_equal(attention(case.q, case.k, case.v).o,
                          attention(case.q, case.k, case.v, problem=case.problem).o)


def test_a_query_that_sees_no_key_gives_zeros():
    p = Problem(4, 2, causal=True)  # the first two queries come before the first key
    case = cases.make("random", p)
    o = attention(case.q, case.k, case.v, problem=p).o
    assert not o[:2].any() and np.isfinite(o).all() and np.array_equal(o[2], case.v[0])


def test_padding_is_never_read():
    p = Problem(6, 8, batch=2, heads=2, causal=True, key_lengths=(5, 0))
    case = cases.make("random", p)
    clean = attention(case.q, case.k, case.v, problem=p)
    k, v = case.k.copy(), case.v.copy()
    for x in (k, v):
        x[0, :, 5:] = x[1] = np.nan
    dirty = attention(case.q, k, v, problem=p)
    assert np.array_equal(clean.o, dirty.o) and clean.max_abs_score == dirty.max_abs_score


@pytest.mark.parametrize("p", [of(320), Problem(130, 200, heads=2, kv_heads=1, causal=True)],
                         ids=str)
def test_sampled_rows_are_the_same_rows_in_blocks_of_any_size(p):
    case, rows = cases.make("spike-late", p), np.array([0, 7, p.queries - 1])
    whole = attention(case.q, case.k, case.v, problem=p).o
    for block in (1, 2, 1000):
        sampled = attention(case.q, case.k, case.v, rows, block, p)
        assert sampled.o.shape == (*p.q_shape[:-2], 3, p.d)
        np.testing.assert_allclose(sampled.o, whole[..., rows, :], rtol=1e-12, atol=1e-15)
